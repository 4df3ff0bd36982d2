"""Compares the outputs of published weights with `published_program.py`'s outputs."""

import json
import os
import tempfile

import numpy as np

from pipelines.stored_models.parity import fixed_images
from tests.peers import environment
from vit_tf.analysis.relative_difference import relative_difference
from vit_tf.features import feature_model

# Largest difference by rounding, relative to the largest output. ViT-S/16 with random weights
# differs by 3.6e-6 from the paper's code, ViT-Ti/16 by 9.5e-7.
TOLERANCE = 3e-5
# With standardized convolutions; R26+ViT-S/32 with random weights differs by 1.1e-5.
RESIDUAL_TOLERANCE = 1e-4


class NotComparedError(Exception):
    """No implementation has outputs; the message has the reason of each."""


def ask(record, path):
    """The outputs of another implementation for two fixed images.

    Args:
        record: `WeightsRecord`.
        path: of its file.

    Returns:
        Its name, "logits" or "features" (the class token behind the last norm), and the outputs.
    """
    with tempfile.TemporaryDirectory() as folder:
        fields = ("name", "model", "url", "num_classes", "has_pre_logits")
        settings = {name: getattr(record, name) for name in fields} | {
            "path": os.path.abspath(path)
        }
        with open(os.path.join(folder, "settings.json"), "w") as stream:
            json.dump(settings, stream)
        np.save(os.path.join(folder, "images.npy"), fixed_images(record.image_size))
        environment.run(folder, program="published_program.py")
        with open(os.path.join(folder, "answer.json")) as stream:
            answer = json.load(stream)
        if "reason" in answer:
            raise NotComparedError(answer["reason"])
        outputs = np.load(os.path.join(folder, "outputs.npy"), allow_pickle=False)
        return answer["name"], answer["part"], outputs


def difference(model, part, theirs):
    """The largest difference of a model's outputs, relative to the largest one of the other."""
    images = fixed_images(model.config.image_size)
    if part == "logits":
        ours = np.asarray(model(images, training=False))
    else:
        ours = np.asarray(feature_model(model, ["norm"])(images)["norm"])[:, 0]
    assert ours.shape == theirs.shape
    return relative_difference(ours, theirs)


def tolerance(config):
    """What rounding can cause."""
    return RESIDUAL_TOLERANCE if config.family == "resnet" or config.stem else TOLERANCE
