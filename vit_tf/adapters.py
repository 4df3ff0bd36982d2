"""Stores low-rank adapters (LoRA) apart from their model, and merges stored ones into a model.

The file has the names and the layout that PEFT gives to adapters of timm's models: of each layer
`lora_A.weight` `[rank, inputs]` and `lora_B.weight` `[outputs, rank]`, the transposes of our A and
B. The other trained weights, the head and the positions have their published keys. The sidecar has
configuration, preprocessing and classes, as that of an `.npz` file.
"""

import contextlib
import hashlib
import math

import numpy as np

from vit_tf.checkpoints.published.vit import HEAD_PREFIXES
from vit_tf.checkpoints.rule import variables_by_path
from vit_tf.checkpoints.safetensors.safetensors_file import SafetensorsFile, write_safetensors
from vit_tf.checkpoints.shapes import summarize
from vit_tf.checkpoints.sidecar import read_sidecar, write_sidecar
from vit_tf.classes import Classes
from vit_tf.config.lora import TARGETS
from vit_tf.create import create_model
from vit_tf.families import config_from_dict
from vit_tf.loaded import LoadedModel
from vit_tf.models.lora import adaptable
from vit_tf.weights import load_checkpoint, model_weights, published_rules

_PREFIX = "base_model.model."
_A, _B = ".lora_A.weight", ".lora_B.weight"
_ADVICE = "Download or copy it again, or train again"


def save_adapters(model, path, preprocessing, classes) -> None:
    """Writes the adapters and the other trained weights of a model, with a sidecar `<path>.json`.

    Args:
        model: a `VisionTransformer` with adapters.
        path: of the `.safetensors` file.
        preprocessing, classes: its `vit_tf.Preprocessing` and `vit_tf.Classes`.
    """
    layers = {name: x for name, x in adaptable(model, TARGETS).items() if x.lora_enabled}
    tensors = {}
    for name, layer in layers.items():
        tensors[_PREFIX + name + _A] = np.asarray(layer.lora_kernel_a.value).T
        tensors[_PREFIX + name + _B] = np.asarray(layer.lora_kernel_b.value).T
    variables, weights = variables_by_path(model), model_weights(model)
    for rule in published_rules(model):
        if variables[rule.name].trainable or any(map(_is_of_run, rule.shapes)):
            tensors |= {key: weights.read(key) for key in rule.shapes}
    first = next(iter(layers.values()))
    metadata = {
        "lora_rank": str(first.lora_rank),
        "lora_alpha": repr(float(first.lora_alpha)),
        "backbone": _digest(model, tensors),
    }
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    write_safetensors(path, shapes, tensors.__getitem__, metadata)
    policy = model.dtype_policy.name
    write_sidecar(path, preprocessing, classes, model.config, model.config.grid, policy)


def load_adapters(loaded: LoadedModel, path) -> LoadedModel:
    """The model that adapters were trained in, from its backbone: they are merged into the kernels.

    Args:
        loaded: the backbone, with the weights that the training started from; its preprocessing
            may be None, if it is unknown.
        path: a file of `save_adapters`.

    Returns:
        A new model, with head, preprocessing and classes of the adapters.

    Raises:
        ValueError: if the file is damaged or is none of adapters, or was trained in another
            backbone.
        FileNotFoundError: if there is no such file.
    """
    with contextlib.closing(SafetensorsFile(path)) as file:
        scale = _scale(file)
        sidecar = read_sidecar(path)
        config, preprocessing = sidecar.config(config_from_dict), sidecar.preprocessing
        if config is None or preprocessing is None:
            raise ValueError(
                f"{sidecar.path}, which was written with {path}, is missing or has no "
                "configuration. Copy both files."
            )
        model = create_model(config, dtype=loaded.model.dtype_policy.name)
        backbone = model_weights(loaded.model, "the model", loaded.preprocessing)
        try:
            load_checkpoint(model, backbone, head="auto", preprocessing=preprocessing)
        except ValueError as error:
            raise ValueError(f"{path} does not fit the model: {error}") from None
        _merge(file, model, scale)
    return LoadedModel(model, preprocessing, sidecar.classes or Classes())


def _scale(file):
    """The factor of the products of adapters, from the header of their file."""
    with contextlib.suppress(KeyError, ValueError, ZeroDivisionError):
        scale = float(file.metadata["lora_alpha"]) / int(file.metadata["lora_rank"])
        if math.isfinite(scale) and "backbone" in file.metadata:
            return scale
    raise ValueError(
        f"{file.path} holds no adapters: its header states none. Name the adapters.safetensors of "
        "a run with optimizer.lora_rank."
    )


def _merge(file, model, scale):
    """Puts the tensors of a file into a model with the weights of the backbone."""
    layers = adaptable(model, TARGETS)
    names = sorted({name.removesuffix(_A) for name in file.shapes if name.endswith(_A)})
    known = [name for name in names if name.removeprefix(_PREFIX) in layers]
    chosen = {name: layers[name.removeprefix(_PREFIX)] for name in known}
    rules = {rule.name: rule for rule in published_rules(model)}
    others = [rule for rule in rules.values() if file.shapes.keys() & rule.shapes.keys()]
    expected = {key: tuple(shape) for rule in others for key, shape in rule.shapes.items()}
    rank = int(file.metadata["lora_rank"])
    for name, layer in chosen.items():
        inputs, outputs = layer.kernel.shape
        expected |= {name + _A: (rank, inputs), name + _B: (outputs, rank)}
    given = {name: tuple(shape) for name, shape in file.shapes.items()}
    if not names or (wrong := {k for k in expected | given if expected.get(k) != given.get(k)}):
        raise ValueError(
            f"{file.path} is damaged: its tensors do not fit the model that it describes, such as "
            f"{summarize(sorted(wrong)) if names else 'those of adapters'}. {_ADVICE}."
        )
    file.check_readable(given)
    if _digest(model, given) != file.metadata["backbone"]:
        raise ValueError(
            f"{file.path} was trained in another backbone of the same sizes: the frozen weights of "
            "the model differ. Name the model that the run was started from (its init_from)."
        )
    variables = variables_by_path(model)
    for rule in others:
        variables[rule.name].assign(rule.to_tensor([file.read(key) for key in rule.shapes]))
    for name, layer in chosen.items():
        # The same operations as in `Dense.merged_kernel`: the same bits as in the run's own file.
        a, b = (np.ascontiguousarray(file.read(name + end).T) for end in (_A, _B))
        layer.kernel.assign(np.asarray(layer.kernel.value) + np.float32(scale) * (a @ b))


def _is_of_run(key):
    """Whether an array of this key is that of the run, and not the backbone's, also if frozen.

    Heads may be reset, and positions are resized for the images of the run.
    """
    return key.startswith(HEAD_PREFIXES) or "/posembed_input/" in key


def _digest(model, stored):
    """SHA-256 of the weights whose keys are not in `stored`, by which adapters know their backbone.

    Adapters that the model has are left out.
    """
    digest, variables = hashlib.sha256(), variables_by_path(model)
    for rule in published_rules(model):
        if not rule.shapes.keys() & stored.keys():
            digest.update(np.asarray(variables[rule.name].value, "<f4").tobytes())
    return digest.hexdigest()
