"""A checkpoint of Hugging Face transformers or timm, by canonical published key."""

import collections
import os

from vit_tf.checkpoints.kinds import WEIGHTS_NAME, kind_of, refusal
from vit_tf.checkpoints.rule import RuleReader
from vit_tf.checkpoints.safetensors.safetensors_file import SafetensorsFile
from vit_tf.checkpoints.shapes import summarize
from vit_tf.files import storage

# Parts of a prefix, such as "model.backbone."; a hostile name can have millions.
_MOST_PARTS = 8


class SafetensorsCheckpoint(RuleReader):
    """An open checkpoint of another project, as in `vit_tf.checkpoints`; `with` closes it.

    The constructor checks everything except the values: vit_tf can build the model of `config`, and
    can read every array of it.

    Args:
        path: a `.safetensors` file, or a folder that holds `model.safetensors`. `config.json` and
            `preprocessor_config.json` are read from the same folder if they exist; `notes` lists
            the settings that they do not state and that are assumed. Wrappers such as
            `torch.compile` put a prefix before the names of tensors; it is left out, with a note.
        layouts: for each family of models a dictionary from layout to its module.
        own_grid: (rows, columns) of the model that gets the weights, tried before a square if the
            image size is not stated; None if there is no model yet.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged, has another layout, or holds a model that vit_tf cannot
            express; the message states the reason.
    """

    dtype = None

    def __init__(self, path, layouts, own_grid=None):
        self.path = os.fspath(path)
        folder, file = _locate(self.path)
        self._file = SafetensorsFile(file)
        try:
            file, shapes = self._file.path, self._file.shapes
            self.layout, module, prefix = _recognize(shapes, layouts, file)
            stored = {_without(prefix, name): name for name in shapes}
            if len(stored) < len(shapes):
                raise ValueError(f"{file} holds tensors with and without the prefix {prefix!r}.")
            shapes = {name: shapes[whole] for name, whole in stored.items()}
            if prefix:
                file = f"{file} (its names without {prefix!r})"
            reading = module.read(file, shapes, folder, own_grid)
            names = {rule.name: reading.aliases.get(rule.name, rule.name) for rule in reading.rules}
            _check_tensors(file, shapes, reading, names)
            names = {name: stored[alias] for name, alias in names.items()}
            self._file.check_readable(names.values())
        except BaseException:
            self._file.close()
            raise
        self.config = self.trained_config = reading.config
        self.grid = reading.grid or reading.config.grid
        self.position_resize = reading.position_resize
        self.preprocessing, self.classes = reading.preprocessing, reading.classes
        self.notes = reading.notes
        if prefix:
            self.notes.append(f"the names of the tensors begin with {prefix!r}, which is left out")
        super().__init__(reading.rules, lambda name: self._file.read(names[name]))

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._file.close()

    def check(self, key):
        """Does nothing: the constructor has checked that `read` can succeed."""


def _locate(path):
    """The folder with the JSON files, and the file with the weights."""
    if not storage.is_folder(path):
        return os.path.dirname(path), path
    if (kind := kind_of(path)) == "shards":
        raise refusal(path, kind)
    return path, os.path.join(path, WEIGHTS_NAME)


def _recognize(shapes, layouts, path):
    """The name of the layout, its module for the family of the model, and the prefix of names."""
    for prefix in _prefixes(shapes):
        names = {_without(prefix, name) for name in shapes}
        for modules in layouts:
            for layout, module in modules.items():
                if module.recognizes(names):
                    return layout, module, prefix
    raise ValueError(
        f"{path} is neither a Vision Transformer of Hugging Face transformers, nor a Vision "
        "Transformer or BiT ResNet of timm, nor an AxialResNet of axial-deeplab. It holds "
        f"{summarize(sorted(shapes)) or 'no tensors'}."
    )


def _prefixes(names):
    """Possible prefixes: none, then the first part of most names, their first two parts, ..."""
    prefix = ""
    for _ in range(_MOST_PARTS):
        yield prefix
        rest = [name[len(prefix) :] for name in names if name.startswith(prefix)]
        parts = collections.Counter(name.partition(".")[0] for name in rest if "." in name)
        if not parts:
            return
        prefix += parts.most_common(1)[0][0] + "."


def _without(prefix, name):
    """A name without its parts that are in the prefix; heads often have only the first of them."""
    for part in prefix.split(".")[:-1]:
        if not name.startswith(f"{part}."):
            break
        name = name.removeprefix(f"{part}.")
    return name


def _check_tensors(path, shapes, reading, names):
    """Raises for missing, misshapen and unused tensors: the model would be another one."""
    expected = {names[rule.name]: rule.tensor_shape for rule in reading.rules}
    if missing := [name for name in expected if name not in shapes]:
        raise ValueError(
            f"{path} lacks {summarize(missing)}. The model was not saved as a whole, or vit_tf "
            "does not have it."
        )
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise ValueError(
                f"{path}: {name} has shape {shapes[name]}. Expected {shape}, as in the other "
                "tensors and config.json."
            )
    if extra := [name for name in shapes if name not in expected and name not in reading.ignored]:
        raise ValueError(
            f"{path} holds {summarize(extra)}, which vit_tf's models do not have: their logits "
            "would differ from the source's."
        )
