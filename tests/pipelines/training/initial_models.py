"""Files of initial models of every kind, and what fine-tuning chooses for them."""

import logging

import numpy as np

import vit_tf
from pipelines.config import Assignments, Request, recipes
from pipelines.distribution.log_lines import attached
from pipelines.training import fine_tuning
from tests.pipelines import encoded
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models
from tests.vit_tf.checkpoints.npz_files import linen, saved, write
from vit_tf.weights import published_arrays

SQUARE = {"image_size": (8, 8)}
HYBRID = {"stem": {"stage_depths": (1,), "width": 0.5}, "patch_size": 2, "image_size": (32, 32)}


def bit():
    config = vit_tf.ResNetConfig(stage_depths=(1, 1), width=0.5, num_classes=5)
    return vit_tf.create_model(config)


def published(model, path):
    """As released: no sidecar."""
    return saved(model, path / "model.npz", sidecar=False)


def training_state(model, path):
    names = {f"opt/target/{linen(key)}": value for key, value in published_arrays(model)}
    return write(path / "model.npz", names)


def big_vision(model, path):
    """Positions at the top, without a class token; all blocks in one array."""
    found = {}
    for key, value in published_arrays(model):
        key = "pos_embedding" if key.endswith("pos_embedding") else key
        found["params/" + (linen(key) if key.startswith("Transformer") else key)] = value
    for key in [key for key in found if "/encoderblock_0/" in key]:
        each = [found.pop(key.replace("_0/", f"_{i}/", 1)) for i in range(2)]
        found[key.replace("encoderblock_0/", "encoderblock/")] = np.stack(each)
    return write(path / "model.npz", found)


def keras_file(model, path):
    model.save(path / "model.keras")
    return path / "model.keras"


def layout(name):
    def write_folder(model, path):
        safetensors_models.save(model, path / "model", name)
        return path / "model"

    return write_folder


# Kind of file -> the model, and the function that writes it.
FILES = {
    "pre-training": (lambda: tiny.model(representation_size=6, **SQUARE), published),
    "AugReg": (lambda: tiny.model(**SQUARE), published),
    "training state": (lambda: tiny.model(**SQUARE), training_state),
    "average": (lambda: tiny.model(classifier="gap", **SQUARE), published),
    "big_vision": (lambda: tiny.model(classifier="map", **SQUARE), big_vision),
    "hybrid": (lambda: tiny.model(**HYBRID), published),
    "BiT": (bit, published),
    "Keras": (lambda: tiny.model(dtype="mixed_bfloat16", **SQUARE), keras_file),
    "Hugging Face": (
        lambda: tiny.model(**safetensors_models.HUGGINGFACE, **SQUARE),
        layout("huggingface"),
    ),
    "timm": (lambda: tiny.model(**safetensors_models.TIMM, **SQUARE), layout("timm")),
    "timm BiT": (
        lambda: vit_tf.create_model(safetensors_models.BIT.replace(image_size=(40, 40))),
        layout("timm"),
    ),
}


def write_photos(root):
    """Writes a folder of 10 photos of each of two classes."""
    for name in ("cat", "dog"):
        (root / name).mkdir()
        for index in range(10):
            pixels = encoded.pixels(30 + index, 40)
            (root / name / f"{index}.jpg").write_bytes(encoded.encode(pixels, "JPEG"))


def write_initial(kind, folder):
    """Writes a file of this kind with random weights; returns `(model, its path)`."""
    create, write_file = FILES[kind]
    model = create()
    tiny.randomize(model)
    return model, write_file(model, folder)


def choose(*assignments, start=None, workdir="no run", replicas=1):
    """`(experiment, lines that were logged, and the line about photos)`."""
    said, handler = [], logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    start = start or recipes.get_recipe("digits")
    request = Request(assignments=Assignments.parse(assignments))
    with attached(handler):
        experiment, chosen = fine_tuning.choose(start, request, workdir, replicas=replicas)
    assert chosen.assignments is request.assignments
    assert chosen.origin == "" or chosen.origin.startswith("chosen for photos")
    return experiment, [*said, *([chosen.origin] if chosen.origin else [])]
