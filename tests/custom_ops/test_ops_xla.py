"""The compiled ops inside `jit_compile=True`, and what happens without the library for XLA."""

import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops import dispatch, library_file, loader
from tests.custom_ops.compare import (
    asks_for_compiled,
    attend,
    compiled_ops,
    draw,
    draw_uint8,
    each_isa,
    embed,
    tables,
)
from tests.custom_ops.process import run_python
from tests.vit_tf import tiny
from vit_tf.layers.dropout import RandomContext

DTYPES = ("float32", "float64", "bfloat16", "float16")


@pytest.fixture(autouse=True)
def _compiled(auto, request):
    """Lets the compiled ops run; on GPUs they have to be chosen."""
    assert custom_ops.describe()["xla_library"], custom_ops.describe()["xla_reason"]
    on_gpu = "device" in request.fixturenames and request.getfixturevalue("device") == "GPU"
    with custom_ops.implementation("compiled" if on_gpu else "auto"):
        yield


def calls(function, *arguments):
    """Names of the compiled ops that a compiled function calls."""
    text = function.experimental_get_compiler_ir(*arguments)(stage="hlo")
    lines = [line for line in text.splitlines() if "custom-call(" in line]
    return {line.split('custom_call_target="')[1].split('"')[0] for line in lines}


def assert_same_bits(actual, expected):
    for one, other in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


# Values and gradients -----------------------------------------------------------------------------


def all_attentions(qkv, grid, bias, row):
    """Every attention op; tokens of a grid of 4 x 5 and 3 prefix tokens."""
    taps = ("class_row", "distance", "entropy")
    return [
        attend(None, qkv, 3, tf.ones([2, 23, 12], qkv.dtype), bias, scale=0.3),
        attend(None, qkv, 3, tf.ones([2, 23, 12], qkv.dtype)),
        attend(None, grid, 3, tf.ones([2, 4, 5, 12], qkv.dtype), row, axis=1),
        attend(None, grid, 3, tf.ones([2, 4, 5, 12], qkv.dtype), axis=2),
        custom_ops.attention_with_taps(qkv, 3, taps, bias=bias, grid=(4, 5)),
        custom_ops.attention_with_taps(qkv, 3, ("entropy",)),
    ]


@pytest.mark.each_device
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_has_the_bits_of_the_eager_op(dtype):
    bias = draw([2, 1, 1, 23], "float64" if dtype == "float64" else "float32")
    arguments = draw([2, 23, 36], dtype), draw([2, 4, 5, 36], dtype), bias, bias[0, 0, 0, :4]
    function = tf.function(all_attentions, jit_compile=True)
    assert_same_bits(function(*arguments), all_attentions(*arguments))
    if dtype == "float32":
        names = {"VitAttention", "VitAttentionGrad", "VitAttentionBiasGrad", "VitAttentionTaps"}
        assert calls(function, *arguments) == names


def all_patches(images, bytes_, weights):
    """Every patch op, with left-over pixels; `bytes_` are images of uint8."""
    cotangent = tf.ones([2, 5, 10], weights["kernel"].dtype)
    with tf.GradientTape() as tape:
        tape.watch(images)
        patches = custom_ops.extract_patches(images, 4)
    return [
        embed(None, images, weights, {"scale": 0.1, "offset": -3.5}, cotangent)[:2],
        embed(None, bytes_, weights, {"scale": 2 / 255, "offset": -1}, cotangent)[:2],
        custom_ops.patch_embed(images, weights["kernel"], weights["bias"]),
        patches,
        tape.gradient(patches, images, patches),
    ]


@pytest.mark.each_device
@pytest.mark.parametrize("dtype", DTYPES)
def test_patches_have_the_bits_of_the_eager_op(dtype):
    shape = [2, 11, 8, 3]
    arguments = draw(shape, dtype), draw_uint8(shape), tables(shape, 4, dtype)
    function = tf.function(all_patches, jit_compile=True)
    assert_same_bits(function(*arguments), all_patches(*arguments))
    if dtype == "float32":
        embeds = {f"VitPatchEmbed{part}" for part in ("", "KernelGrad", "ImagesGrad", "TablesGrad")}
        assert calls(function, *arguments) == embeds | {
            "VitExtractPatches",
            "VitExtractPatchesGrad",
        }


