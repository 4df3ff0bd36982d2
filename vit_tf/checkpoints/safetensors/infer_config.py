"""Reads sizes, counts, image size and preprocessing from shapes and settings, for all layouts."""

import math
import re

import numpy as np

from vit_tf.checkpoints.published.vit_positions import POSITIONS
from vit_tf.checkpoints.shapes import square_grid
from vit_tf.layers.positions import SinCosPositions
from vit_tf.preprocessing import MAX_SIDE, Preprocessing, ResizeRule


def sizes(shapes, name, count, path) -> tuple[int, ...]:
    """The shape of a required tensor with `count` axes, none of size 0."""
    if name not in shapes:
        raise ValueError(
            f"{path} has no tensor {name}. The model was not saved as a whole, or vit_tf does not "
            "have it."
        )
    shape = shapes[name]
    if len(shape) != count or 0 in shape:
        raise ValueError(f"{path}: {name} has shape {shape}. Expected {count} axes, none empty.")
    return shape


def how_many(names, pattern) -> int:
    """How many different numbers the group of `pattern` has, matched at the start of `names`."""
    found = (re.match(pattern, name) for name in names)
    return len({match[1] for match in found if match})


def patch_kernel(shapes, name, path, channels=None) -> tuple[int, int]:
    """Patch size and width from the kernel of the patch embedding, `[D, channels, P, P]`."""
    width, inputs, rows, columns = sizes(shapes, name, 4, path)
    if rows != columns:
        raise ValueError(
            f"{path}: {name} cuts patches of {rows} x {columns}. vit_tf has square patches only."
        )
    if inputs != (channels or 3):
        what = f"{channels} channels of the stem" if channels else "3 channels of an image"
        raise ValueError(f"{path}: {name} reads {inputs} channels. Expected the {what}.")
    return rows, width


def check_stated(settings, name, value):
    """Raises if the settings state another value than the tensors have."""
    stated = settings.integer(name) if settings else None
    if stated is not None and stated != value:
        raise settings.error(name, f"{value}, as in the tensors")


def check_stated_classes(settings, num_classes, head):
    """As `check_stated` for the number of classes; `head` is the name of the head's layer."""
    stated = settings.integer("num_classes") if settings else None
    if stated and not num_classes:
        advice = (
            f"Rename the tensors of the head to {head}.weight and {head}.bias, or state "
            "num_classes 0: the model then has no head."
        )
        raise settings.error("num_classes", f"a tensor {head}.weight, as the file has none", advice)
    check_stated(settings, "num_classes", num_classes)


def check_image_size(size, path):
    """Raises unless (height, width) can be the size of an image."""
    if not all(1 <= side <= MAX_SIDE for side in size):
        raise ValueError(
            f"{path}: the image size is {size}. Expected sides from 1 to {MAX_SIDE} pixels."
        )


