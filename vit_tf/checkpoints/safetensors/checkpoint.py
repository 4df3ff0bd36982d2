"""Models of Hugging Face transformers and of timm, both ways, as `.safetensors` files.

Each layout is a list of rules between its tensors and the published arrays (`published_layout`),
used in both directions; what shapes do not tell is in the JSON files beside the weights.
"""

import json
import pathlib

import numpy as np

from vit_tf.checkpoints.atomic_file import write_atomically
from vit_tf.checkpoints.published_layout import some
from vit_tf.checkpoints.safetensors import huggingface, timm_reading, timm_writing
from vit_tf.checkpoints.safetensors.safetensors_file import SafetensorsFile, write_safetensors

__all__ = ["Foreign", "open_foreign", "write_foreign"]

# Layout -> its functions: whether it knows these names, what a file holds, how a model is written.
_LAYOUTS = {
    "huggingface": (huggingface.recognises, huggingface.read, huggingface.write),
    "timm": (timm_reading.recognises, timm_reading.read, timm_writing.write),
}
_WEIGHTS = "model.safetensors"
_KERNEL, _BIAS = "embedding/kernel", "embedding/bias"


class Foreign:
    """An open foreign checkpoint by canonical published key; a `with` block closes the file.

    Everything but the values has been checked: a complete model of vit_tf can be built from
    `config`, and every array of it can be read.

    Attributes:
        path: the `.safetensors` file.
        layout: "huggingface" or "timm".
        config: `ViTConfig` or `ResNetConfig`, with the source's activation and epsilons.
        preprocessing: `Preprocessing` for that model.
        notes: what was assumed, or differs from the source, one sentence each.
        shapes: canonical key -> shape.
    """

    def __init__(self, path, folder):
        self._file = SafetensorsFile(path)
        try:
            self.path, shapes = self._file.path, self._file.shapes
            self.layout = _layout_of(shapes, self.path)
            reading = _LAYOUTS[self.layout][1](self.path, shapes, folder)
            self._aliases = {
                name: reading.aliases.get(name, name)
                for rule in reading.rules
                for name in rule.names
            }
            _check_tensors(self.path, shapes, reading, self._aliases)
            self._file.check_readable(self._aliases.values())
        except BaseException:
            self._file.__exit__()
            raise
        self.config, self.preprocessing = reading.config, reading.preprocessing
        self.notes = reading.notes
        self.shapes = {key: shape for rule in reading.rules for key, shape in rule.shapes.items()}
        self._rules = {key: rule for rule in reading.rules for key in rule.shapes}
        self._input_map = reading.input_map
        if self._input_map:
            self.notes.append(
                "another range of pixels than [-1, 1]: taken over by the patch embedding"
            )
        self._last = None, {}

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._last = None, {}
        self._file.__exit__(*exc_info)

    def check(self, key):
        """Does nothing: whether `read` can succeed was found out when the file was opened."""

    def read(self, key) -> np.ndarray:
        """The array of a canonical key, float32.

        Raises:
            KeyError: if the model has no such array; see `shapes`.
            ValueError: if the file is damaged there.
        """
        if self._input_map and key == _KERNEL:
            return self._input_map.kernel(self._read(key))
        if self._input_map and key == _BIAS:
            return self._input_map.bias(self._read(key), self._read(_KERNEL))
        return self._read(key)

    def _read(self, key):
        rule = self._rules[key]
        # Queries, keys and values of timm are one tensor, and are usually asked for in turn.
        if self._last[0] is not rule:
            arrays = rule.pack([self._file.read(self._aliases[name]) for name in rule.names])
            self._last = rule, dict(zip(rule.shapes, arrays, strict=True))
        return np.ascontiguousarray(self._last[1][key])


def open_foreign(path) -> Foreign:
    """Opens a checkpoint of Hugging Face transformers or of timm.

    Args:
        path: a `.safetensors` file, or a folder that holds `model.safetensors`. `config.json` and
            `preprocessor_config.json` are read where they lie beside it; what they do not tell is
            assumed and noted.

    Returns:
        An open `Foreign`.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is damaged, of another layout, or a model that vit_tf cannot express; the
            message says which.
    """
    path = pathlib.Path(path)
    if not path.is_dir():
        return Foreign(path, path.parent)
    if not (path / _WEIGHTS).is_file() and (path / f"{_WEIGHTS}.index.json").is_file():
        raise ValueError(
            f"{path} holds a model in several files. Save it in one, for instance with "
            'save_pretrained(..., max_shard_size="100GB").'
        )
    return Foreign(path / _WEIGHTS, path)


