"""Which implementation runs, and how the package reports it.

The reference runs where the compiled ops have no kernels: XLA, TPUs, GPUs.
"""

import dataclasses
import pathlib
import threading

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from custom_ops import dispatch, library_file, loader
from custom_ops.building import toolkit
from tests.custom_ops.compare import (
    asks_for_compiled,
    attend,
    compiled_ops,
    draw,
    each_isa,
    embed,
    exact,
    tables,
)
from tests.custom_ops.process import run_python
from tests.tolerances import assert_close

pytestmark = pytest.mark.usefixtures("auto")


@pytest.fixture
def no_library(monkeypatch, auto):
    """The state after an installation that did not build the library."""
    monkeypatch.setattr(library_file, "candidates", lambda: [])
    monkeypatch.setattr(loader, "_library", None)


def test_without_a_library_auto_takes_the_reference(no_library):
    assert custom_ops.is_compiled() is False
    report = custom_ops.describe()
    assert report["compiled"] is report["broken"] is False and report["path"] is None
    assert report["implementation"] == "auto"
    assert "no compiled library has been built" in report["reason"]
    assert "python -m custom_ops.build_ops" in report["reason"]
    assert dispatch.resolve() == "reference"
    with pytest.raises(ValueError, match="cannot be used: no compiled library"):
        loader.compiled_ops()


def test_these_tests_run_with_the_compiled_library():
    """`make test` has built it, from these sources for this TensorFlow."""
    loader.library().choose_isa("")  # Not the one of VIT_ISA, with which it may have been loaded.
    report = custom_ops.describe()
    assert report["compiled"] and custom_ops.is_compiled(), report["reason"]
    assert dispatch.resolve() == dispatch.resolve("compiled") == "compiled"
    assert not report["outdated"] and not report["broken"] and report["reason"] is None
    assert report["tensorflow"] == tf.__version__
    assert report["path"].endswith("_vit_ops.so") and "g++" in report["compiler"]
    isas = report["isas"]
    assert isas["built"][0] == isas["available"][0] == "baseline"
    assert set(isas["available"]) <= set(isas["built"])
    # On Intel's processors the best set is not avx512_bf16: see isa_test.cc.
    is_intel = "GenuineIntel" in pathlib.Path("/proc/cpuinfo").read_text()
    usable = [isa for isa in isas["available"] if isa != "avx512_bf16" or not is_intel]
    assert isas["chosen"] == usable[-1] and isas["error"] is None
    cuda = toolkit.find(needs_gpu=True)
    if isinstance(cuda, toolkit.Toolkit):  # Kernels of a toolkit that is gone stay.
        assert report["cuda_archs"] == list(cuda.targets)
    assert (report["cuda_reason"] is None) == bool(report["cuda_archs"])
    assert report["xla_reason"] is None
    assert report["xla_library"].endswith("_vit_ops_xla.so")


def test_every_op_is_there():
    ops = loader.compiled_ops()
    assert loader.compiled_ops() is ops
    for name in loader.OPS:
        assert callable(getattr(ops, name))
    found = {n for n in dir(ops) if n.startswith("vit_") and not n.endswith("_eager_fallback")}
    assert found - {"vit_ops_path"} == set(loader.OPS)


def test_an_instruction_set_can_be_chosen():
    results = {}
    for name in each_isa():
        assert dispatch.resolve() == "compiled"
        results[name] = custom_ops.attention(draw([2, 33, 120]), 2).numpy().tobytes()
    # They add in other orders: the choice reaches the kernels.
    if "avx2" in results:
        assert results["baseline"] != results["avx2"]
    loader.library().choose_isa("")
    assert custom_ops.describe()["isas"]["error"] is None


def test_an_unknown_name_chooses_no_instruction_set():
    before = custom_ops.describe()["isas"]["chosen"]
    with pytest.raises(ValueError, match="'AVX2'.*baseline, avx2"):
        loader.library().choose_isa("AVX2")
    assert custom_ops.describe()["isas"]["chosen"] == before


@pytest.mark.process
def test_an_unknown_instruction_set_is_refused():
    """VIT_ISA is read when the library loads."""
    error = run_python("wrong_isa.py", VIT_ISA='"AVX2\\\u00e9"')
    expected = "VIT_ISA=?AVX2????: This instruction set is unknown. Use one of baseline, avx2"
    assert error.startswith(expected), error


def test_contexts_nest_and_are_restored():
    def asked():
        return custom_ops.describe()["implementation"]

    with custom_ops.implementation("reference"):
        assert asked() == "reference"
        with custom_ops.implementation("auto"):
            assert asked() == "auto"
        assert asked() == "reference"
        with pytest.raises(RuntimeError, match="inside"), custom_ops.implementation("auto"):
            raise RuntimeError("inside")
        assert asked() == "reference"
    assert asked() == "auto"


def test_a_context_belongs_to_its_thread():
    seen = []
    with custom_ops.implementation("reference"):
        thread = threading.Thread(
            target=lambda: seen.append(custom_ops.describe()["implementation"])
        )
        thread.start()
        thread.join()
    assert seen == ["auto"]


