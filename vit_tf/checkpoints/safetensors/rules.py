"""Rules between the tensors of a layout and the canonical published arrays.

`D` width, `h` heads, `I` and `O` channels in and out. PyTorch stores kernels as `[O, I]` and
`[O, I, rows, columns]`, the published layout as `[I, O]` and `[rows, columns, I, O]`.
"""

import dataclasses

import numpy as np

from vit_tf.checkpoints.rule import Rule
from vit_tf.classes import Classes
from vit_tf.config import ModelConfig
from vit_tf.preprocessing import Preprocessing


@dataclasses.dataclass(frozen=True, eq=False)
class ReadRules:
    """How to read a file, from its names, shapes and settings; no tensor is read yet.

    Attributes:
        config: configuration of the model.
        preprocessing: `Preprocessing` of the model.
        classes: its `Classes`.
        notes: assumptions, and settings that cannot be kept, one sentence each.
        rules: all tensors of the model.
        aliases: name in a rule -> name in the file, where they differ.
        ignored: names in the file that the model does not use.
        grid: (rows, columns) of the table of positions; None means the model's own.
        position_resize: see `resize_position_table`.
    """

    config: ModelConfig
    preprocessing: Preprocessing
    classes: Classes
    notes: list[str]
    rules: list[Rule]
    aliases: dict[str, str] = dataclasses.field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    grid: tuple[int, int] | None = None
    position_resize: str = "bilinear"


@dataclasses.dataclass(frozen=True, eq=False)
class WriteRules:
    """How a model is written in a layout.

    Attributes:
        rules: all tensors, in the order of the file.
        files: file name -> JSON object.
        notes: settings that the layout cannot store, one sentence each.
        extra: published key -> array, for arrays that the model computes and does not store.
    """

    rules: list[Rule]
    files: dict[str, dict]
    notes: list[str]
    extra: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def renamed(name, key, shape):
    """One tensor under another name."""
    return Rule(name, shape, {key: shape}, lambda tensor: [tensor], lambda arrays: arrays[0])


def norm(name, key, size, scale="scale", bias="bias"):
    """Scale and bias of a norm."""
    return [
        renamed(f"{name}.weight", f"{key}/{scale}", (size,)),
        renamed(f"{name}.bias", f"{key}/{bias}", (size,)),
    ]


def convolution(name, key, shape):
    """A kernel `[O, I, rows, columns]`; `shape` is the published one."""
    rows, columns, inputs, outputs = shape
    return Rule(
        name,
        (outputs, inputs, rows, columns),
        {key: shape},
        to_arrays=lambda tensor: [tensor.transpose(2, 3, 1, 0)],
        to_tensor=lambda arrays: arrays[0].transpose(3, 2, 0, 1),
    )


def linear(name, keys, inputs, outputs, separator="."):
    """A dense layer, or several layers that the layout concatenates along their outputs.

    Args:
        name: name of the layer in the layout.
        keys: published key of the layer, or list of the keys of several layers.
        inputs, outputs: input and output shape of one layer, such as `(D,)` and `(h, D/h)`.
        separator: between the name and "weight" or "bias".
    """
    keys = [keys] if isinstance(keys, str) else keys
    rows, columns = int(np.prod(inputs)), int(np.prod(outputs))
    count = len(keys)
    return [
        Rule(
            f"{name}{separator}weight",
            (count * columns, rows),
            {f"{key}/kernel": (*inputs, *outputs) for key in keys},
            to_arrays=lambda tensor: [
                part.T.reshape(*inputs, *outputs) for part in np.split(tensor, count)
            ],
            to_tensor=lambda arrays: np.concatenate(
                [array.reshape(rows, columns).T for array in arrays]
            ),
        ),
        Rule(
            f"{name}{separator}bias",
            (count * columns,),
            {f"{key}/bias": tuple(outputs) for key in keys},
            to_arrays=lambda tensor: [part.reshape(outputs) for part in np.split(tensor, count)],
            to_tensor=lambda arrays: np.concatenate([array.reshape(-1) for array in arrays]),
        ),
    ]


def without_class_slot(name, key, shape):
    """A position table without a row for the class token, whose vector includes the position.

    `shape` counts that row.
    """
    batch, tokens, width = shape
    return Rule(
        name,
        (batch, tokens - 1, width),
        {key: shape},
        to_arrays=lambda tensor: [np.pad(tensor, [(0, 0), (1, 0), (0, 0)])],
        to_tensor=lambda arrays: arrays[0][:, 1:],
    )


def registers(name, key, shape, table=None, first=0):
    """Register tokens, `[1, R, D]`, which have no positions here.

    Args:
        name, key, shape: of the tokens.
        table: name of a position table with rows for them, which are added when it is read.
        first: number of rows before them.
    """
    if table is None:
        return renamed(name, key, shape)
    rows = slice(first, first + shape[1])
    return Rule(
        name,
        shape,
        {key: shape},
        to_arrays=lambda tokens, positions: [tokens + positions[:, rows]],
        to_tensor=lambda arrays: arrays[0],
        more=(table,),
    )


def with_register_slots(name, key, shape, count, first):
    """A position table with rows for register tokens, see `registers`; zeros when it is written.

    `shape` does not count these rows.
    """
    batch, tokens, width = shape
    return Rule(
        name,
        (batch, tokens + count, width),
        {key: shape},
        to_arrays=lambda tensor: [np.delete(tensor, slice(first, first + count), axis=1)],
        to_tensor=lambda arrays: np.insert(arrays[0], [first] * count, 0, axis=1),
    )