def write_foreign(path, layout, config, preprocessing, read, shapes) -> list[str]:
    """Writes a model as a folder that Hugging Face transformers or timm loads.

    Each file is written whole or not at all, the weights first; arrays are asked for one at a time.

    Args:
        path: the folder; it is created if need be.
        layout: "huggingface" or "timm".
        config: `ViTConfig` or `ResNetConfig` of the model.
        preprocessing: its `Preprocessing`.
        read: canonical published key -> array.
        shapes: canonical published key -> shape, of all arrays of the model.

    Returns:
        What the layout does not keep, one sentence each.

    Raises:
        ValueError: if the layout cannot express the model (the message says why), or the arrays
            are not those of `config`. Nothing is written then.
    """
    if layout not in _LAYOUTS:
        raise ValueError(f"layout={layout!r} is unknown. Expected one of {', '.join(_LAYOUTS)}.")
    if preprocessing.image_size != config.image_size:
        raise ValueError(
            f"The preprocessing gives images of {preprocessing.image_size}, the model reads "
            f"{config.image_size}. They must be equal."
        )
    writing = _LAYOUTS[layout][2](config, preprocessing)
    wanted = {key: shape for rule in writing.rules for key, shape in rule.shapes.items()}
    given = {key: tuple(shape) for key, shape in shapes.items()}
    given |= {key: array.shape for key, array in writing.extra.items()}
    if wrong := sorted(key for key in wanted | given if wanted.get(key) != given.get(key)):
        key = wrong[0]
        raise ValueError(
            f"The arrays are not those of the configuration: {some(wrong)}. {key} has shape "
            f"{given.get(key)}, expected {wanted.get(key)}."
        )
    texts = {
        name: json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        for name, value in writing.files.items()
    }
    try:
        contents = {name: text.encode() for name, text in texts.items()}
    except UnicodeEncodeError as error:
        raise ValueError(f"A class name is not valid Unicode text: {error}.") from None
    folder = pathlib.Path(path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file. Expected a folder to write the model in.")
    folder.mkdir(parents=True, exist_ok=True)

    def tensor(name):
        rule = rules[name]
        arrays = [
            np.asarray(writing.extra[key] if key in writing.extra else read(key), np.float32)
            for key in rule.shapes
        ]
        (value,) = rule.unpack(arrays)
        return value

    # Every rule joins published arrays in one tensor, never the other way round.
    rules = {name: rule for rule in writing.rules for name in rule.names}
    names = {name: shape for rule in writing.rules for name, shape in rule.names.items()}
    write_safetensors(folder / _WEIGHTS, names, tensor)
    for name, content in contents.items():
        write_atomically(folder / name, lambda file, content=content: file.write(content))
    return writing.notes


def _layout_of(shapes, path):
    for layout, (recognises, _, _) in _LAYOUTS.items():
        if recognises(shapes):
            return layout
    raise ValueError(
        f"{path} is neither a Vision Transformer of Hugging Face transformers, nor a Vision "
        f"Transformer or BiT ResNet of timm. It holds {some(sorted(shapes)) or 'no tensors'}."
    )


def _check_tensors(path, shapes, reading, aliases):
    """Missing, misshapen and left over tensors are errors: the model would be another one."""
    expected = {
        aliases[name]: shape for rule in reading.rules for name, shape in rule.names.items()
    }
    if missing := [name for name in expected if name not in shapes]:
        raise ValueError(
            f"{path} lacks {some(missing)}. The file is incomplete, or of a model that vit_tf does "
            "not have."
        )
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise ValueError(
                f"{path}: {name} has shape {shapes[name]}. Expected {shape}, by the other tensors "
                "and config.json."
            )
    if extra := [name for name in shapes if name not in expected and name not in reading.ignored]:
        raise ValueError(
            f"{path} holds {some(extra)}, which vit_tf's models do not have: their logits would "
            "not be those of the source."
        )
