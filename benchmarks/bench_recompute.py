"""Memory and time of training steps with and without `model.recompute=blocks`.

First the gradients of both are compared. In large graphs TensorFlow's graph optimizer changes some
last bits: with --exact it is off, and every bit must be equal.
Then each setting runs in a process of its own, which prints its peak resident memory and the best
time of a step; the computed memory of the activations (`vit_tf.cost.activation_bytes`) is printed
beside it.

usage: python -m benchmarks.bench_recompute [--model ViT-Ti/16] [--batch 16] [--exact]
"""

import argparse
import json
import subprocess
import sys
import time

import keras
import tensorflow as tf

import vit_tf
from vit_tf import cost
from vit_tf.layers import RandomContext

SETTINGS = ("none", "blocks")
# Largest difference of a gradient, as a fraction of its largest number.
CLOSE = 1e-4


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="ViT-Ti/16")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", choices=SETTINGS, help="measures one setting in this process")
    parser.add_argument("--exact", action="store_true", help="only compares bits of the gradients")
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments)))
        return
    check_gradients(arguments)
    if arguments.exact:
        print("all gradients are equal, bit for bit")
        return
    print(f"{'recompute':10}{'peak, MB':>10}{'activations, MB':>17}{'step, ms':>10}")
    for setting in SETTINGS:
        command = [sys.executable, "-m", "benchmarks.bench_recompute", *sys.argv[1:]]
        result = subprocess.run(
            [*command, f"--only={setting}"], check=True, stdout=subprocess.PIPE, text=True
        )
        found = json.loads(result.stdout.splitlines()[-1])
        print(
            f"{setting:10}{found['peak'] / 1e6:10,.0f}{found['activations'] / 1e6:17,.0f}"
            f"{1000 * found['seconds']:10,.0f}",
            flush=True,
        )


def gradient_step(arguments, setting):
    """A model, and a function of images that returns its gradients."""
    keras.utils.set_random_seed(0)
    model = vit_tf.create_model(
        arguments.model,
        num_classes=10,
        image_size=arguments.image_size,
        dropout=0.1,
        recompute=setting,
    )
    # A head of zeros would have no gradient below it.
    model.head.kernel.assign(tf.random.stateless_normal(model.head.kernel.shape, [5, 6]))
    variables = [variable.value for variable in model.trainable_variables]

    @tf.function
    def step(images):
        with RandomContext(0, 0, tf.range(arguments.batch)), tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.log_softmax(model(images, training=True))[:, 1])
        return tape.gradient(loss, variables)

    return model, step


def images_of(arguments):
    shape = [arguments.batch, arguments.image_size, arguments.image_size, 3]
    return tf.random.stateless_uniform(shape, [1, 2], -1, 1)


def check_gradients(arguments):
    if arguments.exact:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    results = [gradient_step(arguments, name)[1](images_of(arguments)) for name in SETTINGS]
    for one, other in zip(*results, strict=True):
        limit = 0.0 if arguments.exact else float(CLOSE * tf.reduce_max(tf.abs(one)))
        if float(tf.reduce_max(tf.abs(one - other))) > limit:
            sys.exit("the gradients of the two settings differ")


def measure(arguments):
    """Peak resident bytes of this process, computed bytes of activations, seconds of a step."""
    model, step = gradient_step(arguments, arguments.only)
    images, times = images_of(arguments), []
    for _ in range(arguments.steps + 1):
        begin = time.perf_counter()
        step(images)[0].numpy()
        times.append(time.perf_counter() - begin)
    return {
        "peak": peak_bytes(),
        "activations": cost.activation_bytes(model.config, arguments.batch),
        "seconds": min(times[1:]),
    }


def peak_bytes():
    """Peak resident memory; `resource.getrusage` would include the parent process."""
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith("VmHWM:"))
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main()