@pytest.mark.each_device
def test_patches_of_every_dtype_are_extracted():
    numbers = tf.reshape(tf.range(2 * 5 * 4 * 3), [2, 5, 4, 3]) % 2
    names = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    images = [tf.cast(numbers, name) for name in (*names, "bool", "complex64", "complex128")]

    def extract():
        return [custom_ops.extract_patches(x, 2) for x in images]

    assert_same_bits(tf.function(extract, jit_compile=True)(), extract())


def test_every_instruction_set():
    """The library for XLA has its own kernels, and the choice is made for both."""
    qkv, images, weights = (
        draw([2, 23, 36]),
        draw_uint8([2, 11, 8, 3]),
        tables([2, 11, 8, 3], 4, "float32"),
    )

    def both(qkv, images):
        return attend(None, qkv, 3, tf.ones([2, 23, 12])), embed(None, images, weights, {}, None)[
            :2
        ]

    function = tf.function(both, jit_compile=True)
    for isa in each_isa():
        handle = loader.library().xla.handle
        assert json.loads(handle.vit_ops_isa_report())["chosen"] == isa
        assert_same_bits(function(qkv, images), both(qkv, images))


@pytest.mark.each_device
def test_nothing_and_sizes_of_one():
    function = tf.function(
        lambda qkv, bias, images, kernel: (
            attend(None, qkv, 2, tf.ones([*qkv.shape[:2], 2]), bias),
            custom_ops.patch_embed(images, kernel, tf.ones([4])),
            custom_ops.extract_patches(images, 2),
        ),
        jit_compile=True,
    )
    for batch, tokens in ((0, 5), (2, 1)):
        shapes = [batch, tokens, 6], [2, tokens, tokens], [batch, 3, 2, 3], [2, 2, 3, 4]
        arguments = [draw(shape) for shape in shapes]
        assert_same_bits(function(*arguments), function.python_function(*arguments))


# When it is decided what runs ---------------------------------------------------------------------


@pytest.mark.heavy("native")
@pytest.mark.each_device
def test_a_function_that_was_traced_before_is_compiled():
    qkv = draw([2, 9, 36])
    inner = tf.function(lambda x: attend(None, x, 3, tf.ones([2, 9, 12])))
    expected = inner(qkv)
    traced = inner.get_concrete_function(qkv)
    outer = tf.function(lambda x: traced(x), jit_compile=True)
    assert_same_bits(outer(qkv), expected)
    assert calls(outer, qkv) == {"VitAttention", "VitAttentionGrad"}


@pytest.mark.each_device
def test_a_function_that_was_traced_under_xla_runs_without():
    qkv = draw([2, 9, 36])
    inner = tf.function(lambda x: custom_ops.attention(x, 3), jit_compile=True)
    expected = inner(qkv)
    body = inner.get_concrete_function(qkv)
    assert compiled_ops(inner, qkv) == {"VitAttention"}
    graph = tf.compat.v1.wrap_function(
        lambda x: tf.graph_util.import_graph_def(
            body.graph.as_graph_def(), {body.inputs[0].op.name: x}, [body.outputs[0].name]
        )[0],
        [tf.TensorSpec(qkv.shape)],
    )
    assert_same_bits(graph(qkv), expected)


@pytest.mark.each_device
def test_control_flow_holds_the_ops():
    inner = tf.function(lambda x: custom_ops.attention(x, 3))

    def looped(qkv):
        (qkv,) = tf.while_loop(
            lambda x: tf.reduce_sum(x) < 1e9,
            lambda x: (tf.tile(inner(x), [1, 1, 3]),),
            (qkv,),
            maximum_iterations=2,
        )
        return tf.cond(tf.reduce_sum(qkv) > 0, lambda: inner(qkv), lambda: inner(-qkv))

    function = tf.function(looped, jit_compile=True)
    qkv = draw([2, 9, 36])
    assert compiled_ops(function, qkv) == {"VitAttention"}
    assert_same_bits(function(qkv), tf.function(looped)(qkv))


@pytest.mark.parametrize("ask", ["argument", "context", "environment"])
def test_explicitly_compiled_ops_are_compiled(ask, monkeypatch):
    function = tf.function(asks_for_compiled(ask, monkeypatch), jit_compile=True)
    assert calls(function, draw([2, 9, 36])) == {"VitAttention"}


def test_the_reference_calls_no_compiled_op():
    with custom_ops.implementation("reference"):
        function = tf.function(lambda x: custom_ops.attention(x, 3), jit_compile=True)
        assert calls(function, draw([2, 9, 36])) == set()


