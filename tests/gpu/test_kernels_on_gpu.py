"""The kernels against float64, with plain PyTorch's error as the measure; the cases that do so."""

import math
import re
import sys

import numpy as np
import pytest

from custom_ops import build_ops
from tests.gpu import cases, jax_check, small_shapes, tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("case", cases.checks(), ids=lambda case: case.name)
def test_an_error_is_at_most_twice_that_of_plain_pytorch(case, kernels):
    import torch

    from tests.gpu import checks

    try:
        problems = checks.check(case, kernels)
        # The launch of a kernel returns before its errors are known.
        torch.cuda.synchronize()
    except (MemoryError, torch.cuda.OutOfMemoryError) as error:
        pytest.skip(f"the GPU has too little memory: {error}")
    assert problems == []


@pytest.mark.gpu
@pytest.mark.process
def test_the_ops_run_under_jax_without_tensorflow(tmp_path):
    pytest.importorskip("jaxlib", reason="needs JAX for CUDA")
    library = build_ops.build_jax_library("CUDA", tmp_path)
    names = [case.name for case in cases.under_jax()]
    answers = jax_check.answers(sys.executable, library, "CUDA", names)
    if reasons := {answer["skipped"] for answer in answers if "skipped" in answer}:
        pytest.skip(reasons.pop())
    assert answers == [{"name": name, "problems": []} for name in names]


def test_every_case_has_a_name_and_every_op_and_dtype_has_cases():
    found = cases.checks()
    assert len({case.name for case in found}) == len(found) > 500
    # The kernels compute with no float64, and copy it.
    assert {case.op for case in found if case.dtype == "float64"} == {"extract_patches"}
    groups = {(case.op, case.dtype) for case in found}
    floats = {(op, dtype) for op in cases.OPS[:-1] for dtype in cases.DTYPES}
    assert groups > floats and {op for op, _ in groups} == set(cases.OPS)
    large = next(case for case in found if isinstance(case, cases.Large))
    assert 2**31 < large.batch * 197 * 3 * 12 * 64 < 2**31 * 1.001


@pytest.mark.parametrize(
    ("actual", "plain", "problem"),
    [
        ([1.0, 2.0 + 2**-6], [1.0, 2.0], None),  # one rounding of bfloat16, of the largest number
        ([1.0, 2.0 + 2**-5], [1.0, 2.0], "d_qkv: error 0.0312 exceeds 0.0156; .* is 0"),
        ([1.0, 2.0 + 2**-5], [1.0 + 2**-6, 2.0], None),  # twice the error of plain PyTorch
        ([1.0, 2.0 + 2**-5], [np.inf, 2.0], "exceeds 0.0156"),
        ([1.0, np.nan], [1.0, 2.0], "1 of 2 elements are not finite"),
        ([1.0], [1.0], r"shape \(1,\), expected \(2,\)"),
    ],
)
def test_errors_may_be_twice_those_of_plain_pytorch_plus_a_rounding(actual, plain, problem):
    arrays = [np.array(x) for x in (actual, plain)]
    found = tolerance.compare("d_qkv", *arrays, np.array([1.0, 2.0]), "bfloat16")
    assert len(found) == (problem is not None)
    if problem:
        assert re.search(problem, found[0])


def _padded(size):
    return next((padded for padded in (64, 80, 128) if size <= padded), None)


def test_the_sanitized_shapes_reach_every_kernel():
    """The kernels in 16 bits, by what chooses them in `custom_ops/cuda` on GPUs with warpgroups."""
    every, alone, short, long = set(), set(), set(), set()
    for _, tokens, _, size, biased in small_shapes.ATTENTION:
        every.add((_padded(size), False))
        every |= {(_padded(size), True)} if biased else set()
        # Warpgroups take heads of up to 80 elements that have a multiple of 16 bytes.
        if not (size <= 80 and size % 8 == 0):
            alone.add((_padded(size), False))
        alone |= {(_padded(size), True)} if biased else set()
        if _padded(size) in (64, 80) and tokens <= 64:
            short.add((_padded(size), -(-tokens // 16)))
        elif biased:
            long.add(_padded(size))
    assert every == alone == {(x, y) for x in (64, 80, 128, None) for y in (False, True)}
    assert short == {(padded, warps) for padded in (64, 80) for warps in (1, 2, 3, 4)}
    assert long == {64, 80, 128, None}
    assert {size > 128 for *_, size in small_shapes.TAPS} == {True, False}
    # `plan_copy`: the largest unit that divides the bytes of a line of an image and of a patch.
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        units = set()
        for (_, _, width, channels), patch_size in small_shapes.COPIES:
            for bytes_ in (size, 1):
                line = math.gcd(width * channels * bytes_, patch_size * channels * bytes_)
                units.add(math.gcd(line, 16))
        assert units >= {1, size, 8, 16}, dtype
    # kPatchRun: more patches are summed in parts.
    assert any((h // p) * (w // p) * b > 256 for (b, h, w, _), p, _ in small_shapes.PATCHES)
