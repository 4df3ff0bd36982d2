"""The compiled ops on a GPU under TensorFlow, beside the reference on the CPU.

`python -m benchmarks.gpu.smoke_ops`. Each op runs eagerly, in a `tf.function`, and in one that XLA
compiles. The last line is JSON: a list of `[name, problem]`, "" for what is right.
`VIT_SMOKE_DEVICE` names another device than GPU:0.
"""

import json
import os

import numpy as np

# Largest error as a part of the largest number: a few roundings. The reference is float64.
CLOSE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}


def calls():
    """Dict from names to a function of `custom_ops` and its inputs, float64 arrays."""
    import custom_ops

    def taps(qkv):
        names = ("class_row", "distance", "entropy")
        return custom_ops.attention_with_taps(qkv, 2, names, grid=(7, 7))

    draw = np.random.default_rng(0).normal
    qkv, images, kernel = draw(size=(2, 50, 384)), draw(size=(2, 35, 33, 3)), (16, 16, 3, 64)
    biased = qkv, draw(size=(2, 50, 50))
    return {
        "attention": (lambda qkv: custom_ops.attention(qkv, 2), (qkv,)),
        "bias": (lambda qkv, bias: custom_ops.attention(qkv, 2, bias=bias), biased),
        "axial": (lambda qkv: custom_ops.axial_attention(qkv, 2, 1), (draw(size=(2, 9, 5, 384)),)),
        "taps": (taps, (qkv,)),
        "patch_embed": (custom_ops.patch_embed, (images, draw(size=kernel), draw(size=64))),
        "extract_patches": (lambda images: custom_ops.extract_patches(images, 16), (images,)),
    }


def step(function, inputs):
    """The results of a function, and the gradients of its inputs."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        found = tf.nest.flatten(function(*inputs))
    # Eighths, which every dtype has.
    waves = tf.round(8 * tf.cos(tf.range(tf.cast(tf.size(found[0]), tf.float32)))) / 8
    gradient = tf.cast(tf.reshape(waves, found[0].shape), found[0].dtype)
    return [*found, *tape.gradient(found[0], inputs, gradient)]


def check(run, inputs, dtype, device, expected):
    """The problem of an op in a dtype on a device, "" if there is none."""
    import tensorflow as tf

    import custom_ops

    try:
        with tf.device(device), custom_ops.implementation("compiled"):
            found = run([tf.cast(x, dtype) for x in inputs])
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    for index, (one, other) in enumerate(zip(found, expected, strict=True)):
        # Without a kernel for the device, TensorFlow takes that of another one.
        if not one.device.endswith(device):
            return f"result {index} is on {one.device}"
        error, largest = np.abs(tf.cast(one, tf.float64) - other).max(), np.abs(other).max()
        if not error <= CLOSE[dtype] * largest:
            return f"result {index} differs by {error:.3g} of {largest:.3g}"
    return ""


def main():
    import tensorflow as tf

    import custom_ops

    device = os.environ.get("VIT_SMOKE_DEVICE", "GPU:0")
    described = custom_ops.describe()
    if device.startswith("GPU") and not described["cuda_archs"]:
        reason = described["cuda_reason"] or described["reason"]
        print(json.dumps([["ops", f"there are no kernels for GPUs: {reason}"]]))
        return
    found = []
    for name, (function, inputs) in calls().items():

        def run(inputs, function=function):
            return step(function, inputs)

        ways = {"": run, " graph": tf.function(run), " jit": tf.function(run, jit_compile=True)}
        for dtype in CLOSE:
            rounded = [tf.cast(tf.cast(x, dtype), tf.float64) for x in inputs]
            with tf.device("CPU:0"), custom_ops.implementation("reference"):
                expected = [x.numpy() for x in run(rounded)]
            for way, compiled in ways.items():
                problem = check(compiled, inputs, dtype, device, expected)
                found.append((f"ops {name} {dtype}{way}", problem))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
