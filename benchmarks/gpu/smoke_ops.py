"""The compiled ops on a GPU under TensorFlow, beside the reference on the CPU.

`python -m benchmarks.gpu.smoke_ops`. The last line is JSON: a list of `[name, problem]`, "" for
what is right. `VIT_SMOKE_DEVICE` names another device than GPU:0.
"""

import json
import os

import numpy as np

# Largest error as a part of the largest number: a few roundings. The reference is float64.
CLOSE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 4e-3}


def main():
    import tensorflow as tf

    import custom_ops

    device = os.environ.get("VIT_SMOKE_DEVICE", "GPU:0")
    described = custom_ops.describe()
    if device.startswith("GPU") and not described["cuda_archs"]:
        reason = described["cuda_reason"] or "there was no nvcc when the ops were built"
        print(json.dumps([["ops", f"the op library has no kernels for GPUs: {reason}"]]))
        return
    draw = np.random.default_rng(0)
    qkv, d_out = draw.normal(size=(2, 50, 3 * 128)), draw.normal(size=(2, 50, 128))
    images, kernel = draw.normal(size=(2, 35, 33, 3)), draw.normal(size=(16, 16, 3, 64))
    bias = draw.normal(size=64)
    calls = {
        "attention": (lambda x, **how: custom_ops.attention(x, 2, **how), (qkv,), d_out),
        "patch_embed": (custom_ops.patch_embed, (images, kernel, bias), np.ones((2, 4, 64))),
    }

    def results(function, inputs, gradient, dtype, where, implementation):
        """The output and the gradients of all inputs, as float64."""
        with tf.device(where), tf.GradientTape() as tape:
            sources = [tf.Variable(tf.cast(x, dtype)) for x in inputs]
            out = function(*sources, implementation=implementation)
            gradients = tape.gradient(out, sources, tf.cast(gradient, dtype))
        return [tf.cast(x, tf.float64).numpy() for x in (out, *gradients)]

    found = []
    for name, (function, inputs, gradient) in calls.items():
        for dtype in CLOSE:
            rounded = [tf.cast(tf.cast(x, dtype), tf.float64) for x in (*inputs, gradient)]
            expected = results(function, rounded[:-1], rounded[-1], "float64", "CPU:0", "reference")
            problem = ""
            try:
                ours = results(function, inputs, gradient, dtype, device, "compiled")
            except Exception as error:
                problem, ours = f"{type(error).__name__}: {error}"[:300], expected
            for index, (one, other) in enumerate(zip(ours, expected, strict=True)):
                error, largest = np.abs(one - other).max(), np.abs(other).max()
                if not error <= CLOSE[dtype] * largest:
                    problem = f"result {index} differs by {error:.3g} of {largest:.3g}"
            found.append((f"ops {name} {dtype}", problem))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