@pytest.mark.parametrize("name", ["fast", "", None, "Compiled"])
def test_unknown_names_are_refused(name):
    with pytest.raises(ValueError, match="is unknown. Use one of 'auto'"):
        custom_ops.implementation(name).__enter__()
    assert custom_ops.describe()["implementation"] == "auto"


def test_asking_for_the_compiled_library_is_refused_on_entry(no_library):
    with pytest.raises(ValueError, match="'compiled'.*library.*'auto'"):
        custom_ops.implementation("compiled").__enter__()
    assert custom_ops.describe()["implementation"] == "auto"


def shapes_of_every_op(**arguments):
    images = tf.zeros([1, 4, 4, 3])
    return [
        custom_ops.attention(tf.zeros([1, 2, 6]), 2, **arguments).shape,
        custom_ops.patch_embed(images, tf.zeros([2, 2, 3, 5]), tf.zeros([5]), **arguments).shape,
        custom_ops.extract_patches(images, 2).shape,
    ]


@pytest.mark.parametrize("name", [None, "auto", "reference"])
def test_an_argument_chooses_for_one_call(name):
    assert shapes_of_every_op(implementation=name) == [[1, 2, 2], [1, 4, 5], [1, 4, 12]]


def test_the_argument_decides_before_the_context_and_that_before_the_environment(
    monkeypatch, no_library
):
    monkeypatch.setenv("VIT_OPS", "compiled")
    with pytest.raises(ValueError, match="VIT_OPS=compiled asks for"):
        dispatch.resolve()
    with pytest.raises(ValueError, match="VIT_OPS=compiled asks for"):
        dispatch.resolve("auto")
    assert dispatch.resolve("reference") == "reference"
    with custom_ops.implementation("auto"):
        assert dispatch.resolve() == "reference"
        with pytest.raises(ValueError, match="implementation='compiled'"):
            dispatch.resolve("compiled")
    assert custom_ops.describe()["implementation"] == "compiled"


@pytest.mark.parametrize(
    ("value", "message"),
    [("compiled", "VIT_OPS=compiled asks for"), ("quick", "VIT_OPS=quick is unknown")],
)
def test_every_op_reads_the_environment(monkeypatch, no_library, value, message):
    monkeypatch.setenv("VIT_OPS", value)
    images = tf.zeros([1, 4, 4, 3])
    for call in (
        lambda: custom_ops.attention(tf.zeros([1, 2, 6]), 2),
        lambda: custom_ops.patch_embed(images, tf.zeros([2, 2, 3, 5]), tf.zeros([5])),
        lambda: custom_ops.extract_patches(images, 2),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("value", ["", "auto", "reference"])
def test_environment_values_that_run(monkeypatch, value):
    monkeypatch.setenv("VIT_OPS", value)
    assert shapes_of_every_op() == [[1, 2, 2], [1, 4, 5], [1, 4, 12]]


def under_xla(qkv, bias, images, weights):
    """Results by the name of their tolerance."""
    out, taps = custom_ops.attention_with_taps(qkv, 3, ("entropy",), bias=bias)
    gradients = attend(None, qkv, 3, out, bias)
    tokens, d_weights, _ = embed(None, images, weights, {"scale": 0.1}, tf.ones([2, 5, 10]))
    patches = custom_ops.extract_patches(images, 4)
    return {
        "attention gradient": [out, *gradients],
        "taps": list(taps.values()),
        "patch_embed gradient": [tokens, patches, *d_weights.values()],
    }


@pytest.mark.usefixtures("without_xla_library")
def test_xla_takes_the_reference():
    bias = np.zeros([3, 9, 9])
    bias[0, 2] = bias[1] = bias[2, :, 4] = -np.inf
    weights = tables([2, 11, 8, 3], 4, "float32")
    arguments = draw([2, 9, 36]), tf.constant(bias, "float32"), draw([2, 11, 8, 3]), weights
    function = tf.function(under_xla, jit_compile=True)
    assert compiled_ops(function, *arguments) == set()
    found, expected = function(*arguments), under_xla(*arguments)
    for kind, tensors in found.items():
        for one, other in zip(tensors, expected[kind], strict=True):
            assert_close(one, exact(other), "float32", kind)
    # Outside of XLA the same function is traced again.
    assert "VitAttention" in compiled_ops(tf.function(under_xla), *arguments)


@pytest.mark.usefixtures("without_xla_library")
@pytest.mark.parametrize("jit", [True, False])
def test_xla_is_noticed_from_inside(jit):
    inner = tf.function(lambda x: custom_ops.attention(x, 3))

    def looped(qkv):
        (qkv,) = tf.while_loop(
            lambda x: tf.reduce_sum(x) > 1e9,
            lambda x: (tf.tile(inner(x), [1, 1, 3]),),
            (qkv,),
            maximum_iterations=2,
        )
        return tf.cond(tf.reduce_sum(qkv) > 0, lambda: inner(qkv), lambda: inner(-qkv))

    function = tf.function(looped, jit_compile=jit)
    assert compiled_ops(function, draw([2, 9, 36])) == (set() if jit else {"VitAttention"})
    assert function(draw([2, 9, 36])).shape == [2, 9, 12]


def test_nothing_is_left_in_the_graph_that_was_asked_about_xla():
    def nothing(x):
        custom_ops.attention(x, 3)
        return x

    graph = tf.function(nothing).get_concrete_function(draw([2, 9, 36])).graph
    assert {op.type for op in graph.get_operations()} <= {"Placeholder", "Identity", "VitAttention"}


@pytest.mark.usefixtures("without_xla_library")
@pytest.mark.parametrize("ask", ["argument", "context", "environment"])
def test_compiled_ops_that_xla_cannot_compile_are_refused(ask, monkeypatch):
    call = asks_for_compiled(ask, monkeypatch)
    with pytest.raises(ValueError, match="kernels for XLA.*Build"):
        tf.function(call, jit_compile=True)(draw([2, 9, 36]))
    assert call(draw([2, 9, 36])).shape == [2, 9, 12]


def test_tpus_take_the_reference(monkeypatch):
    for kind in (tf.distribute.TPUStrategy, tf.distribute.experimental.TPUStrategy):
        strategy = object.__new__(kind)
        monkeypatch.setattr(tf.distribute, "get_strategy", lambda strategy=strategy: strategy)
        function = tf.function(lambda x: custom_ops.attention(x, 3))
        assert compiled_ops(function, draw([2, 9, 36])) == set()
        with pytest.raises(ValueError, match="no kernels for TPUs"):
            custom_ops.attention(draw([2, 9, 36]), 3, implementation="compiled")


def with_archs(monkeypatch, *archs):
    """The state of a process whose libraries have kernels for these GPUs, on a machine with one."""
    state = loader.library()
    xla = dataclasses.replace(state.xla, cuda_archs=archs)
    monkeypatch.setattr(loader, "_library", dataclasses.replace(state, xla=xla, cuda_archs=archs))
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])


