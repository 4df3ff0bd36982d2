"""Checks that the compiled ops and the shipped model compute correct results."""

import numpy as np
import tensorflow as tf

import custom_ops
from custom_ops.library_file import REBUILD
from vit_tf.analysis.relative_difference import relative_difference

# Largest relative difference of compiled ops and reference; both are computed in float32.
_MAX_DIFFERENCE = 1e-5


def check_ops(report):
    """Compares the compiled ops with the reference; adds the section "ops" to a report."""
    state = custom_ops.describe()
    isas, no_kernels = state.pop("isas"), state.pop("cuda_reason")
    report.facts["ops"] = state | {f"ISAs {name}": value for name, value in isas.items()}
    if state["cuda_archs"] or no_kernels:
        report.facts["ops"]["GPU kernels"] = _gpu_kernels(state["cuda_archs"], no_kernels)
    if state["broken"]:
        report.broken.append(f"The compiled ops are not used: {state['reason']}.")
    elif not state["compiled"]:
        report.hints.append(f"The compiled ops are not used: {state['reason']}.")
    elif state["xla_reason"]:
        report.hints.append(f"Under jit_compile=True the reference runs: {state['xla_reason']}.")
    if state["outdated"]:
        report.hints.append(
            f"{state['path']} was not built from the sources in this package. Build it again with "
            f"`{REBUILD}`."
        )
    if isas["error"]:
        report.broken.append(isas["error"])
    elif state["compiled"]:
        _compare_ops(report)
    if state["implementation"] == "reference":
        report.hints.append("VIT_OPS=reference is set, so the compiled ops are not used. Unset it.")


def _gpu_kernels(archs, why_none):
    """Which GPUs the library has kernels for, and which setting chooses them, as one line."""
    if not archs:
        return f"none: {why_none}"
    return (
        f'compiled for {", ".join(archs)}, not run under TensorFlow on a GPU yet: on GPUs "auto" '
        'stays on the reference until then, implementation="compiled" chooses the kernels'
    )


def _compare_ops(report):
    """Compares the compiled ops with the reference on a small example, gradients included."""
    random = np.random.default_rng(1)
    qkv = tf.constant(random.normal(size=[2, 37, 3 * 48]), tf.float32)
    images = tf.constant(random.integers(0, 256, [2, 16, 24, 3]), tf.uint8)
    kernel = tf.constant(random.normal(size=[8, 8, 3, 40]), tf.float32)
    bias = tf.constant(random.normal(size=[40]), tf.float32)

    def attention(implementation):
        return custom_ops.attention(qkv, 3, implementation=implementation)

    def patch_embed(implementation):
        scaled = {"scale": 2 / 255, "offset": -1.0}
        return custom_ops.patch_embed(images, kernel, bias, **scaled, implementation=implementation)

    for function, source in ((attention, qkv), (patch_embed, kernel)):
        name = function.__name__
        try:
            difference = _difference(function, source)
        except (tf.errors.OpError, ValueError) as error:
            report.facts["ops"][f"{name} check"] = "failed"
            report.broken.append(
                f"The compiled {name} fails: {error}. Build it again with `{REBUILD}`."
            )
            continue
        report.facts["ops"][f"{name} check"] = f"within {difference:.1e} of the reference"
        if not difference <= _MAX_DIFFERENCE:
            report.broken.append(
                f"The compiled {name} differs from the reference by {difference:.1e} of the "
                f"largest value. Set VIT_OPS=reference, and build it again with `{REBUILD}`."
            )


def _difference(function, source):
    """Returns the largest relative difference of outputs and gradients."""
    results = []
    with tf.device("CPU:0"):
        for implementation in ("compiled", "reference"):
            with tf.GradientTape() as tape:
                tape.watch(source)
                out = function(implementation)
                cotangent = tf.sin(tf.range(tf.cast(tf.size(out), out.dtype)))
                loss = tf.reduce_sum(out * tf.reshape(cotangent, tf.shape(out)))
            results.append((out.numpy(), tape.gradient(loss, source).numpy()))
    pairs = zip(*results, strict=True)
    return max(relative_difference(compiled, reference) for compiled, reference in pairs)


def check_shipped_model(report):
    """Loads and runs the shipped model; adds the section "shipped model" to a report."""
    # Imported here because it imports h5py, which the comparison of the ops does not need.
    from pipelines.stored_models import model_source

    source = model_source.find(model_source.SHIPPED)
    facts = report.facts["shipped model"] = {"file": source.path}
    try:
        model = source.open_model().model
        size = model.config.image_size
        logits = model(tf.zeros([1, *size, 3])).numpy()
    except (ValueError, OSError, tf.errors.OpError) as error:
        facts["loads"] = False
        report.broken.append(
            f"The shipped model does not load: {error} Install this project again."
        )
        return
    facts["loads"] = True
    if not np.isfinite(logits).all():
        report.broken.append(
            "The shipped model computes NaN or infinity. Try again with VIT_OPS=reference."
        )
