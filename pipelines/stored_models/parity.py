"""Compares the models of two files: counts, norms, checksums, outputs on fixed images."""

import dataclasses
import hashlib
import re

import numpy as np
import tensorflow as tf

from pipelines.config.fields import differences
from vit_tf.analysis.relative_difference import relative_difference
from vit_tf.checkpoints.published.vit_positions import POSITIONS
from vit_tf.checkpoints.shapes import summarize
from vit_tf.checkpoints.sidecar import stored_fields
from vit_tf.classes import Classes
from vit_tf.weights import published_arrays

# Largest relative difference of logits and features that rounding can cause. With convolutions in
# residual units it is larger: 1.2e-5 for BiT-R50x1 at 224 x 224, whose kernels timm needs scaled.
TOLERANCE, RESIDUAL_TOLERANCE = 1e-5, 1e-4
# Fields that other formats cannot store and that inference does not use.
_TRAINING_ONLY = ("dropout", "attention_dropout", "stochastic_depth", "head_bias")
# Rules of resizing that differ only in the rounding of sides and offsets, by at most a pixel.
_ROUNDED_RULES = {"resize_small", "shortest_edge", "center"}
_KERNEL_EPSILONS = tuple(
    prefix + name for prefix in ("", "stem.") for name in ("variance_epsilon", "deviation_epsilon")
)
_STANDARDIZED_KERNEL = re.compile(r"(standardized_conv2d|conv_root|conv\d|conv_proj)/kernel$")


def tolerance_of(config) -> float:
    """Largest relative difference of logits that rounding can cause in another form of a model.

    Args:
        config: configuration of the model, as a dictionary.
    """
    stem = config.get("stem") or {}
    has_units = config.get("stage_depths") or stem.get("stage_depths")
    return RESIDUAL_TOLERANCE if has_units else TOLERANCE


