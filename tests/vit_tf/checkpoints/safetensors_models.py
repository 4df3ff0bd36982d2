"""Models to and from folders of Hugging Face and timm, for the tests of safetensors."""

import contextlib
import json
import types

import numpy as np

import vit_tf
from tests.vit_tf import tiny
from vit_tf.checkpoints.rule import variables_by_path
from vit_tf.checkpoints.safetensors.safetensors_file import SafetensorsFile, write_safetensors
from vit_tf.checkpoints.safetensors.timm.residual import EPSILONS
from vit_tf.checkpoints.safetensors.writing import write_checkpoint
from vit_tf.families import layout_module
from vit_tf.weights import open_checkpoint, published_rules

HUGGINGFACE = {"activation": "gelu_erf", "layer_norm_epsilon": 1e-12}
DINOV2 = {"activation": "gelu_erf", "layer_scale": 0.5, "num_classes": 0, "mlp_size": 24}
DINOV2 |= {"image_size": 12}
# Written with a ratio of 4, as `8 ceil(4 * 12 * 2 / 3 / 8)`.
GATED = DINOV2 | {"activation": "swiglu", "mlp_size": 32}
DINOV3 = DINOV2 | {"position_embedding": "rotary_2d", "key_bias": False}
SIGLIP = {"classifier": "map", "num_classes": 0, "image_size": 12}
TIMM = {"activation": "gelu_erf", "layer_norm_epsilon": 1e-6}
# The seed of no other model, so that the loaded one is not that which was saved.
_LOADED = 1_000
BIT = vit_tf.ResNetConfig(
    stage_depths=(1, 2), width=0.5, image_size=(40, 33), num_classes=5, **EPSILONS
)


def load(path):
    """`(model, checkpoint)` of a file or folder, with the weights loaded; the file is closed.

    All calls for one configuration return the same model, see `tiny.shared_of`.
    """
    with open_checkpoint(path) as checkpoint:
        model = tiny.shared_of(checkpoint.config, seed=_LOADED)
        rules, variables = published_rules(model), variables_by_path(model)
        assert {key: tuple(shape) for rule in rules for key, shape in rule.shapes.items()} == (
            checkpoint.shapes
        )
        for rule in rules:
            values = [checkpoint.read(key) for key in rule.shapes]
            variables[rule.name].assign(rule.to_tensor(values))
    return model, checkpoint


def arrays(model):
    """Canonical key -> array."""
    found, variables = {}, variables_by_path(model)
    for rule in published_rules(model):
        values = rule.to_arrays(np.array(variables[rule.name].value))
        found |= dict(zip(rule.shapes, values, strict=True))
    return found


def save(model, path, layout, preprocessing=None, classes=None):
    """Writes a model; returns the notes about settings that the layout does not store."""
    values = arrays(model)
    preprocessing = preprocessing or vit_tf.Preprocessing(image_size=model.config.image_size)
    shapes = {key: value.shape for key, value in values.items()}
    return write(path, layout, model.config, preprocessing, values.get, shapes, classes)


def write(path, layout, config, preprocessing, read, shapes, classes=None):
    """Writes the values of `read` for the keys of `shapes`."""
    module = layout_module(config, layout)
    weights = types.SimpleNamespace(read=read, shapes=shapes)
    return write_checkpoint(
        path, module, config, preprocessing, classes or vit_tf.Classes(), weights
    )


def rewrite(path, change):
    """Replaces the tensors of a folder by `change(name -> array)`."""
    file = path / "model.safetensors"
    with contextlib.closing(SafetensorsFile(file)) as opened:
        tensors = {name: opened.read(name) for name in opened.shapes}
    tensors = change(tensors)
    write_safetensors(file, {name: array.shape for name, array in tensors.items()}, tensors.get)


def change(path, **values):
    """Replaces values of a JSON file; None removes them."""
    settings = json.loads(path.read_text()) | values
    kept = {key: value for key, value in settings.items() if value is not None}
    path.write_text(json.dumps(kept))


def random_parts():
    """Two functions: a random tensor of a shape, and weight and bias of a layer, by name."""
    rng = np.random.default_rng(0)

    def tensor(*shape, center=0.0):
        return np.float32(center + 0.3 * rng.normal(size=shape))

    def layer(name, *shape, center=0.0):
        return {f"{name}.weight": tensor(*shape, center=center), f"{name}.bias": tensor(shape[0])}

    return tensor, layer
