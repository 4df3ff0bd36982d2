"""Low-rank adapters: which layers have them, what they compute, and their cost."""

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
import vit_tf
from tests.tolerances import assert_close
from tests.vit_tf import graph_costs, tiny
from vit_tf import cost
from vit_tf.config.lora import Lora
from vit_tf.layers.dense import Dense
from vit_tf.models.lora import adaptable, adapted, add_adapters
from vit_tf.packing import pack_frozen_blocks

RANK_2 = Lora(rank=2, alpha=3.0)
EVERYWHERE = Lora(rank=2, alpha=3.0, targets=("qkv", "projection", "mlp"))


def adapted_model(lora=RANK_2, trained=True, **fields):
    """A model with random weights and adapters; `trained`: B is not zero any more."""
    model = tiny.model(**fields)
    add_adapters(model, lora)
    rng = np.random.default_rng(7)
    for layer in adapted(model) if trained else ():
        layer.lora_kernel_b.assign(0.3 * rng.normal(size=layer.lora_kernel_b.shape))
    return model


def only_adapters_and_head(model):
    """Freezes the other variables, as training does."""
    for variable in model.trainable_variables:
        variable.trainable = "lora" in variable.path or "head" in variable.path
    return model


def test_a_layer_and_its_gradients_are_the_equations():
    """Against x (W + s A B) + b in float64, and the derivatives of it by hand."""
    rng = np.random.default_rng(0)
    layer = Dense(7)
    layer.build([None, None, 5])
    layer.enable_lora(3, 6)
    shapes = {"x": [2, 4, 5], "w": [5, 7], "c": [7], "a": [5, 3], "b": [3, 7], "up": [2, 4, 7]}
    drawn = (rng.normal(size=shape).astype(np.float32) for shape in shapes.values())
    x, w, c, a, b, up = (value.astype(np.float64) for value in drawn)
    for variable, value in zip(
        (layer.kernel, layer.bias, layer.lora_kernel_a, layer.lora_kernel_b),
        (w, c, a, b),
        strict=True,
    ):
        variable.assign(value)
    scale, inputs = 2.0, tf.constant(x, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = layer(inputs)
    sources = [inputs, layer.lora_kernel_a.value, layer.lora_kernel_b.value]
    gradients = tape.gradient(outputs, sources, output_gradients=tf.constant(up, tf.float32))
    assert_close(outputs, x @ (w + scale * a @ b) + c, "float32", "model")
    rows, upstream = x.reshape(-1, 5), up.reshape(-1, 7)
    expected = (
        up @ (w + scale * a @ b).T,
        scale * rows.T @ upstream @ b.T,
        scale * a.T @ rows.T @ upstream,
    )
    for received, wanted in zip(gradients, expected, strict=True):
        assert_close(received, wanted, "float32", "model")
    np.testing.assert_allclose(layer.merged_kernel(), w + scale * a @ b, rtol=1e-6, atol=1e-6)
    assert [x.name for x in layer.trainable_variables] == ["bias", "lora_kernel_a", "lora_kernel_b"]


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_new_adapters_change_no_bit(dtype):
    """In training, the GELU that keeps its derivative has the same values too."""
    model, images = tiny.model(dtype=dtype), tiny.images()
    before = [np.array(model(images, training=training)) for training in (False, True)]
    add_adapters(model, EVERYWHERE)
    for training, expected in zip((False, True), before, strict=True):
        np.testing.assert_array_equal(model(images, training=training), expected)
    a = np.concatenate([np.ravel(layer.lora_kernel_a) for layer in adapted(model)])
    assert 0.8 < np.std(a) * 12**0.5 < 1.1 and len(adapted(model)) == 8


@pytest.mark.parametrize(
    ("lora", "fields", "expected"),
    [
        (RANK_2, {}, ["0.attn.proj", "0.attn.qkv", "1.attn.proj", "1.attn.qkv"]),
        (Lora(rank=2, targets=("mlp",), blocks=(1,)), {}, ["1.mlp.fc1", "1.mlp.fc2"]),
        (Lora(rank=2, targets=("qkv",), blocks=(1,)), tiny.AXIAL, ["2.attn.qkv", "3.attn.qkv"]),
    ],
)
def test_the_chosen_layers_have_adapters(lora, fields, expected):
    model = adapted_model(lora, **fields)
    every = adaptable(model, EVERYWHERE.targets)
    names = sorted(name for name, layer in every.items() if layer.lora_enabled)
    assert names == [f"blocks.{name}" for name in expected]
    trained = [x for x in model.trainable_variables if "lora" in x.path]
    paths = {x.path for x in trained}
    assert len(trained) == len(paths) == 2 * len(names)
    assert all(path.startswith("vision_transformer/block_") for path in paths)
    assert sum(np.prod(x.shape) for x in trained) == cost.state_bytes(
        model.config, "sgd", lora=lora
    )["gradients"] // 4 - sum(np.prod(x.shape) for x in model.head.weights)


@pytest.mark.parametrize(
    ("lora", "text"),
    [
        (Lora(rank=2, blocks=(0, 2)), "no block 2 of 0 to 1"),
        (Lora(rank=13), "rank of 13 is above the width of the model, 12"),
    ],
)
def test_adapters_that_do_not_fit(lora, text):
    with pytest.raises(ValueError, match=text):
        add_adapters(tiny.shared(), lora)
    config = vit_tf.ResNetConfig(stage_depths=(1,), num_classes=2)
    with pytest.raises(ValueError, match="family"):
        RANK_2.check(config)


def test_files_and_packed_weights_are_merged(tmp_path):
    model, images = adapted_model(EVERYWHERE), tiny.images()
    expected = np.array(model(images))
    assert np.abs(expected - np.array(tiny.shared()(images))).max() > 0.1
    vit_tf.save_npz(model, tmp_path / "a.npz")
    model.save(tmp_path / "a.keras")
    vit_tf.save_safetensors(model, tmp_path / "folder", "timm")
    for name in ("a.npz", "a.keras", "folder"):
        assert_close(vit_tf.load(tmp_path / name).model(images), expected, "float32", "model")
    assert_close(vit_tf.pack_model(model)(images), expected, "float32", "model")


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
def test_gradients_of_adapters_are_those_of_merged_kernels(activation):
    """By the chain rule, from the gradients of a model whose kernels are merged and trained."""
    model = only_adapters_and_head(adapted_model(EVERYWHERE, activation=activation))
    plain, images = tiny.model(activation=activation), tiny.images()
    vit_tf.weights.load_checkpoint(plain, vit_tf.weights.model_weights(model), "keep")
    found = []
    for one in (model, plain):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(one(images, training=True)))
        found.append(tape.gradient(loss, {x.path: x.value for x in one.trainable_variables}))
    received, of_plain = found
    for layer in adapted(model):
        of_kernel = np.asarray(of_plain[layer.kernel.path], np.float64)
        a, b = (np.asarray(x, np.float64) for x in (layer.lora_kernel_a, layer.lora_kernel_b))
        of_a, of_b = 1.5 * of_kernel @ b.T, 1.5 * a.T @ of_kernel
        for variable, wanted in ((layer.lora_kernel_a, of_a), (layer.lora_kernel_b, of_b)):
            error = np.abs(received[variable.path] - wanted).max()
            assert error <= 1e-5 * np.abs(wanted).max(), variable.path
    assert len(received) == 8 * 2 + 2