def on(device, implementation=None, jit_compile=None):
    def call(x):
        with tf.device(device):
            return custom_ops.attention(x, 3, implementation=implementation)

    return compiled_ops(tf.function(call, jit_compile=jit_compile), draw([2, 9, 36]))


@pytest.mark.parametrize("archs", [(), ("90a", "PTX")])
def test_with_a_gpu_only_what_is_put_on_a_cpu_is_compiled(monkeypatch, archs):
    with_archs(monkeypatch, *archs)
    assert on(None) == on("GPU:0") == set()
    assert on("CPU:0") == on("/job:localhost/device:CPU:1") == {"VitAttention"}


def test_kernels_for_gpus_are_chosen_by_name_where_the_library_has_them(monkeypatch):
    with_archs(monkeypatch, "90a", "PTX")
    assert on(None, "compiled") == on("GPU:0", "compiled") == {"VitAttention"}
    assert on("GPU:0", "compiled", jit_compile=True) == {"VitAttention"}
    # In a graph without devices an op is placed on a GPU if there is one.
    with tf.Graph().as_default():
        assert dispatch.supports_jit("compiled")
        with pytest.raises(ValueError, match="'compiled'.*op on GPUs"):
            dispatch.ops_for("compiled", has_cuda=False)
        assert dispatch.ops_for(None, has_cuda=False) is None
    with_archs(monkeypatch)
    message = "GPUs.*without CUDA.*Install"
    with pytest.raises(ValueError, match=message):
        on("GPU:0", "compiled")
    with tf.Graph().as_default():
        assert not dispatch.supports_jit("compiled") and dispatch.supports_jit()


FLOAT64 = {
    "attention": lambda x: custom_ops.attention(x[0], 3),
    "taps": lambda x: custom_ops.attention_with_taps(x[0], 3, ("entropy",))[1],
    "an axis": lambda x: custom_ops.axial_attention(x, 3, 1),
    "kernel": lambda x: custom_ops.patch_embed(draw([1, 4, 4, 1]), x[:2, :2, :1], x[0, 0, 0]),
    "images": lambda x: custom_ops.patch_embed(x, draw([2, 2, 36, 5]), draw([5])),
}


@pytest.mark.parametrize("call", FLOAT64)
def test_float64_takes_the_reference_on_gpus(monkeypatch, call):
    with_archs(monkeypatch, "90a", "PTX")

    def run(x, device):
        with tf.device(device), custom_ops.implementation("compiled"):
            return FLOAT64[call](x)

    for jit in (None, True):
        function = tf.function(run, jit_compile=jit)
        x = draw([2, 2, 9, 36], "float64")
        assert compiled_ops(function, x, "GPU:0") == compiled_ops(function, x, None) == set()
        assert compiled_ops(function, x, "CPU:0")


@pytest.mark.process
def test_import_is_light_even_with_an_illegal_environment():
    run_python("light_import.py", cold=True)
