"""Axial attention and Axial-ViT: time and memory beside full attention and plain TensorFlow.

`grids`: attention and its gradient on grids of growing sides, one image, 12 heads of 64 values: a
row attention followed by a column attention, and full attention over all tokens, both compiled and
both in plain TensorFlow. Memory is the peak that a first call adds to a new process, beyond q, k, v
and the traced graph (Linux only).
`ops`: `axial_attention` against plain TensorFlow with its transposes; the aim is at least 1.5 times
as fast. `models`: Axial-ViT-B/16 at 224, inference and a gradient step; the aim is never slower
beyond the spread.

For every row, results are first checked to be equal; full attention on a grid of one row must equal
row attention. Then the candidates are timed in turn. A row prints the best and the median time, the
spread (the middle half of the times as a fraction of the median), and ratios to the first
candidate.

usage: python -m benchmarks.bench_axial [--sides 8 16 32 64] [--rounds 20] [--only grids ...]
       [--model Axial-ViT-B/16] [--batch 8]
"""

import argparse
import functools
import pathlib
import re
import statistics
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

import custom_ops
import vit_tf

WIDTH, HEADS = 768, 12
GROUPS = ("grids", "ops", "models")
# Largest difference between implementations, as a fraction of the largest number.
CLOSE = 1e-4
# name -> (kind of attention, implementation).
KINDS = {
    "axial": ("axial", "compiled"),
    "full": ("full", "compiled"),
    "axial, TensorFlow": ("axial", "reference"),
    "full, TensorFlow": ("full", "reference"),
}
# Plain TensorFlow stores the weights of full attention several times: 0.8 GB each at side 64.
MOST_STORED_SIDE = 48


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sides", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--model", default="Axial-ViT-B/16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        return print(added_megabytes(int(arguments.measure[0]), arguments.measure[1]))
    if arguments.rounds < 2:
        parser.error(f"--rounds must be at least 2. Received: {arguments.rounds}.")
    tf.get_logger().setLevel("ERROR")  # of functions traced in a loop
    if not custom_ops.is_compiled():
        parser.error(f"the compiled library is not used: {custom_ops.describe()['reason']}")
    if "grids" in arguments.only:
        grids(arguments.sides, arguments.rounds)
    if "ops" in arguments.only:
        ops(arguments.sides, arguments.batch, arguments.rounds)
    if "models" in arguments.only:
        models(arguments.model, arguments.batch, arguments.rounds)


def grids(sides, rounds):
    line = _normal([1, 1, 24, 3 * WIDTH])
    for implementation in ("compiled", "reference"):
        _check("one row", _axial(line, implementation, (2,))(), _full(line, implementation)())
    for side in sides:
        names = [*KINDS] if side <= MOST_STORED_SIDE else [*KINDS][:-1]
        found = {name: _grid_call(name, side) for name in names}
        for name in names[2:]:
            _check(f"{name} {side}", found[name](), found[name.partition(",")[0]]())
        peaks = {name: _in_new_process(side, name) for name in names}
        measure(f"grid of {side} x {side}", found, rounds, peaks)


def _grid_call(name, side):
    kind, implementation = KINDS[name]
    return {"axial": _axial, "full": _full}[kind](
        _normal([1, side, side, 3 * WIDTH]), implementation
    )


def _in_new_process(side, name):
    command = [sys.executable, "-m", "benchmarks.bench_axial", "--measure", str(side), name]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(result.stdout.split()[-1])


def added_megabytes(side, name):
    """The peak of resident memory in the first call, beyond that before it."""
    call = _grid_call(name, side)
    call.func.get_concrete_function(*call.args)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # sets the peak to the present size
    before = _kilobytes("VmRSS")
    call()
    return (_kilobytes("VmHWM") - before) / 1e3


def _kilobytes(field):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"^{field}:\s+(\d+) kB", status, re.MULTILINE)[1])


def ops(sides, batch, rounds):
    for side in sides:
        qkv = _normal([batch, side, side, 3 * WIDTH])
        for axis in (2, 1):
            for gradient in (False, True):
                found = {
                    name: _axial(qkv, implementation, (axis,), gradient)
                    for name, implementation in (
                        ("compiled", "compiled"),
                        ("TensorFlow", "reference"),
                    )
                }
                name = f"{'gradient' if gradient else 'forward'} {batch}x{side}x{side} axis {axis}"
                _check(name, found["compiled"](), found["TensorFlow"]())
                measure(name, found, rounds)