@pytest.mark.parametrize(
    ("lora", "fields"),
    [
        (Lora(rank=2, blocks=(1,)), {"layers": 3, "activation": "gelu_erf"}),
        pytest.param(
            Lora(rank=2, targets=("projection",)),
            {"dropout": 0.1},
            marks=pytest.mark.heavy("models"),
        ),
        (Lora(rank=2, targets=("mlp",)), {"layer_scale": 0.1}),
        (EVERYWHERE, tiny.AXIAL | {"representation_size": 7}),
        (Lora(rank=2, targets=("mlp",)), {"activation": "swiglu"}),
    ],
)
def test_the_cost_is_that_of_the_graph(lora, fields):
    model = only_adapters_and_head(adapted_model(lora, **fields))
    if model.pre_logits is not None:
        model.pre_logits.trainable = True
        for variable in model.pre_logits.weights:
            variable.trainable = True
    found = cost.activation_bytes(model.config, 2, lora=lora)
    assert found == graph_costs.kept_bytes(model, 2)
    once = lora.rank * sum(np.prod(layer.kernel.shape) for layer in adapted(model))
    counted = cost.training_macs(model.config, lora)
    assert counted == graph_costs.training_macs(model) - once
    assert found < 0.9 * cost.activation_bytes(model.config, 2)
    assert counted < 0.9 * cost.training_macs(model.config)


