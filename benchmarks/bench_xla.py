"""The compiled ops under `jit_compile=True`, beside the reference there and the plain graph.

For each row, attention forward and with its gradient and the gradient step of a ViT, the results of
the three are first checked to be equal up to rounding. Then they are timed in turn; a row prints
the best times, and how many times as long the reference under XLA and the plain graph take.

usage: python -m benchmarks.bench_xla [--rounds 20] [--model ViT-S/16] [--batch 8]
"""

import argparse
import time

import numpy as np
import tensorflow as tf

import custom_ops
import vit_tf

# Largest difference, as a fraction of the largest number.
CLOSE = 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--model", default="ViT-S/16")
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    report = custom_ops.describe()
    if report["xla_library"] is None:
        parser.error(f"XLA cannot compile the ops: {report['xla_reason']}.")
    print(f"{'':32}{'XLA, ms':>10}{'reference under XLA':>21}{'plain graph':>13}", flush=True)
    for name, function, inputs in rows(arguments.model, arguments.batch):
        measure(name, function, inputs, arguments.rounds)


def rows(model_name, batch):
    """Yields the name of a row, a function and the tensors to call it with."""
    qkv = tf.random.stateless_normal([batch, 197, 3 * 768], [1, 2])

    def attention(qkv):
        return custom_ops.attention(qkv, 12)

    def gradient(qkv):
        with tf.GradientTape() as tape:
            tape.watch(qkv)
            out = custom_ops.attention(qkv, 12)
        return out, tape.gradient(out, qkv, out)

    yield f"attention {batch}x197", attention, [qkv]
    yield f"attention + gradient {batch}x197", gradient, [qkv]

    model = vit_tf.create_model(model_name, num_classes=10)
    images = tf.random.stateless_uniform([batch, 224, 224, 3], [3, 4], -1, 1)
    variables = [variable.value for variable in model.trainable_variables]

    def step(images):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.log_softmax(model(images, training=False))[:, 1])
        return tape.gradient(loss, variables)

    yield f"{model_name} forward, batch {batch}", lambda x: model(x, training=False), [images]
    yield f"{model_name} gradients, batch {batch}", step, [images]


def measure(name, function, inputs, rounds):
    """Checks and times the three, and prints the row."""
    with custom_ops.implementation("reference"):
        # Each is traced by its first call, inside the block.
        reference = tf.function(lambda *x: function(*x), jit_compile=True)
        expected = tf.nest.flatten(reference(*inputs))
    candidates = [tf.function(function, jit_compile=True), reference, tf.function(function)]
    for contestant in candidates:
        for actual, other in zip(tf.nest.flatten(contestant(*inputs)), expected, strict=True):
            error = np.abs(actual - other).max()
            assert error <= CLOSE * np.abs(other).max() + 1e-12, f"{name}: differs by {error}"
    best = [np.inf] * len(candidates)
    for _ in range(rounds):
        for i, contestant in enumerate(candidates):
            start = time.perf_counter()
            tf.nest.flatten(contestant(*inputs))[0].numpy()
            best[i] = min(best[i], time.perf_counter() - start)
    ours, reference, plain = best
    print(f"{name:32}{1e3 * ours:10.2f}{reference / ours:20.2f}x{plain / ours:12.2f}x", flush=True)


if __name__ == "__main__":
    main()
