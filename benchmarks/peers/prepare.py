"""Writes one model with random weights for all systems; runs in `.venv`.

usage: python -m benchmarks.peers.prepare MODEL ACTIVATION FOLDER EXPORT...

`weights.npz` holds the weights; everything else is made from it: `timm/`, a folder of each export
that is missing, `images.npy`, uint8 `[IMAGES, H, W, 3]`, and `logits.npy`, those of the model in
float32 without compiled ops. `fields.json` is the configuration with `macs`, the multiplications
of the model, and `fused_macs`, those that a fused export of it executes.
"""

import dataclasses
import json
import pathlib
import sys

import numpy as np

import custom_ops
import vit_tf
from benchmarks.peers.operations import fused_macs
from benchmarks.peers.systems import EXPORTS
from pipelines.serving import saved_model
from vit_tf.checkpoints.kinds import kind_of

CLASSES = 1000
# The largest batch.
IMAGES = 32
# Sides of the squares of one color in an image, in pixels.
SQUARE = 8


def main(name, activation, folder, *exports):
    folder = pathlib.Path(folder)
    if not (folder / "fields.json").exists():
        write_model(name, activation, folder)
    for export in exports:
        row = EXPORTS[export]
        if kind_of(folder / export / row.form) == "saved_model":
            continue
        model = open_model(name, folder, row.policy)
        preprocessing = vit_tf.Preprocessing(image_size=model.config.image_size)
        output = str(folder / export)
        print(saved_model.export(model, preprocessing, output, form=row.form, **row.arguments))


def write_model(name, activation, folder):
    folder.mkdir(parents=True, exist_ok=True)
    model = vit_tf.create_model(name, num_classes=CLASSES, activation=activation)
    randomize(model)
    vit_tf.save_npz(model, folder / "weights.npz")
    model = open_model(name, folder, "float32")
    vit_tf.save_safetensors(model, folder / "timm", "timm")
    images = random_images(model.config.image_size)
    np.save(folder / "images.npy", images)
    with custom_ops.implementation("reference"):
        inputs = vit_tf.Preprocessing(image_size=model.config.image_size)(images)
        np.save(folder / "logits.npy", model(inputs, training=False))
    fields = dataclasses.asdict(model.config) | {
        "macs": vit_tf.cost.macs(model.config),
        "fused_macs": fused_macs(model.config),
    }
    (folder / "fields.json").write_text(json.dumps(fields))


def open_model(name, folder, policy):
    return vit_tf.create_model(name, weights=folder / "weights.npz", dtype=policy)


def randomize(model):
    """Weights with which every term matters, and which do not enlarge rounding errors.

    Larger kernels would make a softmax of few large weights, in which small differences grow.
    """
    rng = np.random.default_rng(11)
    for variable in model.trainable_variables:
        noise = rng.standard_normal(variable.shape, np.float32)
        if variable.name == "kernel":
            variable.assign(noise / np.sqrt(np.prod(variable.shape[:-1])))
        else:
            variable.assign((variable.name == "gamma") + 0.1 * noise)


def random_images(size):
    rng = np.random.default_rng(12)
    rows, columns = (-(-side // SQUARE) for side in size)
    squares = rng.integers(0, 256, (IMAGES, rows, columns, 3), dtype=np.uint8)
    return squares.repeat(SQUARE, 1).repeat(SQUARE, 2)[:, : size[0], : size[1]]


if __name__ == "__main__":
    main(*sys.argv[1:])
