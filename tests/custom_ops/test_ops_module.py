"""The kernels as Python modules: for CPUs, which need no TensorFlow, and for GPUs."""

import importlib
import importlib.util
import os

import ml_dtypes
import numpy as np
import pytest

from tests.custom_ops import instruction_sets, oracle
from tests.custom_ops.process import run_python

HEADS, SIZE = 3, 5
SHAPE = (2, 19, 3 * HEADS * SIZE)


@pytest.fixture
def kernels():
    """The module for CPUs; restores its instruction set."""
    from custom_ops import _vit_kernels

    yield _vit_kernels
    _vit_kernels.choose_isa(os.environ.get("VIT_ISA", ""))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.mark.process
def test_the_module_computes_in_a_process_that_cannot_import_tensorflow():
    assert run_python("module_alone.py", cold=True) == "computed\n"


@pytest.mark.process
def test_every_function_refuses_an_unknown_vit_isa():
    said = run_python("module_of_unknown_isa.py", cold=True, VIT_ISA="avx999")
    assert said.splitlines() == ["8 functions refuse"]


@pytest.mark.parametrize(
    ("dtype", "close"),
    [("float64", 1e-14), ("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 2e-2)],
)
def test_attention_and_taps_are_those_of_the_definition(kernels, rng, dtype, close):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    bias = rng.normal(size=(HEADS, 19, 19))
    qkv = rng.normal(size=SHAPE).astype(dtype)
    expected, weights, _ = oracle.attention(qkv.astype(np.float64), HEADS, bias)
    out, statistics = kernels.attention(qkv, HEADS, bias=bias, threads=2)
    assert out.dtype == dtype and np.abs(out.astype(np.float64) - expected).max() < close
    taps = kernels.attention_taps(qkv, HEADS, statistics, bias=bias, grid=(3, 6))
    assert np.abs(taps["class_row"] - weights[:, :, 0]).max() < close
    assert np.abs(taps["entropy"] - oracle.entropy(weights)).max() < 10 * close
    assert np.abs(taps["distance"] - oracle.distance(weights, (3, 6))).max() < 10 * close


@pytest.mark.parametrize("scale", [None, 4 / np.sqrt(SIZE)])
def test_gradients_and_taps_have_the_scale_of_the_call(kernels, rng, scale):
    qkv, bias = rng.normal(size=SHAPE), rng.normal(size=(HEADS, 19, 19))
    d_out = rng.normal(size=(2, 19, HEADS * SIZE))
    expected, weights, backward = oracle.attention(qkv, HEADS, bias, scale)
    out, statistics = kernels.attention(qkv, HEADS, bias=bias, scale=scale)
    given = {"bias": bias, "scale": scale}
    found = [
        out,
        kernels.attention_gradient(qkv, HEADS, out, statistics, d_out, **given),
        kernels.attention_bias_gradient(qkv, HEADS, out, statistics, d_out, **given),
        kernels.attention_taps(qkv, HEADS, statistics, **given)["entropy"],
    ]
    wanted = [expected, *backward(d_out), oracle.entropy(weights)]
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and np.abs(one - other).max() < 1e-13


def test_a_bias_of_one_number_has_a_gradient_of_one_number(kernels, rng):
    qkv, d_out = rng.normal(size=SHAPE), rng.normal(size=(2, 19, HEADS * SIZE))
    out, statistics = kernels.attention(qkv, HEADS, bias=np.array(0.5))
    arguments = (qkv, HEADS, out, statistics, d_out)
    gradient = kernels.attention_bias_gradient(*arguments, bias=np.array(0.5))
    assert gradient.shape == () and abs(gradient) < 1e-12


@pytest.mark.parametrize("axis", [1, 2])
def test_attention_along_an_axis_is_that_of_its_lines(kernels, rng, axis):
    grid = rng.normal(size=(2, 3, 4, 6))
    out, _ = kernels.attention(grid, 1, axis=axis)
    expected, _ = oracle.axial_attention(grid, 1, axis)
    assert out.shape == expected.shape and np.abs(out - expected).max() < 1e-14


@pytest.mark.parametrize("threads", [2, 3, 1024])
def test_the_number_of_threads_changes_no_bit(kernels, rng, threads):
    # Work that is worth a second thread.
    qkv = rng.normal(size=(4, 197, 3 * 128)).astype(np.float32)
    images = rng.integers(0, 256, size=(8, 112, 112, 3), dtype=np.uint8)
    kernel = rng.normal(size=(16, 16, 3, 192)).astype(np.float32)
    table = rng.normal(size=192).astype(np.float32)
    found = []
    for count in (1, threads):
        out, statistics = kernels.attention(qkv, 2, threads=count)
        gradient = kernels.attention_gradient(qkv, 2, out, statistics, out, threads=count)
        found.append([out, gradient, kernels.patch_embed(images, kernel, table, threads=count)])
    for one, many in zip(*found, strict=True):
        assert one.tobytes() == many.tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_subnormal_numbers_are_0_with_every_instruction_set(kernels, dtype):
    tiny, finest = np.finfo(dtype), -np.log(np.finfo(dtype).smallest_normal)
    half = np.array(tiny.smallest_normal / 2, dtype)
    values = np.full((4, 197, 3 * 128), half)  # Work that is worth a second thread.
    # Of two keys, the second one has a weight of about a quarter of the smallest normal number.
    weighted = np.zeros((1, 2, 3), dtype)
    weighted[0, :, 0], weighted[0, 1] = 1, (1, -(finest + np.log(4)), tiny.max / 2**10)
    for name in instruction_sets.here():
        kernels.choose_isa(name)
        assert not kernels.attention(values, 2, threads=2)[0].any()
        assert not kernels.attention(weighted, 1, scale=1.0)[0].any()
        assert kernels.extract_patches(values[None, :2, :2, :3], 2).all()
        # They are numbers again in the caller's thread.
        assert half * np.array(1, dtype) > 0


def test_patches_tokens_and_their_gradients_are_those_of_the_definition(kernels, rng):
    images = rng.integers(0, 256, size=(2, 9, 8, 3), dtype=np.uint8)
    kernel, table = rng.normal(size=(4, 4, 3, 7)), rng.normal(size=(5, 7))
    patches = kernels.extract_patches(images, 4)
    assert (patches == oracle.extract_patches(images, 4)[0]).all()
    assert (kernels.extract_patches(images.astype(">i4"), 4) == patches).all()
    options = {"scale": 2 / 255, "offset": -1}
    tables = {"prefix": table[:1], "position": table}
    tokens = kernels.patch_embed(images, kernel, table[0], **tables, **options)
    expected, backward = oracle.patch_embed(images, kernel, table[0], **tables, **options)
    assert np.abs(tokens - expected).max() < 1e-12
    gradients = kernels.patch_embed_gradient(images, kernel, expected, prefix=1, **options)
    assert sorted(gradients) == ["bias", "kernel", "position", "prefix"]
    for name, gradient in gradients.items():
        wanted = backward(expected)[name]
        assert gradient.shape == wanted.shape and np.abs(gradient - wanted).max() < 1e-10, name


def test_arrays_that_are_not_aligned_to_their_elements_are_copied(kernels, rng):
    given = {"qkv": rng.normal(size=SHAPE), "bias": rng.normal(size=(HEADS, 19, 19))}
    expected, _ = kernels.attention(given["qkv"], HEADS, bias=given["bias"])
    for name, array in given.items():
        odd = np.zeros(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
        odd[...] = array
        assert not odd.flags.aligned
        found, _ = kernels.attention(
            **(given | {name: odd} if name == "qkv" else {"qkv": given["qkv"], "bias": odd}),
            num_heads=HEADS,
        )
        np.testing.assert_array_equal(found, expected)


def test_an_instruction_set_is_never_replaced_by_another_one(kernels):
    assert kernels.available_isas() == instruction_sets.here()
    for name in instruction_sets.here():
        kernels.choose_isa(name)
        assert kernels.isa() == name
    with pytest.raises(ValueError, match=r"choose_isa\('avx999'\)"):
        kernels.choose_isa("avx999")
    assert kernels.isa() == name
    kernels.choose_isa("")
    assert kernels.isa() in kernels.available_isas()[-2:]


# Calls of m, the module, with one wrong argument each, and the message.
WRONG = {
    "m.attention([[1.0]], 1)": "qkv must be a NumPy array",
    "m.attention(big_endian, 1)": "byte order",
    "m.attention(one, 1, bias=big_endian[0, 0, :1])": "bias has dtype",
    "m.attention(one, 1, axis='x')": "axis must be",
    "m.attention(one, 1, axis=0)": "axis must be",
    "m.attention(one, 1, axis=3)": "axis must be",
    "m.attention(one, 1, scale='x')": "scale must be",
    "m.attention(one, 1, scale=0)": r"scale .*: 0\.",
    "m.attention(one, 1, scale=-2.5)": r"scale .*: -2\.5\.",
    "m.attention(one, 1, scale=np.inf)": r"scale .*: inf\.",
    "m.attention(one, 1, scale=np.nan)": r"scale .*: nan\.",
    "m.attention(one.astype('f4'), 1, scale=1e-40)": "scale must be",
    "m.attention(one, 0)": "num_heads.*1.*: 0",
    "m.attention(np.ones((1, 2, 7)), 1)": "multiple of 3",
    "m.attention(one.astype(int), 1)": "int64",
    "m.attention(one, 1, bias=np.ones(3))": "broadcast to",
    "m.attention_gradient(qkv, 3, out.astype('f4'), statistics, out)": "out has .* like qkv",
    "m.attention_gradient(qkv, 3, out, statistics.astype('f4'), out)": "float32, .* forward pass",
    "m.attention_bias_gradient(qkv, 3, out, statistics, out, bias=None)": "needs a bias",
    "m.attention_taps(qkv, 3, statistics, scale=-1)": "scale must be",
    "m.attention_taps(qkv, 3, statistics, grid=4)": "grid must be",
    "m.attention_taps(qkv, 3, statistics, grid=('a', 4))": "grid must be",
    "m.attention_taps(qkv, 3, statistics, grid=(4, 5))": "4 x 5 has more.* 19",
    "m.attention_taps(qkv, 3, statistics[:1])": "statistics.*1, 3, 2, 19",
    "m.patch_embed(big_endian[..., None], kernel, table)": "byte order",
    "m.patch_embed(images, kernel[:3], table)": "kernel.*3, 4, 3, 7",
    "m.patch_embed(images, kernel, table[:6])": r"bias.*\[6\], .*\[7\]",
    "m.patch_embed(images, kernel, None)": "bias must.*NoneType",
    "m.patch_embed(images, np.ones((9, 9, 3, 7)), table)": "9 x 8 .*9 x 9",
    "m.patch_embed_gradient(images, kernel, out)": "d_tokens.*2, 4, 7",
    "m.patch_embed_gradient(images, kernel, out, prefix=-1)": "prefix.*: -1",
    "m.extract_patches(images, 0)": "patch_size.*1.*: 0",
    "m.extract_patches(images[0], 2)": "images.*B, H, W, C",
    "m.extract_patches(objects, 2)": "Python objects",
    "m.extract_patches(objects.astype([('a', object)]), 2)": "Python objects",
    "m.extract_patches(images, 10)": "9 x 8 .*10 x 10",
    "m.attention(one, 1, threads=-1)": r"threads.*1024\..*: -1\.",
    "m.attention_taps(qkv, 3, statistics, threads=10**6)": r"threads.*: 1000000\.",
    "m.extract_patches(images, 3, threads=1025)": r"threads.*: 1025\.",
    "m.patch_embed(images, kernel, table, threads=2**31 - 1)": r"threads .* 2147483647\.",
    "m.attention(one, 1, threads=2**70)": "threads.*: 1180591620717",
    "m.attention(one, 1, threads='all')": r"threads.*: 'all'\.",
    "m.attention(one, 1, threads=1.5)": r"threads.*: 1\.5\.",
}


@pytest.mark.parametrize("call", WRONG)
def test_a_wrong_argument_is_refused(kernels, call):
    given = {"m": kernels, "np": np, "one": np.ones((1, 2, 6))}
    given |= {"qkv": np.zeros(SHAPE), "statistics": np.zeros((2, HEADS, 2, 19))}
    given |= {"out": np.zeros((2, 19, HEADS * SIZE))}
    given |= {"images": np.zeros((2, 9, 8, 3), np.uint8), "kernel": np.zeros((4, 4, 3, 7))}
    given |= {"table": np.zeros(7), "big_endian": np.ones((1, 2, 6), ">f4")}
    given |= {"objects": np.full((1, 4, 4, 1), None)}
    with pytest.raises(ValueError, match=WRONG[call]):
        eval(call, given)


@pytest.mark.parametrize(
    "dtype", ["int8", "int32", "uint8", "bool", "complex64", "float8_e4m3fn", "float8_e5m2"]
)
def test_a_dtype_without_kernels_is_named_and_not_read_as_another_one(kernels, dtype):
    other = np.dtype(getattr(ml_dtypes, dtype, dtype))
    qkv = np.ones((1, 2, 6), np.float32)
    images, kernel, table = np.ones((2, 9, 8, 3)), np.ones((4, 4, 3, 7)), np.ones(7)
    calls = {
        "qkv": lambda: kernels.attention(qkv.astype(other), 1),
        "bias": lambda: kernels.attention(qkv, 1, bias=np.ones(2, other)),
        "kernel": lambda: kernels.patch_embed(images, kernel.astype(other), table),
        "images": lambda: kernels.patch_embed(images.astype(other), kernel, table),
    }
    for name in calls.keys() - ({"images"} if dtype == "uint8" else set()):
        with pytest.raises(ValueError, match=f"{name} .* {dtype}. Cast"):
            calls[name]()


@pytest.fixture
def cuda():
    """The module of the kernels for GPUs. Its checks of arguments need no GPU."""
    name = "custom_ops._vit_cuda"
    if importlib.util.find_spec(name) is None:
        pytest.skip("_vit_cuda is not built; custom_ops.build_ops builds it with nvcc and pybind11")
    return importlib.import_module(name)


# Calls with one wrong argument each, and the message. m is the module, a(*shape, dtype) an array,
# whose address nobody reads.
WRONG_FOR_GPUS = {
    "a(2, -1)": r"0.*: \[2, -1\]",
    "a(0, 2**62, 2**20)": r"less than 2\^63 bytes",
    "m.Array(0, [2], 'float32')": "address must not be 0",
    "m.Array(258, [2], 'float32')": "258 .*aligned.*float32",
    "a(2, dtype='float8')": "dtype float8 is unknown",
    "m.Attention(a(5, 36), 3)": r"qkv.*N, 3 D.* \[5, 36\]",
    "m.Attention(a(2, 5, 36, dtype='int32'), 3)": "qkv.*int32.*float16",
    "m.Attention(a(2, 5, 36, dtype='float64'), 3)": "qkv.*float64.*float32",
    "m.PatchEmbed(a(2, 8, 9, 3, dtype='float64'), kernel)": "images.*float64.*uint8",
    "m.PatchEmbed(images, a(4, 4, 3, 10, dtype='float64'))": "kernel.*float64.*float32",
    "m.Attention(qkv, 5)": "2, 5, 36.*num_heads = 5",
    "m.Attention(qkv, 2**62)": "= 4611686018427387904",
    "m.Attention(qkv, 3, axis=1)": "qkv.*R, C, 3 D",
    "m.Attention(qkv, 3, scale=-1)": "scale.*float32.*: -1",
    "m.Attention(qkv, 3, bias=a(5, 4))": "bias.*5, 4.*2, 3, 5, 5",
    "m.Attention(qkv, 3, bias=a(5, dtype='bfloat16'))": "bias.*bfloat16.*float32",
    "m.Attention(grid, 3, axis=1).taps(run, statistics)": "without an axis.*= 1",
    "plain.forward(run, qkv, statistics)": "out is.*2, 5, 36.*2, 5, 12",
    "plain.forward(run, a(2, 5, 12), statistics)": "out is float32.*bfloat16",
    "plain.forward(run, out, out)": "statistics is bfloat16",
    "plain.forward(run, out, a(2, 3, 5))": "statistics.*2, 3, 2, 5",
    "plain.gradient(run, out, statistics, out, out)": "d_qkv.*2, 5, 12.*2, 5, 36",
    "plain.bias_gradient(run, out, statistics, out, a())": "no bias",
    "plain.taps(run, statistics, distance=a(2, 3))": "grid.*: None",
    "plain.taps(run, statistics, entropy=a(2))": r"entropy.*\[2\].*2, 3",
    "m.PatchEmbed(images, a(4, 2, 3, 10))": "kernel.*4, 2, 3, 10",
    "m.PatchEmbed(images, a(9, 9, 3, 10))": "8 x 9 .*9 x 9",
    "m.PatchEmbed(images, kernel, prefix=-1)": "prefix.*tokens",
    "patches.forward(run, a(10), a(2, 5, 10))": "prefix.*: None",
    "patches.forward(run, a(10), a(2, 5, 10), prefix=a(2, 10))": r"prefix has .* = \[1, 10\]",
    "patches.forward(run, a(9), a(2, 5, 10), prefix=a(1, 10))": r"bias has.*= \[10\]",
    "patches.gradient(run, a(2, 4, 10), kernel=kernel)": "d_tokens.*2, 5, 10",
    "patches.gradient(run, a(2, 5, 10), kernel=kernel, bias=a(9))": r"d_bias is .* \[10\]",
    "patches.gradient(run, a(2, 5, 10), images=images)": "uint8 have no gradient",
    "patches.gradient(run, a(2, 5, 10), position=a(4, 10))": "d_position.*5, 10",
    "m.extract_patches(run, images, a(2, 4, 48), 4)": "patches.*like images",
    "m.extract_patches(run, images, images, 10)": "8 x 9 .*10 x 10",
    "m.restore_patches(run, a(2, 3, 48), a(2, 8, 9, 3), 4)": "patches.*2, 4, 48",
}


@pytest.mark.parametrize("call", WRONG_FOR_GPUS)
def test_the_module_for_gpus_checks_arguments_before_any_work(cuda, call):
    def array(*shape, dtype="float32"):
        return cuda.Array(256, list(shape), dtype)

    def allocate(size):
        raise AssertionError("work has started")

    given = {"m": cuda, "a": array, "run": cuda.Execution(0, allocate)}
    given["qkv"] = array(2, 5, 36, dtype="bfloat16")
    given["out"], given["statistics"] = array(2, 5, 12, dtype="bfloat16"), array(2, 3, 2, 5)
    given["plain"] = cuda.Attention(given["qkv"], 3)
    given["grid"] = array(2, 5, 4, 36)
    given["images"], given["kernel"] = array(2, 8, 9, 3, dtype="uint8"), array(4, 4, 3, 10)
    given["patches"] = cuda.PatchEmbed(given["images"], given["kernel"], prefix=1)
    with pytest.raises(ValueError, match=WRONG_FOR_GPUS[call]):
        eval(call, given)
