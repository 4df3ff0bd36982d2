"""The kernels as Python modules: for CPUs in a process that cannot import TensorFlow; for GPUs."""

import importlib
import importlib.util

import pytest

from tests.custom_ops.process import run_python

PROGRAM = """
import sys
sys.modules["tensorflow"] = None  # An import of it fails.

import os

import ml_dtypes
import numpy as np

from custom_ops import _vit_kernels as kernels

rng = np.random.default_rng(0)
BATCH, TOKENS, HEADS, SIZE = 2, 19, 3, 5


def oracle(qkv, bias):
    q, k, v = np.moveaxis(qkv.reshape(BATCH, TOKENS, 3, HEADS, SIZE), (2, 3), (0, 2))
    logits = q @ k.swapaxes(-1, -2) / np.sqrt(SIZE) + bias
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights, (weights @ v).swapaxes(1, 2).reshape(BATCH, TOKENS, HEADS * SIZE)


bias = rng.normal(size=(HEADS, TOKENS, TOKENS))
for dtype, close in (("float64", 1e-14), ("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 2e-2)):
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    qkv = rng.normal(size=(BATCH, TOKENS, 3 * HEADS * SIZE)).astype(dtype)
    weights, expected = oracle(qkv.astype(np.float64), bias)
    out, statistics = kernels.attention(qkv, HEADS, bias=bias, threads=2)
    assert out.dtype == dtype and np.abs(out.astype(np.float64) - expected).max() < close
    alone, _ = kernels.attention(qkv, HEADS, bias=bias, threads=1)
    assert out.tobytes() == alone.tobytes()
    taps = kernels.attention_taps(qkv, HEADS, statistics, bias=bias, grid=(3, 6))
    assert np.abs(taps["class_row"] - weights[:, :, 0]).max() < close
    entropy = -(weights * np.log(weights)).sum(-1).mean(-1)
    assert np.abs(taps["entropy"] - entropy).max() < 10 * close
    assert taps["distance"].shape == (BATCH, HEADS)

# The default scale, and another one, which is as much as q times it.
def attention_and_gradient(qkv, **scale):
    out, statistics = kernels.attention(qkv, HEADS, bias=bias, **scale)
    arguments = (qkv, HEADS, out, statistics, out)
    return (
        out,
        kernels.attention_gradient(*arguments, bias=bias, **scale),
        kernels.attention_bias_gradient(*arguments, bias=bias, **scale),
        kernels.attention_taps(qkv, HEADS, statistics, bias=bias, **scale)["entropy"],
    )


qkv = rng.normal(size=(BATCH, TOKENS, 3 * HEADS * SIZE))
default = attention_and_gradient(qkv)
for found, expected in zip(
    attention_and_gradient(qkv, scale=1 / np.sqrt(SIZE)), default, strict=True
):
    assert found.tobytes() == expected.tobytes()
times = np.repeat([4.0, 1.0, 1.0], HEADS * SIZE)
scaled = attention_and_gradient(qkv, scale=4 / np.sqrt(SIZE))
assert np.abs(scaled[0] - default[0]).max() > 0.1
for x, y in zip(scaled, attention_and_gradient(qkv * times), strict=True):
    y = y * times if y.shape == qkv.shape else y
    assert np.abs(x - y).max() < 1e-13

# Work that is worth a second thread: the same bits.
qkv = rng.normal(size=(4, 197, 3 * 128)).astype(np.float32)
images = rng.integers(0, 256, size=(8, 112, 112, 3), dtype=np.uint8)
kernel, table = (rng.normal(size=size).astype(np.float32) for size in ((16, 16, 3, 192), (192,)))
for threads in (2, 3):
    found = []
    for count in (1, threads):
        out, statistics = kernels.attention(qkv, 2, threads=count)
        arguments = (qkv, 2, out, statistics, out)
        tokens = kernels.patch_embed(images, kernel, table, threads=count)
        found.append((out, kernels.attention_gradient(*arguments, threads=count), tokens))
    for one, many in zip(*found, strict=True):
        assert one.tobytes() == many.tobytes()

# Gradients: a change of the input in a direction against the product of gradient and direction.
qkv = rng.normal(size=(BATCH, TOKENS, 3 * HEADS * SIZE))
d_out = rng.normal(size=(BATCH, TOKENS, HEADS * SIZE))
out, statistics = kernels.attention(qkv, HEADS, bias=bias)
arguments = (qkv, HEADS, out, statistics, d_out)
for name, x, gradient in (
    ("qkv", qkv, kernels.attention_gradient(*arguments, bias=bias)),
    ("bias", bias, kernels.attention_bias_gradient(*arguments, bias=bias)),
):
    assert gradient.shape == x.shape
    direction = 1e-6 * rng.normal(size=x.shape)
    ends = [{"qkv": qkv, "bias": bias} | {name: x + sign * direction} for sign in (1, -1)]
    above, below = (kernels.attention(e["qkv"], HEADS, bias=e["bias"])[0] for e in ends)
    slope = ((above - below) * d_out).sum() / 2
    assert abs(slope - (gradient * direction).sum()) < 1e-5 * abs(slope) + 1e-13

# Attention along an axis is that of its lines.
grid = rng.normal(size=(2, 3, 4, 6)).astype(np.float32)
rows, _ = kernels.attention(grid, 1, axis=2)
lines, _ = kernels.attention(grid.reshape(6, 4, 6), 1)
assert rows.tobytes() == lines.tobytes()
columns, _ = kernels.attention(grid, 1, axis=1)
lines, _ = kernels.attention(grid.swapaxes(1, 2).reshape(8, 3, 6), 1)
assert columns.swapaxes(1, 2).tobytes() == lines.tobytes()

images = rng.integers(0, 256, size=(2, 9, 8, 3), dtype=np.uint8)
kernel, table = rng.normal(size=(4, 4, 3, 7)), rng.normal(size=(5, 7))
patches = kernels.extract_patches(images, 4)
blocks = images[:, :8].reshape(2, 2, 4, 2, 4, 3).swapaxes(2, 3).reshape(2, 4, 48)
assert (patches == blocks).all()
tokens = kernels.patch_embed(
    images, kernel, table[0], scale=2 / 255, offset=-1, prefix=table[:1], position=table
)
embedded = (blocks * (2 / 255) - 1) @ kernel.reshape(48, 7) + table[0] + table[1:]
assert np.abs(tokens[:, 1:] - embedded).max() < 1e-12
assert np.abs(tokens[:, 0] - 2 * table[0]).max() < 1e-12
gradients = kernels.patch_embed_gradient(images, kernel, tokens, scale=2 / 255, offset=-1, prefix=1)
assert sorted(gradients) == ["bias", "kernel", "position", "prefix"]
inputs = (blocks * (2 / 255) - 1).reshape(8, 48)
expected = inputs.T @ tokens[:, 1:].reshape(8, 7)
assert np.abs(gradients["kernel"].reshape(48, 7) - expected).max() < 1e-10
assert np.abs(gradients["bias"] - tokens[:, 1:].sum((0, 1))).max() < 1e-10

# A bias of one number has a gradient of one number.
scalar = np.array(0.5)
out, statistics = kernels.attention(qkv, HEADS, bias=scalar)
d_bias = kernels.attention_bias_gradient(qkv, HEADS, out, statistics, d_out, bias=scalar)
assert d_bias.shape == () and abs(d_bias) < 1e-12

big_endian, objects = np.ones((1, 2, 6), ">f4"), np.full((1, 4, 4, 1), None)
assert (kernels.extract_patches(images.astype(">i4"), 4) == patches).all()
for call, text in (
    (lambda: kernels.attention([[1.0]], 1), "qkv must be a NumPy array"),
    (lambda: kernels.attention(big_endian, 1), "byte order"),
    (
        lambda: kernels.attention(big_endian.astype("f4"), 1, bias=big_endian[0, 0, :1]),
        "bias has dtype",
    ),
    (lambda: kernels.attention(np.ones((1, 2, 6)), 1, axis="x"), "axis must be"),
    (lambda: kernels.attention(np.ones((1, 2, 6)), 1, axis=0), "axis must be"),
    (lambda: kernels.attention(np.ones((1, 2, 6)), 1, scale="x"), "scale must be"),
    (lambda: kernels.attention(np.ones((1, 2, 6)), 1, scale=0), "Received: 0."),
    (lambda: kernels.attention(np.ones((1, 2, 6)), 1, scale=-2.5), "Received: -2.5."),
    (lambda: kernels.attention(np.ones((1, 2, 6)), 1, scale=np.inf), "Received: inf."),
    (lambda: kernels.attention(np.ones((1, 2, 6)), 1, scale=np.nan), "Received: nan."),
    (lambda: kernels.attention(np.ones((1, 2, 6), "f4"), 1, scale=1e-40), "scale must be"),
    (lambda: kernels.attention_taps(qkv, HEADS, statistics, scale=-1), "scale must be"),
    (lambda: kernels.attention_taps(qkv, HEADS, statistics, grid=4), "grid must be"),
    (lambda: kernels.attention_taps(qkv, HEADS, statistics, grid=("a", 4)), "grid must be"),
    (lambda: kernels.patch_embed(big_endian[..., None], kernel, table[0]), "byte order"),
    (lambda: kernels.extract_patches(objects, 2), "Python objects"),
    (lambda: kernels.extract_patches(objects.astype([("a", object)]), 2), "Python objects"),
    (lambda: kernels.attention(np.ones((1, 2, 7)), 1), "multiple of 3"),
    (lambda: kernels.attention(np.ones((1, 2, 6), int), 1), "int64"),
    (lambda: kernels.attention(np.ones((1, 2, 6)), 1, axis=3), "axis must be"),
    (lambda: kernels.attention(np.ones((1, 2, 6)), 1, bias=np.ones(3)), "broadcast to"),
    (lambda: kernels.attention_taps(qkv, HEADS, statistics, grid=(4, 5)), "grid must be"),
    (lambda: kernels.attention_taps(qkv, HEADS, statistics[:1]), "statistics must have"),
    (lambda: kernels.patch_embed(images, kernel[:3], table[0]), "kernel must be"),
    (lambda: kernels.patch_embed(images, kernel, table[0, :6]), "bias must have shape"),
    (lambda: kernels.extract_patches(images, 10), "patch_size=10"),
):
    try:
        call()
    except ValueError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

# A dtype without kernels is named; it is not read as another one.
floats = np.ones((1, 2, 6), np.float32)
for dtype in ("int8", "int32", "uint8", "bool", "complex64", "float8_e4m3fn", "float8_e5m2"):
    other = np.dtype(getattr(ml_dtypes, dtype, dtype))
    for name, call in (
        ("qkv", lambda: kernels.attention(floats.astype(other), 1)),
        ("bias", lambda: kernels.attention(floats, 1, bias=np.ones(2, other))),
        ("kernel", lambda: kernels.patch_embed(images, kernel.astype(other), table[0])),
        ("images", lambda: kernels.patch_embed(images.astype(other), kernel, table[0])),
    ):
        if (name, dtype) == ("images", "uint8"):
            continue
        try:
            call()
        except ValueError as error:
            assert f"{name} has dtype {dtype}. Cast it to " in str(error), error
        else:
            raise AssertionError((name, dtype))

# Arrays that are not aligned to their element type are copied.
for array in (qkv, bias):
    buffer = np.zeros(array.nbytes + 1, np.uint8)
    odd = buffer[1:].view(array.dtype).reshape(array.shape)
    odd[...] = array
    assert not odd.flags.aligned
    given = {"qkv": qkv, "bias": bias, "qkv" if array is qkv else "bias": odd}
    again, _ = kernels.attention(given["qkv"], HEADS, bias=given["bias"])
    np.testing.assert_array_equal(again, kernels.attention(qkv, HEADS, bias=bias)[0])

# An instruction set that is not there is never replaced by another one in silence.
for name in kernels.available_isas():
    kernels.choose_isa(name)
    assert kernels.isa() == name
try:
    kernels.choose_isa("avx999")
except ValueError as error:
    assert "choose_isa('avx999'): This instruction set is unknown" in str(error), error
else:
    raise AssertionError("avx999 was accepted")
assert kernels.isa() == name
kernels.choose_isa("")
assert kernels.isa() in kernels.available_isas()[-2:]
print("done")
"""