@dataclasses.dataclass(frozen=True)
class ModelSummary:
    """The input of `compare`, small enough to keep after the model is freed.

    Attributes:
        name: source of the model, for messages.
        config, preprocessing: as dictionaries.
        norms: published key -> Euclidean norm.
        checksums: published key -> SHA-256 of shape and float32 values.
        parameters: number of weights.
        logits: float32 `[2, K]`, the model's outputs for `fixed_images`.
        features: float32 `[2, D or R]`, inputs of its head, since logits of a zero head are zero.
    """

    name: str
    config: dict
    preprocessing: dict
    norms: dict[str, float]
    checksums: dict[str, str]
    parameters: int
    logits: np.ndarray
    features: np.ndarray

    @property
    def tolerance(self) -> float:
        """Largest relative difference from another file of this model: of logits and features."""
        return tolerance_of(self.config)

    @property
    def norm(self) -> float:
        """Euclidean norm of all weights."""
        return float(np.sqrt(sum(norm**2 for norm in self.norms.values())))

    @property
    def checksum(self) -> str:
        """SHA-256 of all weights, whatever their order in the file."""
        lines = [f"{key} {self.checksums[key]}\n" for key in sorted(self.checksums)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class ParityReport:
    """The comparison; `str()` is a table with PASS or FAIL below it.

    Attributes:
        models: both summaries.
        problems: one sentence per difference; empty means PASS.
        notes: differences that affect only further training, that are another rounding of sizes, or
            that `compare` was told to allow.
        difference: largest relative difference of logits and of features; None if their shapes
            differ.
    """

    models: tuple[ModelSummary, ModelSummary]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    difference: float | None

    @property
    def passed(self) -> bool:
        """Whether the files hold the same model."""
        return not self.problems

    def __str__(self):
        rows = [
            ("", *(model.name for model in self.models)),
            ("arrays", *(f"{len(model.norms):,}" for model in self.models)),
            ("parameters", *(f"{model.parameters:,}" for model in self.models)),
            ("norm", *(f"{model.norm:.9g}" for model in self.models)),
            ("checksum", *(model.checksum[:16] for model in self.models)),
            ("first logits", *(_first_values(model.logits) for model in self.models)),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = [f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows]
        if self.difference is not None:
            lines.append(
                f"logits and features of fixed images differ by {self.difference:.1e} of the "
                f"largest value (allowed: {self.models[0].tolerance:.0e})"
            )
        lines += [f"note: {line}" for line in self.notes]
        lines += self.problems
        return "\n".join([*lines, "PASS" if self.passed else "FAIL"])


def summarize_model(name, model, preprocessing, classes=None) -> ModelSummary:
    """Computes the `ModelSummary` of a model.

    Args:
        name: source of the model, for messages.
        model: a `VisionTransformer` or `ResNet`.
        preprocessing, classes: its `vit_tf.Preprocessing` and `vit_tf.Classes`.
    """
    norms, checksums, parameters = {}, {}, 0
    for key, array in published_arrays(model):
        norms[key] = float(np.linalg.norm(array.astype(np.float64)))
        content = f"{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
        checksums[key] = hashlib.sha256(content).hexdigest()
        parameters += array.size
    images = tf.constant(fixed_images(model.config.image_size))
    return ModelSummary(
        name,
        model.config.to_dict() | {"dtype": model.dtype_policy.name},
        _comparable_fields(preprocessing, classes, model.config.num_classes),
        norms,
        checksums,
        parameters,
        np.asarray(model(images, training=False), np.float32),
        np.asarray(model.features(images), np.float32),
    )


def _comparable_fields(preprocessing, classes, outputs):
    """Fields of both, in which one output is a sigmoid, however it is stored."""
    activation = (classes or Classes()).activation_of(outputs)
    return stored_fields(preprocessing, classes) | {"probabilities": activation}


def compare(first, second, not_stored=()) -> ParityReport:
    """Compares the summaries of two models.

    Args:
        first, second: of `summarize_model`.
        not_stored: fields of preprocessing that the format of `second`, to which `first` was
            converted, cannot store. Their differences are notes.
    """
    problems, notes = [], []
    changed = _changed_config_fields(first, second)
    if changed is None:
        problems.append("config: models of different families")
        changed = {}
    # A layout without a field for epsilon stores scaled kernels with the same convolution.
    kernels_may_scale = not changed.keys().isdisjoint(_KERNEL_EPSILONS)
    # A layout without fixed positions stores them as a table.
    kinds = {model.config.get("position_embedding") for model in (first, second)}
    is_position_table = bool(changed) and kinds == {"sincos_2d", "learned_1d"}
    allowed = {*_TRAINING_ONLY, *_KERNEL_EPSILONS, *["position_embedding"] * is_position_table}
    for path, line in changed.items():
        (notes if path in allowed else problems).append(f"config: {line}")
    rules = {model.preprocessing["resize"] for model in (first, second)}
    allowed = {*not_stored, *["resize"] * (rules <= _ROUNDED_RULES)}
    for line in differences(first.preprocessing, second.preprocessing):
        is_note = line.split(":")[0] in allowed
        (notes if is_note else problems).append(f"preprocessing: {line}")
    for one, other in ((first, second), (second, first)):
        if missing := sorted(one.norms.keys() - other.norms.keys()):
            is_note = is_position_table and missing == [POSITIONS]
            (notes if is_note else problems).append(f"only in {one.name}: {summarize(missing)}")
    if keys := _changed_arrays(first, second):
        worst = max(keys, key=lambda key: abs(first.norms[key] - second.norms[key]))
        is_note = kernels_may_scale and all(map(_STANDARDIZED_KERNEL.search, keys))
        (notes if is_note else problems).append(
            f"other values: {summarize(keys)}; norms differ most in {worst}: "
            f"{first.norms[worst]:.6g} and {second.norms[worst]:.6g}"
        )
    results = [_compare_outputs(first, second, name) for name in ("logits", "features")]
    problems += [problem for _, problem in results if problem]
    found = [difference for difference, _ in results]
    difference = None if None in found else max(found)
    return ParityReport((first, second), tuple(problems), tuple(notes), difference)


def _changed_config_fields(first, second):
    """Path -> line for each field that differs; None for models of different families."""
    if first.config.get("family") != second.config.get("family"):
        return None
    return {line.split(":")[0]: line for line in differences(first.config, second.config)}


def _changed_arrays(first, second):
    """Keys of both models whose values differ, sorted."""
    both = sorted(first.norms.keys() & second.norms.keys())
    return [key for key in both if first.checksums[key] != second.checksums[key]]


def _compare_outputs(first, second, name):
    """`(relative difference or None, problem or None)` of the logits or features."""
    expected, actual = getattr(first, name), getattr(second, name)
    if expected.shape != actual.shape:
        return None, f"{name}: shapes {expected.shape} and {actual.shape}"
    difference = relative_difference(actual, expected)
    if difference <= first.tolerance:
        return difference, None
    return difference, f"{name}: they differ by {difference:.1e} of the largest value"


def fixed_images(image_size):
    """Two images, float32 `[2, H, W, 3]` in [-1, 1]: waves and noise, equal on all machines."""
    height, width = image_size
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = np.stack([np.sin(9 * x + 2 * y), np.cos(7 * y), np.sin(5 * (x - y))], axis=-1)
    noise = np.random.default_rng(0).uniform(-1, 1, waves.shape)
    return np.stack([waves, noise]).astype(np.float32)


def _first_values(logits):
    return " ".join(f"{value:.6g}" for value in logits.reshape(-1)[:3])
