"""How a call of a compiled op runs: its threads, its cancellation, and what it reads."""

import concurrent.futures
import json
import os

import numpy as np
import pytest
import tensorflow as tf

import custom_ops
from tests.custom_ops.compare import attend, draw, each_isa, exact
from tests.custom_ops.encoder_blocks import stack
from tests.custom_ops.process import run_python
from tests.custom_ops.programs import digests


@pytest.mark.process
def test_the_environment_may_change_meanwhile():
    assert int(run_python("changing_environment.py")) > 100


@pytest.mark.process
@pytest.mark.heavy("native")
@pytest.mark.parametrize(("count", "times_of_five"), [(1, 3), (2, 2)])
def test_an_op_uses_the_threads_that_it_may_use(count, times_of_five):
    """On a busy machine the second thread may come too late to find work."""
    printed = run_python("used_threads.py", count, TF_NUM_INTRAOP_THREADS="2")
    assert printed.split().count(str(count)) >= times_of_five


@pytest.mark.process
@pytest.mark.parametrize("op", ["attention", "encoder"])
def test_a_canceled_op_ends_and_runs_again(op):
    """The program compares it with a call of half the work."""
    run_python("canceled.py", op)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_encoders_called_at_the_same_time(precision):
    """Each of 8 callers gets the bits that one caller alone gets."""
    plan = custom_ops.pack_encoder(stack(96, 3, 384), 3, precision)
    tokens = [draw([2, 33, 96], seed=seed) for seed in range(8)]

    def call(x):
        return custom_ops.encoder(x, plan, implementation="compiled").numpy().tobytes()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in each_isa():
            alone = [call(x) for x in tokens]
            assert len(set(alone)) == 8
            assert list(pool.map(call, tokens)) == alone
            assert list(pool.map(call, tokens)) == alone


@pytest.mark.each_device
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_that_overflow_before_they_are_scaled(dtype):
    """Q k^T is 2e39 times the largest float32, its product with the scale is not."""
    qkv = np.full([1, 3, 3 * 64], 6e18)
    qkv[:, :, 128:] = 1
    qkv = tf.constant(qkv, dtype)
    cotangent = draw([1, 3, 64], dtype)
    for _ in each_isa():
        out, d_qkv = attend("compiled", qkv, 1, cotangent)
        np.testing.assert_array_equal(exact(out), 1)
        expected = np.broadcast_to(exact(cotangent).mean(1, keepdims=True), [1, 3, 64])
        np.testing.assert_allclose(exact(d_qkv)[:, :, 128:], expected, atol=0.02)
        _, taps = custom_ops.attention_with_taps(qkv, 1, ("class_row",), implementation="compiled")
        np.testing.assert_allclose(taps["class_row"], np.full([1, 1, 3], 1 / 3), rtol=1e-6)


@pytest.mark.process
def test_the_same_bits_for_any_number_of_threads():
    # All tests run with one thread; only a new process can have another number.
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "1"
    printed = run_python("digests.py", TF_NUM_INTRAOP_THREADS="4")
    found = digests.digests()
    assert len(found) == len(set(found.values())) == 6
    assert json.loads(printed) == found
