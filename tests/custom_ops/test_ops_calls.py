"""How a call of a compiled op runs: its threads, its cancellation, and what it reads."""

import concurrent.futures
import hashlib
import json
import os
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import cancellation

import custom_ops
from tests.custom_ops.compare import (
    attend,
    draw,
    draw_uint8,
    each_isa,
    embed,
    exact,
    tables,
)
from tests.custom_ops.process import run_python
from tests.custom_ops.test_encoder import published

# Calls kernels in two threads while a third one changes the environment.
ENVIRONMENT = """
import os, threading, time
import tensorflow as tf
import custom_ops

@tf.function
def many(qkv):
    def step(i, x):
        out = custom_ops.attention(x, 1, implementation="compiled")
        return i + 1, tf.tile(out, [1, 1, 3])
    return tf.while_loop(lambda i, _: i < 20_000, step, (0, qkv))[1]

def call():
    while time.monotonic() < end:
        many(qkv)

qkv = tf.random.normal([1, 2, 6])
many(qkv)
end = time.monotonic() + 4
threads = [threading.Thread(target=call) for _ in range(2)]
for thread in threads:
    thread.start()
count = 0
while time.monotonic() < end:
    os.environ[f"VIT_TEST_{count}"] = "x" * (count % 97)
    count += 1
for thread in threads:
    thread.join()
print(count)
"""


@pytest.mark.process
def test_the_environment_may_change_meanwhile():
    assert int(run_python(ENVIRONMENT)) > 1000


# Counts the threads of the process that have used the processor while one op ran.
THREADS = """
import contextlib, os, sys
import tensorflow as tf
import custom_ops

def ticks():
    times = {}
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has just ended
            fields = open(f"/proc/self/task/{task}/stat").read().rpartition(")")[2].split()
            times[task] = int(fields[11]) + int(fields[12])
    return times

qkv = tf.random.normal([64, 1024, 3 * 64])
call = lambda x: custom_ops.attention(x, 1, implementation="compiled")
data = tf.data.Dataset.from_tensors(qkv).map(call)
options = tf.data.Options()
options.threading.max_intra_op_parallelism = int(sys.argv[1])
data = data.with_options(options)
# On a busy machine the second thread may come too late to find work.
seen = []
for _ in range(5):
    iterator = iter(data.repeat(2))
    next(iterator)
    before = ticks()
    next(iterator)
    after = ticks()
    used = [after[task] - before.get(task, 0) for task in after]
    seen.append(sum(count > 0.2 * max(used) for count in used))
print(*seen)
"""


@pytest.mark.process
@pytest.mark.parametrize("count", [1, 2])
def test_an_op_uses_the_threads_that_it_may_use(count):
    seen = sorted(map(int, run_python(THREADS, count, TF_NUM_INTRAOP_THREADS="2").split()))
    # One measurement of five may be wrong.
    assert seen[-2] == 2 if count == 2 else seen[1:4] == [1, 1, 1]


def seconds(function, *arguments):
    begin = time.monotonic()
    function(*arguments)
    return time.monotonic() - begin


@pytest.mark.parametrize("shape", [[400, 577, 3 * 64], [1, 12000, 3 * 64]])
def test_a_cancelled_op_ends_soon(shape):
    assert_cancelled_op_ends_soon(
        lambda x: custom_ops.attention(x, 1, implementation="compiled"), tf.zeros(shape)
    )


def test_a_cancelled_encoder_ends_soon_and_runs_again():
    plan, tokens = encoder_plan("float32", layers=6), draw([16, 197, 96])

    def call(x):
        return custom_ops.encoder(x, plan, implementation="compiled")

    expected = call(tokens)
    assert_cancelled_op_ends_soon(call, tokens)
    np.testing.assert_array_equal(call(tokens), expected)


def assert_cancelled_op_ends_soon(call, x):
    function = tf.function(call).get_concrete_function(tf.TensorSpec([None, None, x.shape[2]]))
    function(x[:1, :5])  # prepares the graph
    whole = min(seconds(function, x) for _ in range(2))
    for _ in range(5):  # the machine may be busy with something else
        manager = cancellation.CancellationManager()
        cancelled = manager.get_cancelable_function(function)
        timer = threading.Timer(0.1 * whole, manager.start_cancel)
        timer.start()
        begin = time.monotonic()
        with pytest.raises(tf.errors.CancelledError):
            cancelled(x)
        if time.monotonic() - begin < 0.7 * whole:  # without cancellation it takes 1.0
            return
    raise AssertionError("the op goes on after it was cancelled")


def encoder_plan(precision, layers=2):
    return custom_ops.pack_encoder(
        [published(96, 3, 384, seed) for seed in range(layers)], 3, precision
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_encoders_called_at_the_same_time(precision):
    """Each of 8 callers gets the bits that one caller alone gets."""
    plan = encoder_plan(precision)
    tokens = [draw([2, 33, 96], seed=seed) for seed in range(8)]

    def call(x):
        return custom_ops.encoder(x, plan, implementation="compiled").numpy().tobytes()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in each_isa():
            alone = [call(x) for x in tokens]
            assert len(set(alone)) == 8
            for _ in range(3):
                assert list(pool.map(call, tokens)) == alone


def test_the_kernels_take_less_processor_time_than_tensorflow():
    """They take about 0.6 of it. A lost optimisation flag would be found."""
    qkv, cotangent = draw([8, 197, 3 * 384]), draw([8, 197, 384])

    def processor_seconds(implementation):
        begin = time.process_time()
        attend(implementation, qkv, 6, cotangent)
        return time.process_time() - begin

    times = [[processor_seconds(name) for name in ("compiled", "reference")] for _ in range(6)]
    compiled, reference = map(min, zip(*times, strict=True))
    assert compiled < reference


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


def digests():
    """Digests of outputs and gradients by name, of sizes that are worth several threads."""
    found = {}

    def note(name, tensors):
        data = b"".join(tensor.numpy().tobytes() for tensor in tf.nest.flatten(tensors))
        found[name] = hashlib.sha256(data).hexdigest()

    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for shape, size, axis in (([4, 197], 64, None), ([1, 577], 20, None), ([4, 30, 41], 32, 2)):
            count = shape[axis or 1]
            qkv, bias = draw([*shape, 9 * size], dtype), draw([3, count, count], dtype)
            cotangent = draw([*shape, 3 * size], dtype, seed=1)
            note(f"attention {dtype} {shape}", attend("compiled", qkv, 3, cotangent, bias, axis))
        for shape, patch_size, width in (([16, 224, 224, 3], 16, 192), ([9, 230, 225, 3], 4, 48)):
            weights = tables(shape, patch_size, dtype, width)
            for images in (draw(shape, dtype), draw_uint8(shape)):
                tokens, gradients, _ = embed("compiled", images, weights, {"scale": 0.1}, None)
                note(f"patches {dtype} {images.dtype.name} {shape}", [tokens, gradients])
    for precision in ("float32", "bfloat16"):
        out = custom_ops.encoder(
            draw([3, 197, 96]), encoder_plan(precision), implementation="compiled"
        )
        note(f"encoder {precision}", out)
    return found


DIGESTS = """
import json
from tests.custom_ops import test_ops_calls
print(json.dumps(test_ops_calls.digests()))
"""


@pytest.mark.process
def test_the_same_bits_for_any_number_of_threads():
    # All tests run with one thread; only a new process can have another number.
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "1"
    printed = run_python(DIGESTS, TF_NUM_INTRAOP_THREADS="4")
    found = digests()
    assert len(found) == len(set(found.values())) == 4 * 7 + 2
    assert json.loads(printed) == found
