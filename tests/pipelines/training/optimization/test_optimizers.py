"""Optimizers against NumPy loops."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from pipelines import config
from pipelines.config import recipes
from pipelines.training.optimization import optimizers
from pipelines.training.optimization.optimizers import make_schedule


def test_clipping_is_global_and_reports_the_norm():
    gradients = [tf.constant([3.0, 0.0]), tf.constant([[4.0]])]
    scale, norm = optimizers.clip_scale(gradients, 1.0)
    assert norm.numpy() == pytest.approx(5.0)
    assert scale.numpy() == pytest.approx(0.2)
    for clip_norm in (None, 10.0):
        scale, norm = optimizers.clip_scale(gradients, clip_norm)
        assert norm.numpy() == pytest.approx(5.0)
        assert scale.numpy() == 1


def test_a_zero_gradient_survives_clipping():
    scale, norm = optimizers.clip_scale([tf.zeros([3])], 1.0)
    assert (scale.numpy(), norm.numpy()) == (1, 0)


class _Weights:
    """Two variables with the names of a Keras layer."""

    def __init__(self, rng):
        self.variables_ = [
            _Variable("layer/kernel", rng.normal(size=(3, 4))),
            _Variable("layer/bias", rng.normal(size=4)),
        ]


class _Variable:
    def __init__(self, path, value):
        self.path, self.value = path, tf.Variable(value, dtype=tf.float32)


def _stored(value, dtype):
    """A float64 array after it was stored as `dtype`, a name."""
    return value.astype(np.float32).astype(tf.dtypes.as_dtype(dtype).as_numpy_dtype).astype(float)


def _numpy_sgd(weights, gradients, rates, decays, momentum, factors, dtype):
    velocity = [np.zeros_like(w) for w in weights]
    for step, step_rate in enumerate(rates):
        for i, decay in enumerate(decays):
            rate = step_rate * factors[i]
            new = momentum * velocity[i] + gradients[step][i]
            velocity[i] = _stored(new, dtype)
            weights[i] = weights[i] - rate * new - rate * decay * weights[i]
    return weights


def _numpy_adamw(weights, gradients, rates, decays, betas, epsilon, factors, dtype):
    beta_1, beta_2 = betas
    m, v = ([np.zeros_like(w) for w in weights] for _ in range(2))
    for step, step_rate in enumerate(rates):
        for i, decay in enumerate(decays):
            rate = step_rate * factors[i]
            g = gradients[step][i]
            m[i] = beta_1 * m[i] + (1 - beta_1) * g
            v[i] = beta_2 * v[i] + (1 - beta_2) * g * g
            m_hat, v_hat = m[i] / (1 - beta_1 ** (step + 1)), v[i] / (1 - beta_2 ** (step + 1))
            m[i] = _stored(m[i], dtype)
            old = weights[i]
            weights[i] = old - rate * m_hat / (np.sqrt(v_hat) + epsilon) - rate * decay * old
    return weights


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize(
    ("decay", "dtype", "factors"),
    [
        ("kernels", "float32", None),
        ("all", "float32", (0.25, 0.5)),
        ("kernels", "bfloat16", None),
    ],
)
def test_twenty_updates_equal_a_numpy_loop(name, decay, dtype, factors):
    """The update uses the momentum before it is rounded for storage."""
    rng = np.random.default_rng(0)
    holder = _Weights(rng)
    start = [variable.value.numpy().astype(np.float64) for variable in holder.variables_]
    gradients = [[rng.normal(size=w.shape) for w in start] for _ in range(20)]
    settings = config.Optimizer(
        name=name,
        weight_decay=0.2,
        weight_decay_mask=decay,
        epsilon=1e-3,
        momentum_dtype=dtype,
    )
    schedule = make_schedule(config.Schedule(warmup_steps=5, decay="cosine"), 0.1, 20)
    paths = [variable.path for variable in holder.variables_]
    by_path = factors and dict(zip(paths, factors, strict=True))
    optimizer = optimizers.make_optimizer(settings, schedule, holder.variables_, by_path)
    factors = factors or (1, 1)

    @tf.function
    def update(step, *step_gradients):
        optimizer.apply(step_gradients, step)

    for step, pair in enumerate(gradients):
        update(tf.constant(step, tf.int64), *(tf.constant(g, tf.float32) for g in pair))

    steps = np.arange(20)
    rates = 0.05 * (1 + np.cos(np.pi * np.clip((steps - 5) / 15, 0, 1))) * np.minimum(1, steps / 5)
    decays = [0.2, 0.2 if decay == "all" else 0.0]
    if name == "sgd":
        expected = _numpy_sgd(start, gradients, rates, decays, 0.9, factors, dtype)
    else:
        betas = (0.9, 0.999)
        expected = _numpy_adamw(start, gradients, rates, decays, betas, 1e-3, factors, dtype)
    for variable, value in zip(holder.variables_, expected, strict=True):
        np.testing.assert_allclose(variable.value, value, rtol=3e-6, atol=3e-6)
    momentum, *others = (slots["layer/kernel"].dtype for slots in optimizer.slots.values())
    assert momentum == dtype and all(other == tf.float32 for other in others)


# The curvature of a quadratic around 1 for each weight; 0: no gradient.
_CURVATURE = np.array([0.0, 0.002, 0.01, 0.1])
_STEPS = np.array([400, 2_000])


def _bit_sgd():
    """BiT's SGD with coupled weight decay, in float64: the weights after `_STEPS` steps."""
    weights, velocity, found = np.full(4, 2.0), np.zeros(4), []
    for step in range(_STEPS[-1]):
        gradient = _CURVATURE * (weights - 1) + 1e-4 * weights
        velocity = 0.9 * velocity + gradient
        weights = weights - 0.48 * velocity
        if step + 1 in _STEPS:
            found.append(weights)
    return np.array(found)


