"""Packs the weights of a Vision Transformer for fast inference."""

import itertools
import re

import numpy as np

from vit_tf.checkpoints.published.vit import GATE, GATED, SCALED_LAYERS
from vit_tf.weights import model_weights

PRECISIONS = ("float32", "bfloat16")


def pack_model(model, precision=None):
    """Packs the weights of a model once, so that all of its blocks run in one op.

    The result has its own copy of the weights: delete the model to free its memory. It computes
    the same as the model with `training=False`, faster on CPUs with the compiled library.

    Args:
        model: a `VisionTransformer` without axial attention and relative positions.
        precision: "float32", or "bfloat16" for half the memory and faster products; None takes the
            model's compute dtype.

    Returns:
        `vit_tf.models.PackedModel`.

    Raises:
        ValueError: if `why_not_packed` gives a reason.
    """
    from vit_tf.models.packed import PackedModel

    if reason := why_not_packed(model, precision):
        raise ValueError(f"{getattr(model, 'name', model)} cannot be packed: {reason}.")
    return PackedModel(model, _blocks(model), precision or model.compute_dtype)


def pack_frozen_blocks(model) -> int:
    """Packs the first blocks of a model that is trained, if nothing in or below them is trained.

    From then on they run in `custom_ops.encoder` with `training=True`, where it is compiled, in the
    compute dtype of the model; the result differs by rounding. A second call packs the weights that
    the model has by then, and graphs that were traced before read them.

    Args:
        model: a Keras model whose weights are loaded and whose frozen variables are not
            `trainable`. Only a `VisionTransformer` that `pack_model` covers, with positions in the
            stem, is changed.

    Returns:
        The number of blocks that are packed.
    """
    if why_not_packed(model) or model.config.position_injection != "stem":
        return 0
    from custom_ops import pack_encoder
    from vit_tf.models.frozen_blocks import FrozenBlocks, count_frozen, op_serves

    config, count = model.config, count_frozen(model)
    if not (count and op_serves(config.implementation)):
        return 0
    plan = pack_encoder(
        itertools.islice(_blocks(model), count),
        config.heads,
        model.compute_dtype,
        config.activation,
        config.layer_norm_epsilon,
    )
    if model.frozen_blocks is None:
        model.frozen_blocks = FrozenBlocks(plan, config)
    else:
        model.frozen_blocks.assign(plan)
    return count


def packed_or_same(model):
    """Packs a model in its compute dtype if `pack_model` covers it.

    Returns:
        The `PackedModel`, or the model itself; and a description of its packed parts.
    """
    if reason := why_not_packed(model):
        return model, f"no blocks: {reason}"
    packed = pack_model(model)
    return packed, packed.describe()


def why_not_packed(model, precision=None) -> str | None:
    """The reason why `pack_model` does not cover a model, or None; the arguments are the same."""
    if not hasattr(model, "why_not_packed"):
        return f"its class is {type(model).__name__}, and only a VisionTransformer is covered"
    if reason := model.why_not_packed():
        return reason
    precision = precision or model.compute_dtype
    if precision not in PRECISIONS:
        return f"{precision} is not covered; the precisions are {' and '.join(PRECISIONS)}"
    return None


def _blocks(model):
    """Yields the published arrays of each block, without their common prefix."""
    # Positions of a layer have keys such as Transformer/encoderblock_1/pos_embedding.
    pattern = re.compile(r"Transformer/encoderblock_\d+/(?=Layer|MultiHead|MlpBlock)")

    def prefix(key):
        found = pattern.match(key)
        return found and found[0]

    weights = model_weights(model)
    for start, keys in itertools.groupby(weights.shapes, prefix):
        if start:
            arrays = {key.removeprefix(start): weights.read(key) for key in keys}
            yield _with_gate(_without_scales(arrays))


def _without_scales(arrays):
    """The arrays of a block, with the factors of its branches in the layers before them."""
    for scale, layer in SCALED_LAYERS.items():
        if (factors := arrays.pop(scale, None)) is not None:
            for name in ("kernel", "bias"):
                arrays[f"{layer}/{name}"] = arrays[f"{layer}/{name}"] * factors
    return arrays


def _with_gate(arrays):
    """The arrays of a block, with the gate of its MLP in front of the value, in one layer."""
    for name in ("kernel", "bias"):
        if (gate := arrays.pop(f"{GATE}/{name}", None)) is not None:
            key = f"{GATED}/{name}"
            arrays[key] = np.concatenate([gate, arrays[key]], axis=-1)
    return arrays
