"""Models to and from foreign folders, for the tests of safetensors."""

import json

import numpy as np

import vit_tf
from vit_tf.checkpoints.published_layout import published_table
from vit_tf.checkpoints.safetensors.checkpoint import open_foreign, write_foreign
from vit_tf.checkpoints.safetensors.safetensors_file import SafetensorsFile, write_safetensors


def load(path):
    """`(model, foreign)`: what a foreign file holds, built and filled; the file is closed again."""
    with open_foreign(path) as foreign:
        model = vit_tf.create_model(foreign.config)
        table = published_table(model)
        assert {key: tuple(shape) for entry in table for key, shape in entry.shapes.items()} == (
            foreign.shapes
        )
        for entry in table:
            entry.variable.assign(entry.pack([foreign.read(key) for key in entry.shapes]))
    return model, foreign


def arrays(model):
    """Canonical key -> array."""
    found = {}
    for entry in published_table(model):
        values = entry.unpack(np.array(entry.variable.value))
        found |= dict(zip(entry.shapes, values, strict=True))
    return found


def save(model, path, layout, preprocessing=None):
    """Writes a model; returns what the layout does not keep."""
    values = arrays(model)
    preprocessing = preprocessing or vit_tf.Preprocessing(image_size=model.config.image_size)
    shapes = {key: value.shape for key, value in values.items()}
    return write_foreign(path, layout, model.config, preprocessing, values.get, shapes)


def rewrite(path, change):
    """Replaces the tensors of a folder by `change(name -> array)`."""
    file = path / "model.safetensors"
    with SafetensorsFile(file) as opened:
        tensors = {name: opened.read(name) for name in opened.shapes}
    tensors = change(tensors)
    write_safetensors(file, {name: array.shape for name, array in tensors.items()}, tensors.get)


def change(path, **values):
    """Replaces values of a JSON file; None removes them."""
    settings = json.loads(path.read_text()) | values
    kept = {key: value for key, value in settings.items() if value is not None}
    path.write_text(json.dumps(kept))