def test_on_tpus_the_graph_holds_no_ops(monkeypatch):
    """A device scope without a strategy; TPUStrategy is tested with the other devices."""
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: [kind] if kind == "TPU" else []
    )

    def on(device):
        def call(x):
            with tf.device(device):
                return custom_ops.attention(x, 3)

        return compiled_ops(tf.function(call), draw([2, 9, 36]))

    assert on("TPU:0") == set()
    assert on(None) == on("CPU:0") == {"VitAttention"}  # TensorFlow uses no TPU unasked.


# Models -------------------------------------------------------------------------------------------


def test_a_train_step_agrees_with_the_plain_graph():
    images, targets = tiny.images(4, dtype="uint8"), np.eye(5, dtype=np.float32)[:4]
    start, *weights = tiny.model(layers=1).get_weights(), [], []
    for jit, trained in zip((True, False), weights, strict=True):
        model = tiny.model(layers=1)
        model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=jit)
        model.train_on_batch(images, targets)
        trained += model.get_weights()
    assert max(np.abs(a - b).max() for a, b in zip(start, weights[0], strict=True)) > 1e-3
    for actual, expected in zip(*weights, strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)


def test_slices_draw_what_the_whole_batch_draws():
    model = tiny.model(dropout=0.3, stochastic_depth=0.6, layers=1)
    images = tf.constant(tiny.images(4))

    @tf.function(jit_compile=True)
    def gradients(images, first):
        slots = first + tf.range(images.shape[0])
        with tf.GradientTape() as tape, RandomContext(seed=3, step=7, slots=slots):
            logits = model(images, training=True)
            loss = tf.reduce_sum(tf.nn.log_softmax(logits)[:, 1])
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    zero, two = tf.constant(0), tf.constant(2)
    whole = gradients(images, zero)
    assert {"VitAttention", "VitPatchEmbed"} <= compiled_ops(gradients, images, zero)
    scale = float(tf.linalg.global_norm(whole))
    for one, other, expected in zip(
        gradients(images[:2], zero), gradients(images[2:], two), whole, strict=True
    ):
        np.testing.assert_allclose(one + other, expected, rtol=0, atol=1e-6 * scale)
    without = gradients(images[:2], two)
    assert any(np.abs(a - b).max() > 1e-3 * scale for a, b in zip(without, whole, strict=True))


@pytest.mark.parametrize("implementation", dispatch.CHOICES)
def test_layers_say_that_xla_can_compile_them(implementation, monkeypatch):
    layers = tiny.all_layers(tiny.model(implementation=implementation))
    assert all(layer.supports_jit for layer in layers)
    # There may be kernels for GPUs, which only "compiled" chooses, and none for TPUs.
    has_cuda = bool(custom_ops.describe()["cuda_archs"])
    for device, has_kernels in (("GPU", has_cuda), ("TPU", False)):
        monkeypatch.setattr(dispatch, "_device_type", lambda device=device: device)
        assert dispatch.supports_jit(implementation) == (
            implementation != "compiled" or has_kernels
        )


# Errors -------------------------------------------------------------------------------------------

EMBED = {"images": [2, 8, 9, 3], "kernel": [4, 4, 3, 10], "bias": [10]}
ATTENTION = {"qkv": [2, 5, 36]}
GRADIENT = ATTENTION | {"out": [2, 5, 12], "statistics": [2, 3, 2, 5], "d_out": [2, 5, 12]}


