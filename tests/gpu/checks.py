"""Checks of the kernels: against float64 oracles in NumPy, and PyTorch's own error.

The rule is that of the CPU kernels (`tests.tolerances`): an error is at most twice that of plain
PyTorch in the same dtype, plus roundings. Two runs must give the same bits, and every element of
an output must be written.
"""

import math

import numpy as np
import torch

from tests.custom_ops import oracle
from tests.gpu import plain
from tests.gpu.cases import Large, Patches
from tests.gpu.kernels import DEVICE
from tests.gpu.tolerance import compare
from tests.tolerances import EPSILON, MULTIPLE

# Products of q and k from which on plain PyTorch in float64 takes the place of the oracle, whose
# loops would take seconds.
LONG = 2_000_000


def check(case, kernels):
    """Runs a case.

    Args:
        case: one of `cases.checks`.
        kernels: `Kernels`.

    Returns:
        List of problems, one line each; empty if all is right.

    Raises:
        MemoryError: if the GPU has too little memory for the case.
    """
    if isinstance(case, Large):
        return _check_large(case, kernels)
    if isinstance(case, Patches):
        return (_check_patch_embed if case.op == "patch_embed" else _check_copies)(case, kernels)
    return (_check_taps if case.op == "taps" else _check_attention)(case, kernels)


class Draw:
    """Random numbers of a case, the same in every run, as tensors on the GPU."""

    def __init__(self, case):
        self._generator = np.random.default_rng(list(case.name.encode()))

    def normal(self, shape, dtype):
        return self.tensor(self._generator.normal(size=shape), dtype)

    def coarse(self, shape, dtype, scale):
        """Multiples of an eighth times a power of two: their products are summed exactly."""
        values = np.clip(self._generator.normal(size=shape), -4, 4)
        return self.tensor(scale * np.rint(8 * values) / 8, dtype)

    def bytes(self, shape):
        return torch.from_numpy(self._generator.integers(0, 256, shape, np.uint8)).to(DEVICE)

    @staticmethod
    def tensor(values, dtype):
        values = np.asarray(values, np.float64)
        return torch.from_numpy(values).to(getattr(torch, dtype)).to(DEVICE).contiguous()


def exact(tensor):
    return tensor.double().cpu().numpy()


def _inputs(case):
    """The projection, the bias or None, and the scale of the numbers."""
    draw, scale = Draw(case), 1.0
    shape = (*case.shape, 3 * case.heads * case.size)
    if case.form == "large":
        scale = 8.0 if case.dtype in ("float16", "bfloat16") else 1024.0
        qkv = draw.coarse(shape, case.dtype, scale)
    else:
        qkv = draw.normal(shape, case.dtype)
    if case.bias is None:
        return draw, qkv, None, scale
    bias = exact(draw.normal(case.bias, case.dtype))
    if case.form == "masked":
        bias[0, 0, 2] = bias[1, 2, 0] = bias[1, 2, -1] = -np.inf
        bias[:, 1] = -np.inf
        bias[0, 0, 3, 1:] = bias[1, 0, :, 4] = bias[0, 2, :, :17] = -np.inf
    return draw, qkv, draw.tensor(bias, "float32"), scale


def _check_attention(case, kernels):
    draw, qkv, bias, magnitude = _inputs(case)
    d_out = draw.normal((*case.shape, case.heads * case.size), case.dtype)
    arguments = qkv, case.heads, d_out, bias, case.axis, case.scale
    actual, again = kernels.attend(*arguments), kernels.attend(*arguments)
    ordinary = plain.attend(*arguments)
    out, d_qkv, d_bias = _expected_attention(case, qkv, bias, d_out)
    expected = {"out": (out, 0.0), "d_qkv": (d_qkv, magnitude if case.form == "large" else 0.0)}
    if bias is not None:
        expected["d_bias"] = (d_bias, _bias_magnitude(case, d_qkv, d_bias))
    problems = _different_bits(actual, again)
    if torch.isnan(actual["statistics"]).any():
        problems.append("statistics: NaN")
    for name, (array, size) in expected.items():
        found, usual = exact(actual[name]), exact(ordinary[name])
        problems += compare(name, found, usual, array, case.dtype, size)
    return problems


def _expected_attention(case, qkv, bias, d_out):
    """Out and the gradients of qkv and bias as float64 arrays; None without a bias."""
    products = math.prod(case.shape) * case.shape[case.axis or 1] * case.heads * case.size
    if products > LONG:
        wide = [None if x is None else x.double() for x in (qkv, bias, d_out)]
        found = plain.attend(wide[0], case.heads, wide[2], wide[1], case.axis, case.scale)
        return [exact(found[x]) if x in found else None for x in ("out", "d_qkv", "d_bias")]
    numbers = exact(qkv), None if bias is None else exact(bias)
    if case.axis is None:
        out, _, backward = oracle.attention(numbers[0], case.heads, numbers[1], case.scale)
    else:
        out, backward = oracle.axial_attention(
            numbers[0], case.heads, case.axis, numbers[1], case.scale
        )
    return out, *backward(exact(d_out))