@pytest.mark.process
def test_the_module_computes_and_checks_without_tensorflow():
    assert run_python(PROGRAM) == "done\n"


WRONG_ISA = """
import numpy as np
from custom_ops import _vit_kernels as kernels

qkv, kernel, table = np.zeros([1, 2, 6]), np.zeros([1, 1, 1, 2]), np.zeros(2)
images, tokens = np.zeros([1, 2, 2, 1]), np.zeros([1, 4, 2])
out, statistics = np.zeros([1, 2, 2]), np.zeros([1, 1, 2, 2])
gradient = (qkv, 1, out, statistics, out)
for call in (
    kernels.isa,
    lambda: kernels.attention(qkv, 1),
    lambda: kernels.attention_gradient(*gradient),
    lambda: kernels.attention_bias_gradient(*gradient, bias=np.float64(0)[None]),
    lambda: kernels.attention_taps(qkv, 1, statistics),
    lambda: kernels.patch_embed(images, kernel, table),
    lambda: kernels.patch_embed_gradient(images, kernel, tokens),
    lambda: kernels.extract_patches(images, 1),
):
    try:
        call()
    except ValueError as error:
        assert "VIT_ISA=avx999: This instruction set is unknown. Use one of" in str(error), error
    else:
        raise AssertionError("VIT_ISA is ignored")
print("done")
"""


