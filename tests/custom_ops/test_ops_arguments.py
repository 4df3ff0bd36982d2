"""Arguments that the public functions reject, before they choose an implementation."""

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.custom_ops.compare import call_attention, tables


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ([2, 5, 36, 1], {}, r"2, 5, 36, 1\).*N, 3 D\]"),
        ([2, 5, 36], {"axis": 1}, r"\(2, 5, 36\).*C, 3 D\]"),
        ([2, 5, 4, 36], {"axis": 3}, "axis=3.*1 .*2 "),
        ([2, 5, 4, 36], {"axis": 0}, "axis=0"),
        ([2, 5, 35], {}, "35.*3 \\* num_heads = 9"),
        ([2, 5, 0], {}, "0, which is not"),
        ([2, 5, 36], {"num_heads": 5}, "36.*num_heads=5"),
        ([2, 5, 36], {"num_heads": 0}, "num_heads.*Received: 0"),
        ([2, 5, 36], {"num_heads": 1.5}, "num_heads.*Received: 1.5"),
        ([2, 5, 36], {"bias": np.zeros([5, 4])}, r"\(5, 4\).*2, 3, 5, 5"),
        ([1, 5, 36], {"bias": np.zeros([2, 3, 5, 5])}, "2, 3, 5, 5.*1, 3, 5, 5"),
        ([2, 5, 36], {"bias": np.zeros([1, 1, 1, 5, 5])}, r"\(1, 1, 1, 5, 5\)"),
        ([2, 5, 4, 36], {"axis": 1, "bias": np.zeros([3, 4, 4])}, r"= \[2, 4, 3, 5, 5\]"),
        ([2, 5, 36], {"bias": np.zeros([5, 5], "bool")}, "bias has dtype bool.*-inf"),
        ([2, 5, 36], {"taps": ("rows", "entropy")}, r"'rows'.*class_row"),
        ([2, 5, 36], {"taps": "entropy"}, "taps='entropy'"),
        ([2, 5, 36], {"scale": 0.0}, "scale=0.0 "),
        ([2, 5, 36], {"scale": -1}, "scale=-1 must be"),
        ([2, 5, 36], {"scale": float("nan")}, "scale=nan must be"),
        ([2, 5, 4, 36], {"axis": 2, "scale": float("inf")}, "scale=inf must be"),
        ([2, 5, 36], {"taps": (), "scale": "1"}, "scale='1' must be"),
        ([2, 5, 36], {"taps": ("distance",)}, "needs grid"),
        ([2, 5, 36], {"taps": ("distance",), "grid": (2, 3)}, "6 patches.*5 tokens"),
        ([2, 5, 36], {"taps": ("distance",), "grid": 2}, "grid=2 must be the pair"),
        ([2, 5, 36], {"taps": ("distance",), "grid": (0, 2)}, r"grid=\(0, 2\)"),
        ([2, 5, 36], {"implementation": "fast"}, "implementation='fast'"),
    ],
)
def test_attention_names_illegal_arguments(shape, arguments, message):
    arguments = {"num_heads": 3} | arguments
    with pytest.raises(ValueError, match=message):
        call_attention(tf.zeros(shape), **arguments)


def test_illegal_dtype_is_named():
    with pytest.raises(ValueError, match="qkv.*int32"):
        custom_ops.attention(tf.zeros([2, 5, 36], "int32"), 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros([8, 8, 3])}, "images.*H, W, C.*8, 8, 3"),
        ({"images": np.zeros([2, 8, 8, 3], "int32")}, "images.*int32"),
        ({"images": np.zeros([2, 8, 8, 4])}, "4 channels.*for 3"),
        ({"images": np.zeros([2, 3, 8, 3])}, "3 x 8 .*4 x 4"),
        ({"kernel": np.zeros([4, 4, 30])}, r"kernel.*\(4, 4, 30\)"),
        ({"kernel": np.zeros([4, 2, 3, 10])}, "4, 2, 3, 10.*patch size"),
        ({"kernel": np.zeros([0, 0, 3, 10])}, r"\(0, 0, 3, 10\)"),
        ({"kernel": np.zeros([4, 4, 3, 10], "int32")}, "kernel has dtype int32"),
        ({"bias": np.zeros([9])}, r"bias.*\(9,\).*10"),
        ({"bias": np.zeros([1, 10])}, r"bias must be \[D\]"),
        ({"prefix": np.zeros([1, 9])}, r"prefix has shape \(1, 9\)"),
        ({"prefix": np.zeros([10])}, r"prefix must be \[T, D\]"),
        ({"prefix": np.zeros([1, 10], "int32")}, "prefix has dtype int32"),
        ({"position": np.zeros([5, 9])}, r"position.*\(5, 9\)"),
        ({"position": np.zeros([4, 10])}, "4 rows.*5 tokens.*2 x 2"),
        ({"scale": [1.0, 2.0, 3.0]}, r"scale=\[1.0, 2.0, 3.0\]"),
        ({"offset": None}, "offset=None"),
        ({"implementation": "fast"}, "implementation='fast'"),
    ],
)
def test_patch_embed_names_illegal_arguments(changes, message):
    legal = {"images": tf.zeros([2, 8, 8, 3])} | tables([2, 8, 8, 3], 4, "float32")
    with pytest.raises(ValueError, match=message):
        custom_ops.patch_embed(**(legal | changes))


@pytest.mark.parametrize(
    ("shape", "patch_size", "message"),
    [
        ([8, 8, 3], 4, "images must be"),
        ([2, 8, 3, 3], 4, "8 x 3 .*4 x 4"),
        ([2, 8, 8, 3], 0, "patch_size.*: 0"),
        ([2, 8, 8, 3], (4, 4), r"patch_size.*\(4, 4\)"),
    ],
)
def test_extract_patches_names_illegal_arguments(shape, patch_size, message):
    with pytest.raises(ValueError, match=message):
        custom_ops.extract_patches(tf.zeros(shape), patch_size)
