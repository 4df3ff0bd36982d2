"""Twenty training steps against an independent loop: float64 NumPy around a plain GradientTape."""

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.tasks.task import task_of
from pipelines.training.train import build_trainer
from tests.pipelines.tiny import one_device, tiny_experiment, two_replicas

STEPS, WARMUP, BATCH, CLASSES = 20, 5, 16, 10
SMOOTHING, CLIP_NORM, WEIGHT_DECAY, MOMENTUM = 0.1, 0.3, 0.1, 0.9
BETA_1, BETA_2 = 0.9, 0.99
# A large epsilon: Adam would otherwise scale up the rounding error of the key bias gradients.
EPSILON = 1e-3
NO_DROPOUT = ["model.dropout=0", "model.attention_dropout=0", "model.stochastic_depth=0"]
PEAK = {"sgd": 0.1, "adamw": 0.03}


def _experiment(*assignments):
    return tiny_experiment(
        f"train.batch_size={BATCH}",
        f"train.steps={STEPS}",
        f"train.label_smoothing={SMOOTHING}",
        f"schedule.warmup_steps={WARMUP}",
        "schedule.decay=cosine",
        f"optimizer.weight_decay={WEIGHT_DECAY}",
        "optimizer.weight_decay_mask=kernels",
        f"optimizer.clip_norm={CLIP_NORM}",
        f"optimizer.momentum={MOMENTUM}",
        f"optimizer.beta_1={BETA_1}",
        f"optimizer.beta_2={BETA_2}",
        f"optimizer.epsilon={EPSILON}",
        *assignments,
    )


@pytest.fixture(scope="module")
def batches():
    """Three batches that repeat, as one array per key."""
    rng = np.random.default_rng(0)
    return {
        "image": rng.uniform(-1, 1, [3, BATCH, 12, 12, 3]).astype(np.float32),
        "label": rng.integers(0, CLASSES, [3, BATCH]).astype(np.int32),
        "id": rng.integers(0, 1000, [3, BATCH]),
        "slot": np.tile(np.arange(BATCH, dtype=np.int32), [3, 1]),
        # One example of each batch does not count, as in the last batch of an epoch.
        "weight": np.tile(np.arange(BATCH) != 3, [3, 1]).astype(np.float32),
    }


def _start_weights(model):
    """Random float32 arrays, including the head, with large sums so that every term matters."""
    rng = np.random.default_rng(1)
    return [
        ((variable.name == "gamma") + 0.3 * rng.normal(size=variable.shape)).astype(np.float32)
        for variable in model.trainable_variables
    ]


def _assign(model, weights):
    for variable, value in zip(model.trainable_variables, weights, strict=True):
        variable.assign(value.astype(np.float32))


def _trainer(experiment, batches, strategy=None):
    """A trainer whose model has the start weights, on one device unless a strategy is given."""
    strategy = strategy or one_device()
    trainer = build_trainer(
        experiment, task_of(experiment, experiment.model.config(CLASSES)), strategy
    )
    _assign(trainer.model, _start_weights(trainer.model))
    dataset = tf.data.Dataset.from_tensor_slices(batches).repeat()
    trainer.train_dataset = strategy.experimental_distribute_dataset(dataset)
    return trainer


def _loss(logits, labels, counts, kind):
    """Cross-entropy with smoothed targets of the examples that count, over the batch size."""
    logits = tf.cast(logits, tf.float64)
    # Softmax: mixed with the uniform distribution. Sigmoid: each class is a decision of its own.
    other = SMOOTHING / CLASSES if kind == "softmax" else SMOOTHING
    targets = np.full([BATCH, CLASSES], other)
    targets[np.arange(BATCH), labels] = 1 - SMOOTHING + other * (kind == "softmax")
    if kind == "softmax":
        shifted = logits - tf.reduce_max(logits, axis=1, keepdims=True)
        log_softmax = shifted - tf.math.log(tf.reduce_sum(tf.exp(shifted), axis=1, keepdims=True))
        losses = -targets * log_softmax
    else:
        # -t log(sigmoid(z)) - (1 - t) log(1 - sigmoid(z)); these logits are far from overflow.
        losses = targets * tf.math.log(1 + tf.exp(-logits)) + (1 - targets) * tf.math.log(
            1 + tf.exp(logits)
        )
    return tf.reduce_sum(losses * counts[:, None]) / BATCH


def _decayed(model):
    """Positions of the variables that weight decay may change among the trainable ones."""
    kernels = [model.patch_embedding.kernel, model.head.kernel]
    for block in model.blocks:
        kernels += [block.attention.qkv.kernel, block.attention.out.kernel]
        kernels += [block.mlp.dense_0.kernel, block.mlp.dense_1.kernel]
    return {
        index
        for index, variable in enumerate(model.trainable_variables)
        if any(variable is kernel for kernel in kernels)
    }