def image_size(rows, patch, reduction, stated, path, notes, own_grid) -> tuple[int, int]:
    """(height, width) of the images of a model with `rows` patch positions.

    Args:
        rows: positions, class token not counted; None if there is no table.
        patch: side of a patch, in pixels of the image or, with a stem, of its feature map.
        reduction: factor by which a stem divides the sides; 1 without a stem.
        stated: (height, width) from the settings, or None.
        path: for messages.
        notes: list to which a sentence is added if the size is assumed.
        own_grid: (rows, columns) that is tried before a square if the size is not stated, or None.
    """
    if stated is not None:
        check_image_size(stated, path)
        grid = tuple(-(-side // reduction) // patch for side in stated)
        if rows is not None and grid[0] * grid[1] != rows:
            raise ValueError(
                f"{path} has {rows} patch positions, and images of {stated[0]} x {stated[1]} have "
                f"{grid[0]} x {grid[1]} patches. Correct the image size in config.json."
            )
        return stated
    if rows is None:
        raise ValueError(
            f"{path} does not state the image size, and has no positions. State it in config.json."
        )
    if own_grid is not None and math.prod(own_grid) == rows:
        grid = own_grid
    elif (grid := square_grid(rows)) is None:
        raise ValueError(
            f"{path} has {rows} patch positions, which are not a square, so that the image size is "
            "unknown. State it in config.json."
        )
    size = tuple(side * patch * reduction for side in grid)
    notes.append(
        f"the image size is not stated: assumed {size[0]} x {size[1]} for {grid[0]} x {grid[1]} "
        "patches"
    )
    check_image_size(size, path)
    return size


def check_tensor_names(path, names, reasons):
    """Raises `ValueError` if a name matches a pattern in `reasons`, pairs (pattern, reason)."""
    for name in names:
        for pattern, reason in reasons:
            if re.search(pattern, name):
                raise ValueError(f"{path} cannot be expressed in vit_tf: {reason}, see {name}.")


def preprocessing(
    path, size, notes, resize: ResizeRule = "direct", resize_to=None, **fields
) -> Preprocessing:
    """A `Preprocessing` for `size`; direct, with a note, if `resize_to` does not fit.

    The sources decode JPEGs as Pillow does.

    Args:
        path: file with the settings, for messages.
        size: (height, width) of the model's images.
        notes: list to which a sentence is added if the source's crop is not available.
        resize, resize_to: see `Preprocessing`.
        **fields: further fields of `Preprocessing`.
    """
    if resize_to is not None and not max(size) <= resize_to <= MAX_SIDE:
        notes.append(
            f"a shorter side of {resize_to} does not fit images of {size[0]} x {size[1]}: images "
            "are resized directly"
        )
        resize, resize_to = "direct", None
    try:
        return Preprocessing(
            image_size=size, resize=resize, resize_to=resize_to, jpeg="accurate", **fields
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def interpolation(name, notes) -> dict:
    """`interpolation` and `antialias` of `Preprocessing` for a filter of Pillow by name.

    Both sources resize with Pillow or in the same way, which includes antialiasing.
    """
    if name == "box":
        notes.append("the source resizes with Pillow's box filter, here by area")
        return {"interpolation": "area"}
    if name not in ("bilinear", "bicubic"):
        notes.append(f"the source's filter is {name}, which is not available here: bicubic instead")
        name = "bicubic"
    return {"interpolation": name, "antialias": True}


def note_resize(preprocessing, exact, notes):
    """Adds a sentence for each difference between our preprocessing and the layout's.

    Args:
        preprocessing: the `Preprocessing` to write.
        exact: the rules of `Preprocessing.resize` that the layout has.
        notes: the list.
    """
    pixels = []
    if preprocessing.interpolation == "area":
        pixels.append("has Pillow's box filter instead of the mean over an area")
    elif not preprocessing.antialias:
        pixels.append("resizes with antialiasing")
    if preprocessing.jpeg != "accurate":
        pixels.append("decodes JPEGs as jpeg=accurate does")
    if pixels:
        notes.append(f"the layout {' and '.join(pixels)}")
    if preprocessing.exif == "apply":
        notes.append("the layout does not say that photos are turned by their EXIF orientation")
    if preprocessing.resize not in exact:
        notes.append(
            f"the layout does not have resize={preprocessing.resize!r}: its crop can differ by a "
            "pixel"
        )


def checked_labels(classes, num_classes) -> tuple[str, ...]:
    """The labels of `Classes`; raises if they do not fit the number of classes."""
    labels = classes.labels
    if not classes.fit(num_classes):
        raise ValueError(
            f"There are {len(labels)} labels for {num_classes} classes. Pass one for each, or none."
        )
    return labels


def inexpressible(config, has_gate=False, has_qkv_bias=True) -> str | None:
    """Why a layout with positions at the tokens cannot store a Vision Transformer, as a clause.

    Args:
        config: the `ViTConfig`.
        has_gate: whether the layout has gated MLPs.
        has_qkv_bias: whether all its models have biases of queries, keys and values; else some
            have none of the three.

    Returns:
        None if nothing is known.
    """
    if config.axial:
        return "it has no axial models"
    if (kind := config.position_embedding) in ("learned_2d", "relative"):
        return f"it has one vector per position, but position_embedding is {kind!r}"
    if config.rotary:
        return "it has no rotary positions"
    if config.qk_norm or (not config.key_bias and (has_qkv_bias or config.qkv_bias)):
        return (
            "it has no norm of queries and keys, and a bias of the keys, but qk_norm is "
            f"{config.qk_norm} and key_bias is {config.key_bias}"
        )
    if config.activation == "swiglu" and not has_gate:
        return "its MLP has no gate, but activation is 'swiglu'"
    if (injection := config.position_injection) != "stem":
        return f"it adds positions once, but position_injection is {injection!r}"
    return None


def written_positions(config, notes) -> dict[str, np.ndarray]:
    """Published key -> table, for a layout that always has one; adds a sentence to `notes`."""
    if config.position_embedding == "none":
        notes.append("no position embedding: written as a table of zeros")
        tokens = config.has_class_token + config.grid[0] * config.grid[1]
        return {POSITIONS: np.zeros([1, tokens, config.hidden_size], np.float32)}
    if config.position_embedding == "sincos_2d":
        notes.append("sincos_2d positions: written as a table")
        return {POSITIONS: sincos_table(config)}
    return {}


def sincos_table(config):
    """The fixed positions of class token and patches as a published table, `[1, tokens, D]`."""
    layer = SinCosPositions(config.grid, int(config.has_class_token))
    layer.build((None, None, config.hidden_size))
    return layer.table[None]
