"""Writes a model as a folder that Hugging Face transformers or timm loads."""

import json
import pathlib

import numpy as np

from vit_tf.checkpoints.kinds import WEIGHTS_NAME
from vit_tf.checkpoints.safetensors.safetensors_file import write_safetensors
from vit_tf.checkpoints.shapes import summarize
from vit_tf.files.atomic_file import write_atomically


def write_checkpoint(path, module, config, preprocessing, classes, weights) -> list[str]:
    """Writes a model as a folder that Hugging Face transformers or timm loads.

    Each file is written completely or not at all, the weights first. Arrays are read one at a time.

    Args:
        path: the folder; it is created if it does not exist.
        module: the layout's module for the family; see `vit_tf.checkpoints.safetensors`.
        config: configuration of the model.
        preprocessing, classes: its `Preprocessing` and `Classes`.
        weights: has `shapes`, canonical published key -> shape, and `read(key)`.

    Returns:
        Settings that the layout does not store, one sentence each.

    Raises:
        ValueError: if the layout cannot express the model (the message states why), or the arrays
            do not match `config`. Nothing is written then.
    """
    if preprocessing.image_size != config.image_size:
        raise ValueError(
            f"The preprocessing makes images of {preprocessing.image_size}, the model reads "
            f"{config.image_size}. They must be equal."
        )
    writing = module.write(config, preprocessing, classes)
    _check_arrays(writing, weights.shapes)
    contents = _encoded(writing.files)
    folder = pathlib.Path(path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file. Expected a folder to write the model in.")
    folder.mkdir(parents=True, exist_ok=True)

    rules = {rule.name: rule for rule in writing.rules}

    def tensor(name):
        rule, extra = rules[name], writing.extra
        arrays = [extra[key] if key in extra else weights.read(key) for key in rule.shapes]
        return rule.to_tensor([np.asarray(array, np.float32) for array in arrays])

    shapes = {rule.name: rule.tensor_shape for rule in writing.rules}
    write_safetensors(folder / WEIGHTS_NAME, shapes, tensor)
    for name, content in contents.items():
        write_atomically(folder / name, lambda file, content=content: file.write(content))
    return writing.notes


def _check_arrays(writing, shapes):
    """Raises unless the rules write exactly the arrays of the model."""
    expected = {key: shape for rule in writing.rules for key, shape in rule.shapes.items()}
    given = {key: tuple(shape) for key, shape in shapes.items()}
    given |= {key: array.shape for key, array in writing.extra.items()}
    if wrong := sorted(key for key in expected | given if expected.get(key) != given.get(key)):
        key = wrong[0]
        raise ValueError(
            f"The arrays do not match the configuration: {summarize(wrong)}. {key} has shape "
            f"{given.get(key)}, expected {expected.get(key)}."
        )


def _encoded(files):
    """File name -> bytes of its JSON object."""
    texts = {
        name: json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        for name, value in files.items()
    }
    try:
        return {name: text.encode() for name, text in texts.items()}
    except UnicodeEncodeError as error:
        raise ValueError(f"A class name is not valid Unicode text: {error}.") from None