def models(name, batch, rounds):
    images = tf.random.stateless_uniform([batch, 224, 224, 3], (1, 2), -1, 1)
    for gradient in (False, True):
        found = {
            kind: _model_call(name, implementation, images, gradient)
            for kind, implementation in (("compiled", "compiled"), ("TensorFlow", "reference"))
        }
        title = f"{name} {'gradients' if gradient else 'inference'} b={batch}"
        _check(title, found["compiled"](), found["TensorFlow"]())
        measure(title, found, min(rounds, 12))


def _axial(qkv, implementation, axes=(2, 1), gradient=True):
    """A call: attention along the axes in turn, whose outputs are the next q, k and v."""

    def attend(qkv):
        for axis in axes:
            out = custom_ops.axial_attention(qkv, HEADS, axis, implementation=implementation)
            _, key, value = tf.split(qkv, 3, axis=-1)
            qkv = tf.concat([out, key, value], axis=-1)
        return out

    return _call(attend, qkv, gradient)


def _full(qkv, implementation):
    """A call: attention of all tokens of the grid."""
    _, rows, columns, _ = qkv.shape

    def attend(qkv):
        tokens = tf.reshape(qkv, [-1, rows * columns, 3 * WIDTH])
        out = custom_ops.attention(tokens, HEADS, implementation=implementation)
        return tf.reshape(out, [-1, rows, columns, WIDTH])

    return _call(attend, qkv, gradient=True)


def _call(attend, qkv, gradient):
    @tf.function
    def both(qkv):
        with tf.GradientTape() as tape:
            tape.watch(qkv)
            out = attend(qkv)
        return out, tape.gradient(out, qkv, out)

    return functools.partial(both if gradient else tf.function(attend), qkv)


def _model_call(name, implementation, images, gradient):
    tf.keras.utils.set_random_seed(0)
    model = vit_tf.create_model(name, implementation=implementation)
    # An untrained head is zero, and no gradient would pass it.
    model.head.kernel.assign(_normal(model.head.kernel.shape) * 0.01)
    variables = [variable.value for variable in model.trainable_variables]

    @tf.function
    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.log_softmax(model(images, training=False))[:, 1])
        return tape.gradient(loss, variables)

    return functools.partial(step if gradient else tf.function(lambda x: model(x)), images)


def measure(title, candidates, rounds, megabytes=None):
    """Times the candidates in turn and prints a line for each."""
    seconds = {name: [] for name in candidates}
    for turn in range(rounds):
        # The first one changes, so that none always finds the same caches.
        names = [*candidates][turn % len(candidates) :] + [*candidates][: turn % len(candidates)]
        for name in names:
            candidates[name]()
            begin = time.perf_counter()
            candidates[name]()
            seconds[name].append(time.perf_counter() - begin)
    print(title, flush=True)
    first = next(iter(seconds.values()))
    for name, times in seconds.items():
        low, median, high = statistics.quantiles(times, n=4)
        ratios = (min(times) / min(first), median / statistics.median(first))
        memory = f"  {megabytes[name]:8.1f} MB" if megabytes else ""
        print(
            f"  {name:20} best {min(times) * 1e3:9.2f} ms  median {median * 1e3:9.2f} ms  spread "
            f"{(high - low) / median:4.0%}  x{ratios[0]:5.2f} x{ratios[1]:5.2f}{memory}",
            flush=True,
        )


def _normal(shape):
    return tf.random.stateless_normal(shape, (len(shape), shape[0]))


def _check(name, ours, theirs):
    """Compares outputs and, if there are any, gradients."""
    ours, theirs = tf.nest.flatten(ours), tf.nest.flatten(theirs)
    largest = max(float(tf.reduce_max(tf.abs(x))) for x in theirs)
    for one, other in zip(ours, theirs, strict=True):
        error = np.abs(one - other).max() / largest
        if not error <= CLOSE:
            raise SystemExit(f"error: {name}: results differ by {error:.1e} of the largest value")


if __name__ == "__main__":
    main()