@pytest.mark.process
def test_a_wrong_instruction_set_is_refused_by_every_function():
    assert run_python(WRONG_ISA, VIT_ISA="avx999") == "done\n"


@pytest.fixture
def cuda():
    """The module of the kernels for GPUs. Its checks of arguments need no GPU."""
    name = "custom_ops._vit_cuda"
    if importlib.util.find_spec(name) is None:
        pytest.skip("_vit_cuda is not built; custom_ops.build_ops builds it with nvcc and pybind11")
    return importlib.import_module(name)


# Calls with one wrong argument each, and the message. m is the module, a(*shape, dtype) an array,
# whose address nobody reads.
WRONG = {
    "a(2, -1)": r"at least 0.* Received: \[2, -1\]",
    "a(0, 2**62, 2**20)": r"less than 2\^63 bytes",
    "m.Array(0, [2], 'float32')": "address must not be 0",
    "m.Array(258, [2], 'float32')": "258 is not aligned to the elements, float32",
    "a(2, dtype='float8')": "dtype float8 is unknown",
    "m.Attention(a(5, 36), 3)": r"qkv must be \[B, N, 3 D\].* \[5, 36\]",
    "m.Attention(a(2, 5, 36, dtype='int32'), 3)": "qkv has dtype int32. Cast it to float16",
    "m.Attention(qkv, 5)": "36, must be a positive multiple of 3 \\* num_heads.* num_heads=5",
    "m.Attention(qkv, 2**62)": "num_heads=4611686018427387904",
    "m.Attention(qkv, 3, axis=1)": r"qkv must be \[B, R, C, 3 D\]",
    "m.Attention(qkv, 3, scale=-1)": "scale must be None or a number, .* Received: -1",
    "m.Attention(qkv, 3, bias=a(5, 4))": r"broadcast to \[2, 3, 5, 5\].* \[5, 4\]",
    "m.Attention(qkv, 3, bias=a(5, dtype='bfloat16'))": "bias has dtype bfloat16, .* float32",
    "plain.forward(run, qkv, statistics)": r"out must have shape \[2, 5, 12\]",
    "plain.forward(run, a(2, 5, 12), statistics)": "out has dtype float32, but qkv has bfloat16",
    "plain.forward(run, out, out)": "statistics must be .* float32. Received dtype: bfloat16",
    "plain.forward(run, out, a(2, 3, 5))": r"statistics must have shape \[2, 3, 2, 5\]",
    "plain.gradient(run, out, statistics, out, out)": r"d_qkv must have shape \[2, 5, 36\]",
    "plain.bias_gradient(run, out, statistics, out, a())": "no bias",
    "plain.taps(run, statistics, distance=a(2, 3))": "grid must be .* Received: None",
    "plain.taps(run, statistics, entropy=a(2))": r"entropy must have shape \[2, 3\]",
    "m.PatchEmbed(images, a(4, 2, 3, 10))": "kernel must be .* channels of images, 3",
    "m.PatchEmbed(images, a(9, 9, 3, 10))": "8 x 9 pixels hold no patch of 9 x 9",
    "m.PatchEmbed(images, kernel, prefix=-1)": "prefix must be a number of tokens",
    "patches.forward(run, a(10), a(2, 5, 10))": "prefix must have shape .* Received: None",
    "patches.forward(run, a(9), a(2, 5, 10), prefix=a(1, 10))": r"bias must have shape \[10\]",
    "patches.gradient(run, a(2, 5, 10), images=images)": "uint8 have no gradient",
    "patches.gradient(run, a(2, 5, 10), position=a(4, 10))": "position must have shape",
    "m.extract_patches(run, images, a(2, 4, 48), 4)": "patches has dtype float32, but images has",
    "m.extract_patches(run, images, images, 10)": "sides of at least patch_size=10",
    "m.restore_patches(run, a(2, 3, 48), a(2, 8, 9, 3), 4)": r"patches must have .* \[2, 4, 48\]",
}


@pytest.mark.parametrize("call", WRONG)
def test_the_module_for_gpus_checks_arguments_before_any_work(cuda, call):
    def array(*shape, dtype="float32"):
        return cuda.Array(256, list(shape), dtype)

    def allocate(size):
        raise AssertionError("work has started")

    given = {"m": cuda, "a": array, "run": cuda.Execution(0, allocate)}
    given["qkv"] = array(2, 5, 36, dtype="bfloat16")
    given["out"], given["statistics"] = array(2, 5, 12, dtype="bfloat16"), array(2, 3, 2, 5)
    given["plain"] = cuda.Attention(given["qkv"], 3)
    given["images"], given["kernel"] = array(2, 8, 9, 3, dtype="uint8"), array(4, 4, 3, 10)
    given["patches"] = cuda.PatchEmbed(given["images"], given["kernel"], prefix=1)
    with pytest.raises(ValueError, match=WRONG[call]):
        eval(call, given)
