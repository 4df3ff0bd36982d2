"""Residual units and standardized kernels of timm's hybrids and BiT ResNets.

`f` is the width of a residual unit's bottleneck; a unit returns `4 f` channels.
"""

import dataclasses
import re

import numpy as np

from vit_tf.checkpoints.rule import Rule
from vit_tf.checkpoints.safetensors import infer_config
from vit_tf.checkpoints.safetensors.rules import convolution
from vit_tf.checkpoints.safetensors.timm.config_json import cannot, cannot_state

# Kernels are standardized as (w - mean) / sqrt(variance + 1e-8), in hybrids and BiT models alike.
EPSILONS = {"group_norm_epsilon": 1e-5, "variance_epsilon": 1e-8, "deviation_epsilon": 0.0}


def stage_depths(shapes, prefix) -> tuple[int, ...]:
    """How many residual units each stage has."""
    prefix = re.escape(prefix)
    stages = infer_config.how_many(shapes, rf"{prefix}\.(\d+)\.")
    return tuple(
        infer_config.how_many(shapes, rf"{prefix}\.{stage}\.blocks\.(\d+)\.")
        for stage in range(stages)
    )


def units(config):
    """Yields (timm's name, key of the stage, channels in, f, whether it begins a stage)."""
    inputs = config.root_channels
    for stage, count in enumerate(config.stage_depths):
        width = config.root_channels * 2**stage
        for unit in range(count):
            yield f"stages.{stage}.blocks.{unit}", f"block{stage + 1}", inputs, width, unit == 0
            inputs = 4 * width


def kernel_shapes(inputs, width):
    """Published shapes of the three kernels of a unit."""
    return (1, 1, inputs, width), (3, 3, width, width), (1, 1, width, 4 * width)


def standardized(config, name, key, shape) -> Rule:
    """The kernel of a convolution that standardizes it before use."""
    rule = convolution(name, key, shape)
    epsilons = config.variance_epsilon, config.deviation_epsilon
    if epsilons == (EPSILONS["variance_epsilon"], EPSILONS["deviation_epsilon"]):
        return rule
    return dataclasses.replace(
        rule, to_tensor=lambda arrays: rule.to_tensor([rescaled(arrays[0], *epsilons)])
    )


def rescaled(kernel, variance_epsilon, deviation_epsilon):
    """Scales a kernel such that timm's standardization of it equals ours of the original kernel.

    Ours divides w - mean by sqrt(v + a) + b; let e > 0 be the square of this divisor minus v. timm
    divides by sqrt(v + 1e-8). For c w instead of w, timm computes
    c (w - mean) / sqrt(c^2 v + 1e-8), which equals ours if c^2 = 1e-8 / e.

    Args:
        kernel: `[rows, columns, I, O]`; v is the variance of each of the `O` filters.
        variance_epsilon: a.
        deviation_epsilon: b; a and b must not both be 0.

    Returns:
        float32 of the same shape.
    """
    kernel = kernel.astype(np.float64)
    root = np.sqrt(kernel.var(axis=(0, 1, 2)) + variance_epsilon)
    excess = variance_epsilon + 2 * deviation_epsilon * root + deviation_epsilon**2
    return (kernel * np.sqrt(EPSILONS["variance_epsilon"] / excess)).astype(np.float32)


def check_writable(config, prefix=""):
    """Raises `ValueError` unless timm can compute the same as a stem or ResNet.

    Args:
        config: its configuration.
        prefix: "stem." for a stem; for messages.
    """
    wanted, value = EPSILONS["group_norm_epsilon"], config.group_norm_epsilon
    if value != wanted:
        raise cannot_state(f"{prefix}group_norm_epsilon", wanted, value, "GroupNorm")
    if not config.variance_epsilon and not config.deviation_epsilon:
        raise cannot("timm standardizes kernels with an epsilon, this model without one")
    if len(config.stage_depths) > 4:
        raise cannot(f"timm's ResNets have at most 4 stages, here {len(config.stage_depths)}")


def note_unknown(config, name, notes):
    """Adds a note: timm has no architecture of these sizes, and the file calls it `name`."""
    notes.append(
        f"timm has no architecture with stage_depths {config.stage_depths} and width "
        f"{config.width}, here called {name}: load it into a timm.models.ResNetV2 with these layers"
    )