@pytest.mark.parametrize(
    ("op", "shapes", "options", "message"),
    [
        ("attention", ATTENTION | {"bias": [5, 4]}, {}, r"\[5, 4\].*\[2, 3, 5, 5\]"),
        ("attention_grad", GRADIENT | {"d_out": [2, 4, 12]}, {}, "d_out.*2, 4, 12.*like out"),
        ("attention_bias_grad", GRADIENT, {}, "no bias"),
        (
            "attention_taps",
            ATTENTION | {"statistics": [2, 3, 2, 5]},
            {"taps": ["distance"], "grid_rows": 3, "grid_columns": 2},
            "3 x 2.*patches.*tokens, 5",
        ),
        (
            "encoder",
            {"tokens": [2, 5, 12], "weights": [2751], "biases": [67]},
            {"mlp_size": 7, "activation": "gelu_erf"},
            r"weights\[0\].*2751.*2752",
        ),
        ("patch_embed", EMBED | {"position": [4, 9]}, {}, r"\[4, 9\].*\[4, 10\]"),
        (
            "patch_embed_kernel_grad",
            {"kernel": [4, 4, 3, 10], "images": [2, 8, 9, 3], "d_tokens": [2, 3, 10]},
            {},
            r"\[2, 3, 10\], with fewer",
        ),
        ("extract_patches", {"images": [8, 9, 3]}, {}, r"images.*\[8, 9, 3\]"),
        (
            "extract_patches_grad",
            {"d_patches": [2, 3, 48]},
            {"image_shape": [2, 8, 9, 3]},
            r"\[2, 3, 48\].*4, 48",
        ),
    ],
)
def test_shapes_that_were_unknown_when_traced_are_named(op, shapes, options, message):
    ops, lists = custom_ops.load(), ()
    if op.startswith("attention"):
        options, lists = {"num_heads": 3} | options, ("bias",)
    elif op == "encoder":
        options, lists = {"num_heads": 3} | options, ("weights", "biases")
    elif op.startswith("extract"):
        options = {"patch_size": 4} | options
    elif op == "patch_embed":
        lists = ("prefix", "position")

    def call(tensors):
        optional = {name: [tensors[name]] if name in tensors else [] for name in lists}
        return getattr(ops, f"vit_{op}")(**(tensors | optional), **options)

    tensors = {name: tf.zeros(shape) for name, shape in shapes.items()}
    unknown = [{name: tf.TensorSpec(None, tf.float32) for name in tensors}]
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match=message):
        tf.function(call, input_signature=unknown, jit_compile=True)(tensors)


@pytest.mark.each_device
def test_a_size_that_is_known_only_when_it_runs_is_refused():
    def some(x):
        return custom_ops.attention(tf.boolean_mask(x, x[:, 0, 0] > 0), 2)

    with pytest.raises(tf.errors.InvalidArgumentError, match="run time.*VIT_OPS"):
        tf.function(some, jit_compile=True)(draw([4, 5, 6]))


# Without the library ------------------------------------------------------------------------------


@pytest.mark.process
def test_commands_explain_what_xla_cannot_compile(tmp_path):
    library = shutil.copy(custom_ops.describe()["path"], tmp_path / "mine.so")
    shutil.copy(custom_ops.describe()["xla_library"], tmp_path / "alone.so")
    printed = run_python(
        "traced_without_xla_library.py", cwd=tmp_path, VIT_OPS_LIBRARY=str(library)
    )
    assert printed.strip() == (
        "A function that was traced with the compiled op VitAttention is used under "
        "jit_compile=True, which cannot compile it: the library for XLA has not been built. Build "
        "it with `python -m custom_ops.build_ops`; or set VIT_OPS=reference"
    )


@pytest.mark.process
def test_a_library_loaded_late_a_second_copy_and_threads(tmp_path):
    """The library may come after XLA's first use, and a copy of it after the library."""
    shutil.copy(custom_ops.describe()["xla_library"], tmp_path / "second.so")
    library = custom_ops.describe()["path"]
    run_python(
        "two_xla_libraries.py",
        cwd=tmp_path,
        VIT_OPS_LIBRARY=library,
        TF_NUM_INTRAOP_THREADS="4",
    )


@pytest.mark.parametrize("problem", ["none", "another TensorFlow", "other sources", "truncated"])
def test_a_library_that_does_not_fit_is_not_loaded(tmp_path, problem):
    report = custom_ops.describe()
    ops = shutil.copy(report["path"], tmp_path / "_vit_ops.so")
    whole = pathlib.Path(report["xla_library"]).read_bytes()
    sources = library_file.read_stamp(ops)["sources"].encode()
    changed, message = {
        "none": (None, "the library for XLA has not been built"),
        "another TensorFlow": (
            whole.replace(f'"{tf.__version__}'.encode(), b'"9.99.9'),
            "was built for TensorFlow 9.99.9",
        ),
        "other sources": (whole.replace(sources, sources[::-1]), "from other sources than"),
        "truncated": (whole[:-1], "is truncated"),
    }[problem]
    if changed is not None:
        (tmp_path / "_vit_ops_xla.so").write_bytes(changed)
    else:
        library_file.not_built(tmp_path / "_vit_ops_xla.so").write_text("no such header\n")
        assert "could not be built: no such header." in loader._load_for_xla(ops).reason
        library_file.not_built(tmp_path / "_vit_ops_xla.so").unlink()
    found = loader._load_for_xla(ops)
    assert found.path is None and message in found.reason and found.broken == (problem != "none")
    assert "`python -m custom_ops.build_ops`" in found.reason