def _own_sgd(settings):
    """The weights after `_STEPS` steps of our optimizer."""
    variable = _Variable("layer/kernel", np.full(4, 2.0))
    schedule = make_schedule(config.Schedule(decay="constant"), settings.learning_rate, 2_000)
    optimizer = optimizers.make_optimizer(settings, schedule, [variable])

    @tf.function
    def updates(first, end):
        for step in tf.range(first, end):
            gradient = tf.constant(_CURVATURE, tf.float32) * (variable.value - 1)
            optimizer.apply([gradient], step)

    found = []
    for first, end in zip([0, *_STEPS], _STEPS, strict=False):
        updates(tf.constant(first, tf.int64), tf.constant(end, tf.int64))
        found.append(variable.value.numpy().astype(np.float64))
    return np.array(found)


def test_the_decoupled_decay_of_table_7_is_the_coupled_one_of_bit():
    """The same end in a quadratic and the same shrinkage without a gradient (docs/paper.md M.5)."""
    settings = recipes.get_recipe("jft_r50x1_sgd").optimizer
    shrinkage, end = [], []
    for weights in (
        _bit_sgd(),
        _own_sgd(settings),
        _own_sgd(dataclasses.replace(settings, weight_decay=1e-4)),
    ):
        shrinkage.append(-np.log(weights[1, 0] / weights[0, 0]) / (_STEPS[1] - _STEPS[0]))
        end.append(weights[1, 1:])
    minimum = _CURVATURE[1:] / (_CURVATURE[1:] + 1e-4)
    np.testing.assert_allclose(end[0], minimum, rtol=1e-6)
    np.testing.assert_allclose(end[1], minimum, rtol=1e-5)
    assert shrinkage[0] == pytest.approx(0.48e-3, rel=0.01)
    assert shrinkage[1] == pytest.approx(shrinkage[0], rel=0.01)
    # The coupled value in a decoupled optimizer is ten times too small.
    assert shrinkage[2] == pytest.approx(shrinkage[0] / 10, rel=0.01)
    assert np.abs(end[2] / minimum - 1).min() > 5e-4


def test_slots_are_kept_by_path_in_a_checkpoint(tmp_path):
    rng = np.random.default_rng(0)
    first, second = _Weights(rng), _Weights(rng)
    settings = config.Optimizer(name="adamw", momentum_dtype="bfloat16")
    schedule = make_schedule(config.Schedule(decay="constant"), 0.1, 20)
    saved = optimizers.make_optimizer(settings, schedule, first.variables_)
    saved.apply([tf.ones([3, 4]), tf.ones([4])], tf.constant(0, tf.int64))
    path = tf.train.Checkpoint(optimizer=saved.state).save(str(tmp_path / "c"))
    # In reverse order: only the paths assign slots to variables.
    restored = optimizers.make_optimizer(settings, schedule, second.variables_[::-1])
    tf.train.Checkpoint(optimizer=restored.state).restore(path).assert_consumed()
    for slot in ("momentum", "variance"):
        for name in ("layer/kernel", "layer/bias"):
            np.testing.assert_array_equal(restored.slots[slot][name], saved.slots[slot][name])
            assert np.abs(restored.slots[slot][name].numpy().astype(float)).min() > 0