def _independent_loop(experiment, batches, optimizer, loss_kind):
    """`(weights at the end, loss of each step, gradient norm of each step before clipping)`."""
    model = vit_tf.create_model(experiment.model.config(CLASSES))
    weights = [value.astype(np.float64) for value in _start_weights(model)]
    first, second = ([np.zeros_like(value) for value in weights] for _ in range(2))
    decayed = _decayed(model)
    assert len(decayed) == 2 + 4 * experiment.model.config(CLASSES).layers
    losses, norms = [], []
    for step in range(STEPS):
        _assign(model, weights)
        variables = [variable.value for variable in model.trainable_variables]
        with tf.GradientTape() as tape:
            logits = model(batches["image"][step % 3], training=True)
            loss = _loss(
                logits, *(batches[key][step % 3] for key in ("label", "weight")), loss_kind
            )
        gradients = [np.array(g, np.float64) for g in tape.gradient(loss, variables)]
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients))
        losses.append(float(loss))
        norms.append(norm)

        progress = max(0, step - WARMUP) / (STEPS - WARMUP)
        rate = PEAK[optimizer] * (1 + np.cos(np.pi * progress)) / 2 * min(1, step / WARMUP)
        for i, gradient in enumerate(gradients):
            gradient = gradient * min(1, CLIP_NORM / norm)
            if optimizer == "sgd":
                first[i] = direction = MOMENTUM * first[i] + gradient
            else:
                first[i] = BETA_1 * first[i] + (1 - BETA_1) * gradient
                second[i] = BETA_2 * second[i] + (1 - BETA_2) * gradient**2
                corrected = second[i] / (1 - BETA_2 ** (step + 1))
                direction = first[i] / (1 - BETA_1 ** (step + 1)) / (np.sqrt(corrected) + EPSILON)
            decay = WEIGHT_DECAY if i in decayed else 0
            weights[i] = weights[i] - rate * direction - rate * decay * weights[i]
    return weights, losses, norms


# The optimizer only gets the gradients of the loss, so two pairs cover both.
@pytest.mark.parametrize(
    ("optimizer", "loss_kind", "devices"),
    [("sgd", "sigmoid", one_device), ("adamw", "softmax", two_replicas)],
)
def test_twenty_steps_equal_an_independent_loop(batches, optimizer, loss_kind, devices):
    experiment = _experiment(
        *NO_DROPOUT,
        "model.layers=1",  # Compiling takes most of the time; the optimizer sees no layers.
        f"train.loss={loss_kind}",
        f"optimizer.name={optimizer}",
        f"optimizer.learning_rate={PEAK[optimizer]}",
    )
    trainer = _trainer(experiment, batches, devices())
    losses, norms = [], []
    for _ in range(STEPS):
        trainer.log.loss_sum.assign(0.0)
        trainer.train(tf.constant(1))
        losses.append(float(trainer.log.loss_sum.numpy()))
        norms.append(float(trainer.log.gradient_norm.numpy()))
    assert trainer.step.numpy() == STEPS

    expected, expected_losses, expected_norms = _independent_loop(
        experiment, batches, optimizer, loss_kind
    )
    assert min(expected_norms) > 1.5 * CLIP_NORM, "clipping had no effect"
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    np.testing.assert_allclose(norms, expected_norms, rtol=1e-4)
    for variable, start, value in zip(
        trainer.model.trainable_variables, _start_weights(trainer.model), expected, strict=True
    ):
        largest = np.abs(value).max()
        assert np.abs(value - start).max() > 1e-3 * largest, variable.path
        error = np.abs(variable.value.numpy() - value).max()
        assert error <= 1e-5 * largest, f"{variable.path}: {error / largest:.2g} of the largest"


def _gradients(batches, *assignments, compiled):
    """Loss and named gradients of the first batch at step 7."""
    trainer = _trainer(_experiment(*assignments), batches)
    function = tf.function(trainer._accumulated_gradients, jit_compile=compiled)
    batch = {key: tf.constant(value[0]) for key, value in batches.items()}
    loss, gradients = function(batch, tf.constant(7, tf.int64))
    paths = [variable.path for variable in trainer.model.trainable_variables]
    return float(loss), dict(zip(paths, gradients, strict=True))


def _assert_same_gradients(actual, expected):
    assert actual[0] == pytest.approx(expected[0], rel=1e-5)
    norm = float(tf.linalg.global_norm(list(expected[1].values())))
    for path, gradient in expected[1].items():
        np.testing.assert_allclose(actual[1][path], gradient, rtol=0, atol=1e-5 * norm)


@pytest.fixture(scope="module")
def without_draws(batches):
    """Gradients without any kind of dropout, compiled by XLA."""
    return _gradients(batches, *NO_DROPOUT, compiled=True)


def test_gradients_compile_with_xla(batches, without_draws):
    """XLA draws other numbers, so masks can be compared only with XLA: see below."""
    _assert_same_gradients(without_draws, _gradients(batches, *NO_DROPOUT, compiled=False))


def test_dropout_in_xla_does_not_depend_on_the_split(batches, without_draws):
    whole = _gradients(batches, compiled=True)
    _assert_same_gradients(_gradients(batches, "train.accumulate_steps=4", compiled=True), whole)
    assert abs(whole[0] - without_draws[0]) > 1e-3, "dropout had no effect"