def logits_and_gradients(model):
    """Of a step of training, in a graph, by path; and whether it has the op of packed blocks."""
    images = tf.constant(tiny.images())

    @tf.function(autograph=False)
    def step():
        values = {x.path: x.value for x in model.trainable_variables}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            logits = model(images, training=True)
            loss = tf.reduce_sum(tf.sin(logits))
        return {"logits": logits} | tape.gradient(loss, values)

    graph = step.get_concrete_function().graph
    has_op = any(x.type in ("VitEncoder", "VitRotaryEncoder") for x in graph.get_operations())
    return {name: value.numpy() for name, value in step().items()}, has_op


@pytest.mark.parametrize(
    ("dtype", "fields", "tolerance"),
    [
        ("float32", {"activation": "gelu_erf", "layer_scale": 0.1}, 1e-5),
        ("float32", {"position_embedding": "rotary_2d", "register_tokens": 2}, 1e-5),
        ("mixed_bfloat16", {}, 0.1),
    ],
    ids=["float32", "rotary", "bfloat16"],
)
def test_packed_frozen_blocks_give_the_same_step(dtype, fields, tolerance):
    lora = Lora(rank=2, alpha=3.0, blocks=(2,))
    model = only_adapters_and_head(adapted_model(lora, layers=3, dtype=dtype, **fields))

    def errors(received, expected):
        assert received.keys() == expected.keys()
        return [np.abs(received[k] - x).max() / np.abs(x).max() for k, x in expected.items()]

    expected, has_op = logits_and_gradients(model)
    assert not has_op and len(expected) == 1 + 2 * 2 + 2
    with custom_ops.implementation("compiled"):
        assert pack_frozen_blocks(model) == 2
        received, has_op = logits_and_gradients(model)
    assert has_op and max(errors(received, expected)) <= tolerance
    with custom_ops.implementation("reference"):  # It would be slower than the blocks.
        assert not logits_and_gradients(model)[1]
    # A second packing reads the weights anew.
    for block in model.blocks[:2]:
        block.norm_mlp.beta.assign(1 - block.norm_mlp.beta.value)
    with custom_ops.implementation("compiled"):
        pack_frozen_blocks(model)
        again, _ = logits_and_gradients(model)
    model.frozen_blocks = None
    changed, _ = logits_and_gradients(model)
    assert max(errors(again, changed)) <= tolerance < 0.2 < max(errors(changed, expected))


@pytest.mark.parametrize(
    ("lora", "fields", "trained", "expected"),
    [
        (Lora(rank=2, blocks=(1,)), {}, (), 1),
        (Lora(rank=2), {}, (), 0),
        (Lora(rank=2, blocks=(1,)), {}, ("patch_embedding",), 0),
        (Lora(rank=2, blocks=(1,)), {}, ("class_token",), 0),
        (Lora(rank=2, blocks=(2,)), {"layers": 3}, ("block_1/norm_mlp",), 1),
        (Lora(rank=2, blocks=(1,)), {"dropout": 0.1}, (), 0),
        (Lora(rank=2, blocks=(1,)), {"attention_dropout": 0.1}, (), 0),
        # The rate of stochastic depth is 0 in the first block only.
        (Lora(rank=2, blocks=(2,)), {"layers": 3, "stochastic_depth": 0.1}, (), 1),
        (Lora(rank=2, blocks=(1,)), {"position_injection": "every_layer"}, (), 0),
        (Lora(rank=2, blocks=(1,)), tiny.AXIAL, (), 0),
        (Lora(rank=2, blocks=(1,)), {"position_embedding": "relative"}, (), 0),
    ],
)
def test_blocks_without_a_gradient_are_packed(lora, fields, trained, expected):
    model = only_adapters_and_head(adapted_model(lora, **fields))
    for variable in model.variables:
        if any(f"/{name}/" in variable.path for name in trained):
            variable.trainable = True
    with custom_ops.implementation("compiled"):
        assert pack_frozen_blocks(model) == expected
    assert (model.frozen_blocks is not None) == bool(expected)
