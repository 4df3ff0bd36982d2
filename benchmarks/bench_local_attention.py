"""Time and memory of local attention and stand-alone attention against the number of pixels.

For each layer and each side of a square map, the row prints the best, median and spread of the time
of a result with its gradients, the time per pixel beside that of the smallest map, and the peak
memory of the process beyond that before the call. Full attention is beside them up to the side
where it takes 4 GiB. The benchmark first checks that each layer gives the same on a small map as
the NumPy version of the tests.

usage: python -m benchmarks.bench_local_attention [--sides 16 32 64 128] [--rounds 10]
"""

import argparse
import subprocess
import sys
import time

import numpy as np
import tensorflow as tf

from benchmarks.bench_create import peak
from tests.vit_tf import tiny
from tests.vit_tf.layers.related_work import numpy_layers
from vit_tf.config import spatial
from vit_tf.layers.related_work.kinds import spatial_layer

CHANNELS = 64
ORACLES = {
    "stand_alone": numpy_layers.stand_alone,
    "local_1d": numpy_layers.local_1d,
    "local_2d": numpy_layers.local_2d,
    "full": numpy_layers.full,
}
# Bytes of the weights of full attention that are too many.
TOO_LARGE = 4 * 2**30
# Largest difference to the NumPy version, as a fraction of the largest number.
CLOSE = 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sides", type=int, nargs="+", default=[16, 32, 64, 128])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        kind, side = arguments.row
        print(*measure(kind, int(side), arguments.rounds))
        return
    for kind in ORACLES:
        verify(kind)
    print(f"verified; {CHANNELS} channels, {spatial.HEADS} heads, batch 1, float32, with gradients")
    print(
        f"{'':12}{'side':>5}{'best, ms':>10}{'median':>8}{'spread':>8}{'per pixel':>11}{'MiB':>7}"
    )
    for kind in ORACLES:
        first = None
        for side in arguments.sides:
            if kind == "full" and 4 * spatial.HEADS * side**4 > TOO_LARGE:
                continue
            best, median, spread, mebibytes = row(kind, side, arguments.rounds)
            first = first or best / side**2
            print(
                f"{kind:12}{side:5}{best:10.2f}{median:8.2f}{spread:7.0%}"
                f"{best / side**2 / first:10.2f}x{mebibytes:7.0f}",
                flush=True,
            )


def row(kind, side, rounds):
    """The numbers of `measure`, from a process of its own: its peak memory is the layer's."""
    command = [sys.executable, "-m", __spec__.name, "--row", kind, str(side)]
    command += ["--rounds", str(rounds)]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return map(float, result.stdout.split()[-4:])


def made(kind, side):
    """The layer with random weights, and inputs."""
    layer = spatial_layer(kind, CHANNELS, (side, side), {})
    layer.build((None, side, side, CHANNELS))
    tiny.randomize(layer)
    return layer, tf.random.stateless_normal([1, side, side, CHANNELS], [1, 2]) * 0.1


def verify(kind):
    """Compares a layer with its NumPy version, on a map that needs more than one block."""
    layer, inputs = made(kind, 13)
    expected = ORACLES[kind](
        layer, numpy_layers.weights_of(layer), inputs.numpy().astype(np.float64)
    )
    error = np.abs(layer(inputs) - expected).max()
    assert error <= CLOSE * np.abs(expected).max(), f"{kind}: differs by {error}"


def measure(kind, side, rounds):
    """Best and median time in ms, spread of the times, and peak memory in MiB."""
    layer, inputs = made(kind, side)

    @tf.function
    def step(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            total = tf.reduce_sum(tf.square(layer(inputs)))
        return tape.gradient(total, [inputs, *(v.value for v in layer.trainable_variables)])

    function, before, times = step.get_concrete_function(inputs), peak(), []
    function(inputs)
    for _ in range(rounds):
        start = time.perf_counter()
        function(inputs)[0].numpy()
        times.append(1e3 * (time.perf_counter() - start))
    best, median = min(times), float(np.median(times))
    return best, median, (max(times) - best) / median, (peak() - before) / 2**20


if __name__ == "__main__":
    main()
