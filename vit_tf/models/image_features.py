"""What a model computes of an image before it pools: class token, registers and patches."""

import operator
from typing import Any, NamedTuple


class ImageFeatures(NamedTuple):
    """The features of images behind one layer of a model.

    `B` images, `D` width, `R` registers.

    Attributes:
        class_token: `[B, D]`; None for a model without a class token.
        registers: `[B, R, D]`, the other tokens before the patches, such as a distillation token;
            None without any.
        patches: `[B, rows, columns, D]`, of a ResNet its last feature map.
    """

    class_token: Any
    registers: Any
    patches: Any


def layer_indices(layers, count) -> list[int]:
    """Indices of layers as numbers from 0 to `count - 1`.

    Args:
        layers: list, tuple or range of integers from 0; -1 is the last layer.
        count: number of layers.

    Raises:
        ValueError: if it is something else, or a model of `count` layers does not have a layer.
    """
    some = range(max(count - 4, 0), count)
    expected = (
        f"Expected a list of indices from 0 to {count - 1}, or from -1, the last layer, to "
        f"-{count}, such as {some} for the last {len(some)}."
    )
    if not isinstance(layers, list | tuple | range):
        raise ValueError(f"layers={layers!r} is no list. {expected}")
    found = []
    for layer in layers:
        try:
            index = operator.index(layer)
        except TypeError:
            raise ValueError(f"layers={layers!r} has {layer!r}. {expected}") from None
        if isinstance(layer, bool) or not -count <= index < count:
            raise ValueError(f"layers={layers!r} has {layer!r}. {expected}")
        found.append(index % count)
    return found
