"""Whether two files hold the same model: counts, norms, checksums, results on fixed images."""

import dataclasses
import hashlib
import re

import numpy as np
import tensorflow as tf

from pipelines.config.fields import differences
from vit_tf.checkpoints.messages import summarize
from vit_tf.checkpoints.published.vit import POSITIONS
from vit_tf.weights import published_arrays

# Largest difference of results, as a part of the largest, that rounding explains.
TOLERANCE = 1e-5
# Fields that other formats have no place for and that a trained model does not compute with.
_TRAINING_ONLY = ("dropout", "attention_dropout", "stochastic_depth", "head_bias")
_KERNEL_EPSILONS = tuple(
    prefix + name for prefix in ("", "stem.") for name in ("variance_epsilon", "deviation_epsilon")
)
_STANDARDISED = re.compile(r"(standardized_conv2d|conv_root|conv\d|conv_proj)/kernel$")


@dataclasses.dataclass(frozen=True)
class Facts:
    """What is compared, small enough to keep when the model itself is gone.

    Attributes:
        name: where the model is from.
        config, preprocessing: as dictionaries.
        norms: published key -> Euclidean norm.
        checksums: published key -> SHA-256 of shape and float32 values.
        parameters: number of weights.
        logits, features: float32 arrays, of `fixed_images`: what the model returns, and what its
            head reads, since a head of zeros hides everything.
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
    def norm(self) -> float:
        """Euclidean norm of all weights."""
        return float(np.sqrt(sum(norm**2 for norm in self.norms.values())))

    @property
    def checksum(self) -> str:
        """SHA-256 of all weights, whatever their order in the file."""
        lines = [f"{key} {self.checksums[key]}\n" for key in sorted(self.checksums)]
        return hashlib.sha256("".join(lines).encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Report:
    """The comparison; `str()` is a table with PASS or FAIL below it.

    Attributes:
        facts: of both models.
        problems: a sentence for each difference; none means PASS.
        notes: differences that only further training would show.
        difference: largest difference of logits and of features, as a part of the largest; None
            if their shapes differ.
    """

    facts: tuple[Facts, Facts]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    difference: float | None

    @property
    def passed(self) -> bool:
        """Whether the files hold the same model."""
        return not self.problems

    def __str__(self):
        rows = [
            ("", *(facts.name for facts in self.facts)),
            ("arrays", *(f"{len(facts.norms):,}" for facts in self.facts)),
            ("parameters", *(f"{facts.parameters:,}" for facts in self.facts)),
            ("norm", *(f"{facts.norm:.9g}" for facts in self.facts)),
            ("checksum", *(facts.checksum[:16] for facts in self.facts)),
            ("first logits", *(_first(facts.logits) for facts in self.facts)),
        ]
        widths = [max(len(row[i]) for row in rows) for i in range(2)]
        lines = [f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows]
        if self.difference is not None:
            lines.append(
                f"logits and features of fixed images differ by {self.difference:.1e} of the "
                f"largest (allowed: {TOLERANCE:.0e})"
            )
        lines += [f"note: {line}" for line in self.notes]
        lines += self.problems
        return "\n".join([*lines, "PASS" if self.passed else "FAIL"])


def facts_of(name, model, preprocessing) -> Facts:
    """What `compare` needs to know of a model.

    Args:
        name: where it is from, for people.
        model: a `VisionTransformer` or `ResNet`.
        preprocessing: its `vit_tf.Preprocessing`.
    """
    norms, checksums, parameters = {}, {}, 0
    for key, array in published_arrays(model):
        norms[key] = float(np.linalg.norm(array.astype(np.float64)))
        content = f"{array.shape}".encode() + np.ascontiguousarray(array).tobytes()
        checksums[key] = hashlib.sha256(content).hexdigest()
        parameters += array.size
    images = tf.constant(fixed_images(model.config.image_size))
    return Facts(
        name,
        model.config.to_dict() | {"dtype": model.dtype_policy.name},
        preprocessing.to_dict(),
        norms,
        checksums,
        parameters,
        np.asarray(model(images, training=False), np.float32),
        np.asarray(model.features(images), np.float32),
    )


def compare(first, second) -> Report:
    """Compares the facts of two models."""
    problems, notes, rescaled, tabled = [], [], False, set()
    if first.config.get("family") != second.config.get("family"):
        problems.append("config: models of different families")
    else:
        changed = {line.split(":")[0]: line for line in differences(first.config, second.config)}
        # Kernels that are standardised can be scaled to suit another epsilon; the logits decide.
        rescaled = not changed.keys().isdisjoint(_KERNEL_EPSILONS)
        # So do fixed positions as a table.
        kinds = {facts.config.get("position_embedding") for facts in (first, second)}
        tabled = {"position_embedding"} if kinds == {"sincos_2d", "learned_1d"} else set()
        for path, line in changed.items():
            is_note = path in (*_TRAINING_ONLY, *_KERNEL_EPSILONS, *tabled)
            (notes if is_note else problems).append(f"config: {line}")
    changed = differences(first.preprocessing, second.preprocessing)
    problems += [f"preprocessing: {line}" for line in changed]
    for one, other in ((first, second), (second, first)):
        if missing := sorted(one.norms.keys() - other.norms.keys()):
            is_note = tabled and missing == [POSITIONS]
            (notes if is_note else problems).append(f"only in {one.name}: {summarize(missing)}")
    both = sorted(first.norms.keys() & second.norms.keys())
    if differ := [key for key in both if first.checksums[key] != second.checksums[key]]:
        worst = max(differ, key=lambda key: abs(first.norms[key] - second.norms[key]))
        scaled = rescaled and all(map(_STANDARDISED.search, differ))
        (notes if scaled else problems).append(
            f"other values: {summarize(differ)}; norms differ most in {worst}: "
            f"{first.norms[worst]:.6g} and {second.norms[worst]:.6g}"
        )
    found = [_compare_results(first, second, name, problems) for name in ("logits", "features")]
    difference = None if None in found else max(found)
    return Report((first, second), tuple(problems), tuple(notes), difference)


def _compare_results(first, second, name, problems):
    """The largest difference as a part of the largest value; adds a problem if that is too much."""
    one, other = getattr(first, name), getattr(second, name)
    if one.shape != other.shape:
        problems.append(f"{name}: shapes {one.shape} and {other.shape}")
        return None
    largest = max(np.abs(one).max(initial=0), np.finfo(np.float32).tiny)
    difference = float(np.abs(one - other).max(initial=0) / largest)
    if not difference <= TOLERANCE:
        problems.append(f"{name}: they differ by {difference:.1e} of the largest")
    return difference


def fixed_images(image_size):
    """Two images, float32 `[2, H, W, 3]` in [-1, 1]: waves and noise, the same everywhere."""
    height, width = image_size
    y, x = np.mgrid[:height, :width] / max(height, width)
    waves = np.stack([np.sin(9 * x + 2 * y), np.cos(7 * y), np.sin(5 * (x - y))], axis=-1)
    noise = np.random.default_rng(0).uniform(-1, 1, waves.shape)
    return np.stack([waves, noise]).astype(np.float32)


def _first(logits):
    return " ".join(f"{value:.6g}" for value in logits.reshape(-1)[:3])
