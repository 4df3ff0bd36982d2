"""Compares the outputs of a model with those of other implementations of it.

Each runs as a program of its own, in a Python that may have other packages than this one. timm has
a copy of the weights of its own, converted by its authors: it finds a file that is not the right
one. The paper's own code reads the same file: it finds mistakes of the code alone.

Neither is told how this project computes: they use the tanh form of GELU and the epsilons of the
published models, whatever the configuration here says.
"""

import dataclasses
import json
import os
import subprocess
import tempfile
from collections.abc import Callable

import numpy as np

from pipelines.stored_models.parity import fixed_images
from vit_tf.analysis.relative_difference import relative_difference
from vit_tf.features import feature_model
from vit_tf.pretrained.records import WeightsRecord

_FOLDER = os.path.dirname(os.path.abspath(__file__))
# Largest difference by rounding, relative to the largest output. ViT-S/16 with random weights
# differs by 3.6e-6 from the paper's code, ViT-Ti/16 by 9.5e-7.
TOLERANCE = 3e-5
# With standardized convolutions; R26+ViT-S/32 with random weights differs by 1.1e-5.
_RESIDUAL_TOLERANCE = 1e-4


class NotComparedError(Exception):
    """An implementation has no outputs; the message is the reason."""


@dataclasses.dataclass(frozen=True)
class Question:
    """What an implementation computes: the outputs of a model for images.

    Attributes:
        record: the weights.
        path: their file.
        images: float32 `[2, H, W, 3]` in [-1, 1].
        python: the Python that has the implementation.
    """

    record: WeightsRecord
    path: str
    images: np.ndarray
    python: str


@dataclasses.dataclass(frozen=True)
class Answer:
    """The outputs of an implementation.

    Attributes:
        name: of the implementation, with its version and its name of the model.
        part: "logits", or "features": the class token behind the last norm.
        outputs: `[2, K]` or `[2, D]`.
    """

    name: str
    part: str
    outputs: np.ndarray


@dataclasses.dataclass(frozen=True)
class Implementation:
    """Another implementation.

    Attributes:
        name: for messages.
        has_own_weights: whether it has a copy of the weights of its own.
        answer: computes the outputs; raises `NotComparedError` where it cannot.
    """

    name: str
    has_own_weights: bool
    answer: Callable[[Question], Answer]


def _program(file):
    """The function that asks a program of this folder."""

    def answer(question):
        with tempfile.TemporaryDirectory() as folder:
            record = question.record
            settings = {
                "name": record.name,
                "model": record.model,
                "url": record.url,
                "num_classes": record.num_classes,
                "has_pre_logits": record.has_pre_logits,
                "path": os.path.abspath(question.path),
            }
            with open(os.path.join(folder, "settings.json"), "w") as stream:
                json.dump(settings, stream)
            np.save(os.path.join(folder, "images.npy"), question.images)
            arguments = [question.python, os.path.join(_FOLDER, file), folder]
            try:  # Lines about a download go on to stderr.
                code = subprocess.run(arguments, stdout=subprocess.DEVNULL).returncode
            except OSError as error:
                raise NotComparedError(
                    f"cannot start {question.python}: {error.strerror}"
                ) from None
            return _read_answer(folder, file, code)

    return answer


def _read_answer(folder, file, code):
    try:
        with open(os.path.join(folder, "answer.json")) as stream:
            answer = json.load(stream)
    except (OSError, ValueError):
        raise NotComparedError(f"{file} ended with exit code {code}") from None
    if "reason" in answer:
        raise NotComparedError(answer["reason"])
    outputs = np.load(os.path.join(folder, "outputs.npy"), allow_pickle=False)
    return Answer(answer["name"], answer["part"], outputs)


# The first that has outputs is taken.
IMPLEMENTATIONS = (
    Implementation("timm", True, _program("timm_main.py")),
    Implementation("vit_jax", False, _program("vit_jax_main.py")),
)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The outputs of a model beside those of another implementation.

    Attributes:
        name, part: see `Answer`.
        has_own_weights: see `Implementation`.
        difference: the largest, relative to the largest output of the other.
        tolerance: what rounding can cause.
    """

    name: str
    part: str
    has_own_weights: bool
    difference: float
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether rounding can be the cause of the difference."""
        return self.difference <= self.tolerance

    def __str__(self):
        weights = "its own copy of the weights" if self.has_own_weights else "the same file"
        return (
            f"{self.part} of {self.name} with {weights} differ by {self.difference:.1e} of the "
            f"largest (allowed: {self.tolerance:.0e})"
        )


def compare(record, path, model, python) -> Comparison:
    """Compares with the first implementation that has outputs.

    Args:
        record: the `WeightsRecord`.
        path: its file.
        model: the model of it.
        python: a Python that has timm or vit_jax.

    Raises:
        NotComparedError: if none has; the message has the reason of each.
    """
    question = Question(record, path, fixed_images(model.config.image_size), python)
    reasons = []
    for implementation in IMPLEMENTATIONS:
        try:
            answer = implementation.answer(question)
        except NotComparedError as error:
            reasons.append(f"{implementation.name}: {error}")
            continue
        ours = _outputs(model, question.images, answer.part)
        theirs = np.asarray(answer.outputs)
        same_shape = ours.shape == theirs.shape
        convolves = model.config.family == "resnet" or model.config.stem
        return Comparison(
            name=answer.name,
            part=answer.part,
            has_own_weights=implementation.has_own_weights,
            difference=relative_difference(ours, theirs) if same_shape else np.inf,
            tolerance=_RESIDUAL_TOLERANCE if convolves else TOLERANCE,
        )
    raise NotComparedError("; ".join(reasons))


def _outputs(model, images, part):
    if part == "logits":
        return np.asarray(model(images, training=False))
    return np.asarray(feature_model(model, ["norm"])(images)["norm"])[:, 0]
