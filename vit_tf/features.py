"""A model of intermediate features, by the names of layers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from vit_tf.config.near_names import did_you_mean

if TYPE_CHECKING:
    import keras


def feature_model(model, names) -> keras.Model:
    """A Keras model from images to the outputs of chosen layers, which it shares with `model`.

    Args:
        model: from `create_model` or read from a file.
        names: names of layers in `[layer.name for layer in model.layers]`, such as "block_3"
            (tokens `[B, T, D]`; "block_3_row" and "block_3_column" of an axial model: `[B, R, C,
            D]`) or "norm"; and with residual units, also in a hybrid's stem, "block2_unit1",
            or "stage2" for the last unit of a stage (`[B, h, w, C]`).

    Returns:
        A `keras.Model` of float images in [-1, 1], `[B, H, W, 3]`: a dict from each name to the
        output of the layer, in the dtype in which the layer computes.

    Raises:
        ValueError: for an unknown name; the message has near names.

    Example:
        >>> model = create_model("R50+ViT-B/16", num_classes=10)
        >>> pyramid = feature_model(model, ["stage1", "stage2", "stage3", "block_11"])
    """
    import keras

    inside = model.stem_outputs()
    layers = [layer.name for layer in model.layers]
    aliases = _stages([*layers, *inside])
    layer_of = {name: aliases.get(name, name) for name in names}
    for name, layer in layer_of.items():
        if layer not in layers and layer not in inside:
            known = [*layers, *inside, *aliases]
            hint = did_you_mean(name, known) or f" Expected some of {', '.join(known)}."
            raise ValueError(f"{model.name} has no layer {name!r}.{hint}")

    behind = {name: layer for name, layer in layer_of.items() if layer not in inside}
    outputs = {name: model.get_layer(layer).output for name, layer in behind.items()}
    if outputs and len(behind) < len(layer_of):
        # Otherwise the stem would run twice: as one layer, and unit by unit.
        outputs = keras.Model(model.get_layer("stem").output, outputs)(inside["stem"])
    outputs |= {name: inside[layer] for name, layer in layer_of.items() if layer in inside}
    return keras.Model(model.input, {name: outputs[name] for name in layer_of})


def _stages(names):
    """The last unit of every stage: {"stage2": "block2_unit4", ...}."""
    units = [match for match in (re.fullmatch(r"block(\d+)_unit\d+", x) for x in names) if match]
    return {f"stage{unit[1]}": unit[0] for unit in units}