def _bias_magnitude(case, d_qkv, d_bias):
    """The magnitude of the terms of the gradient of the bias, which cancel in part.

    They cancel to zero where a bias is the same for all keys, because it then has no effect. The
    remaining rounding error grows with the number of terms of the sum.
    """
    if not d_bias.size:
        return 0.0
    terms = 1.0
    if (d_bias.shape or (1,))[-1] == 1:
        terms = math.prod(case.shape) * case.heads * case.shape[case.axis or 1] / d_bias.size
    return np.abs(d_qkv).max(initial=0) * math.sqrt(terms)


def _check_taps(case, kernels):
    _, qkv, bias, _ = _inputs(case)
    rows = math.isqrt(case.shape[1])
    grid = rows, case.shape[1] // rows
    found, again = (kernels.taps(qkv, case.heads, grid, bias, case.scale) for _ in range(2))
    exact_bias = None if bias is None else exact(bias)
    _, weights, _ = oracle.attention(exact(qkv), case.heads, exact_bias, case.scale)
    expected = {
        "class_row": weights[:, :, 0],
        "distance": oracle.distance(weights, grid),
        "entropy": oracle.entropy(weights),
    }
    multiple = MULTIPLE["taps"][case.dtype in ("float16", "bfloat16")]
    problems = _different_bits(found, again)
    for name, array in expected.items():
        bound = multiple * EPSILON[case.dtype] * np.abs(array).max()
        error = np.abs(exact(found[name]) - array).max()
        if not error <= bound:
            problems.append(f"{name}: error {error:.3g} exceeds {bound:.3g}")
    return problems


def _check_patch_embed(case, kernels):
    draw = Draw(case)
    batch, height, width, channels = case.shape
    count = (height // case.patch_size) * (width // case.patch_size) + case.prefix
    tables = {
        "kernel": draw.normal((case.patch_size, case.patch_size, channels, case.width), case.dtype),
        "bias": draw.normal((case.width,), case.dtype),
        "prefix": draw.normal((case.prefix, case.width), case.dtype) if case.prefix else None,
        "position": draw.normal((count, case.width), case.dtype) if case.position else None,
    }
    if case.images == "uint8":
        images, rescaling = draw.bytes(case.shape), (1 / 127.5, -1.0)
    else:
        images, rescaling = draw.normal(case.shape, case.images), (1.0, 0.0)
    d_tokens = draw.normal((batch, count, case.width), case.dtype)
    arguments = images, tables, d_tokens, *rescaling
    actual, again = kernels.patch_embed(*arguments), kernels.patch_embed(*arguments)
    ordinary = plain.patch_embed(*arguments)
    weights = {name: None if x is None else exact(x) for name, x in tables.items()}
    tokens, backward = oracle.patch_embed(
        exact(images), scale=rescaling[0], offset=rescaling[1], **weights
    )
    expected = backward(exact(d_tokens)) | {"tokens": tokens}
    floats = [name for name in (case.dtype, case.images) if name in EPSILON]
    coarse = max(floats, key=EPSILON.get)
    problems = _different_bits(actual, again)
    for name, tensor in actual.items():
        array = np.asarray(expected[name])
        problems += compare(name, exact(tensor), exact(ordinary[name]), array, coarse)
    return problems


def _check_copies(case, kernels):
    draw = Draw(case)
    if case.dtype == "uint8":
        images = draw.bytes(case.shape)
    else:
        images = draw.normal(case.shape, "float64").to(getattr(torch, case.dtype))
    patches, backward = oracle.extract_patches(images.cpu().numpy(), case.patch_size)
    found = kernels.extract_patches(images, case.patch_size)
    restored = kernels.restore_patches(found, case.shape, case.patch_size)
    pairs = {"patches": (found, patches), "images": (restored, backward(patches))}
    return [
        f"{name}: other values than the oracle's"
        for name, (tensor, array) in pairs.items()
        if not np.array_equal(tensor.cpu().numpy(), array)
    ]


def _check_large(case, kernels):
    """The last of a batch of more than 2^31 elements, beside the same projection alone."""
    shape = case.batch, case.tokens, 3 * case.heads * case.size
    # qkv, its gradient, out and its gradient, in 2 bytes, and as much again as a reserve.
    needed = 2 * 2 * math.prod(shape) * 8 / 3
    if torch.cuda.mem_get_info()[0] < needed:
        raise MemoryError(f"needs {needed / 2**30:.0f} GiB")
    generator = torch.Generator(DEVICE).manual_seed(0)
    options = {"dtype": getattr(torch, case.dtype), "device": DEVICE, "generator": generator}
    qkv = torch.randn(shape, **options)
    d_out = torch.randn((*shape[:2], shape[2] // 3), **options)
    actual = kernels.attend(qkv, case.heads, d_out)
    alone = kernels.attend(qkv[-1:].clone(), case.heads, d_out[-1:].clone())
    problems = []
    for name in ("out", "d_qkv"):
        last, expected = exact(actual[name][-1:]), exact(alone[name])
        problems += compare(name, last, expected, expected, case.dtype)
        if not torch.isfinite(actual[name][:1]).all():
            problems.append(f"{name}: not finite")
    return problems


def _different_bits(one, other):
    return [
        f"{name}: other bits in a second run"
        for name in one
        if not torch.equal(one[name].nan_to_num(), other[name].nan_to_num())
    ]
