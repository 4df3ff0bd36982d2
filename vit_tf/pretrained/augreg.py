"""The names of the about 50,000 files of AugReg, which hold its recipes (docs/paper.md B.9).

Loads no framework.
"""

import dataclasses
import re

from vit_tf.pretrained.class_names import IMAGENET_1K, IMAGENET_21K

COLLECTION = "augreg"
# First part of a name -> name of the model.
_MODELS = {
    "Ti_16": "ViT-Ti/16",
    "S_32": "ViT-S/32",
    "S_16": "ViT-S/16",
    "B_32": "ViT-B/32",
    "B_16": "ViT-B/16",
    "B_8": "ViT-B/8",
    "L_16": "ViT-L/16",
    "R_Ti_16": "R+ViT-Ti/16",
    "R26_S_32": "R26+ViT-S/32",
    "R50_L_32": "R50+ViT-L/32",
}
# Data set -> number of its classes.
_PRETRAINING = {"i1k": IMAGENET_1K, "i21k": IMAGENET_21K}
_FINE_TUNING = {
    "imagenet2012": IMAGENET_1K,
    "cifar100": 100,
    "kitti": 4,
    "oxford_iiit_pet": 37,
    "resisc45": 45,
}
_LEVELS = ("none", "light0", "light1", "medium1", "medium2", "strong1", "strong2")
_NUMBER = r"\d+\.\d+"
# What the parts of a name are, their pattern, and how they are written.
_PARTS = (
    ("model", "|".join(_MODELS), " or ".join(_MODELS)),
    ("data set of pre-training", "|".join(_PRETRAINING), " or ".join(_PRETRAINING)),
    ("number of epochs", r"(\d+)ep", "300ep or 30ep"),
    ("learning rate", f"lr_({_NUMBER})", "lr_0.001"),
    ("augmentation", f"aug_({'|'.join(_LEVELS)})", f"aug_ and {' or '.join(_LEVELS)}"),
    ("weight decay", f"wd_({_NUMBER})", "wd_0.1 or wd_0.03"),
    ("dropout", f"do_({_NUMBER})", "do_0.0 or do_0.1"),
    ("stochastic depth", f"sd_({_NUMBER})", "sd_0.0 or sd_0.1"),
)
_FINE_TUNING_PARTS = (
    ("data set of fine-tuning", "|".join(_FINE_TUNING), " or ".join(_FINE_TUNING)),
    (
        "number of steps",
        r"steps_(\d+)k",
        "steps_0k (500), steps_2k (2,500), steps_10k or steps_20k",
    ),
    ("learning rate of fine-tuning", f"lr_({_NUMBER})", "lr_0.01"),
    ("image size", "res_(224|384)", "res_224 or res_384"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FineTuning:
    """The second half of a recipe.

    Attributes:
        data: name of the data set in TFDS.
        steps: training steps in thousands, rounded down.
        learning_rate: its peak.
        image_size: side of the images in pixels.
    """

    data: str
    steps: int
    learning_rate: float
    image_size: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a file of AugReg was trained, at 224 x 224 pixels before any fine-tuning.

    Attributes:
        model: name of the model, see `vit_tf.list_models`.
        data: "i1k" (ImageNet-1k) or "i21k" (ImageNet-21k).
        epochs: of pre-training.
        learning_rate: its peak.
        augmentation: "none", or the level of MixUp and RandAugment.
        weight_decay, dropout, stochastic_depth: of pre-training.
        fine_tuning: `FineTuning`, or None.
    """

    model: str
    data: str
    epochs: int
    learning_rate: float
    augmentation: str
    weight_decay: float
    dropout: float
    stochastic_depth: float
    fine_tuning: FineTuning | None

    @property
    def num_classes(self) -> int:
        """Number of classes of the head."""
        if self.fine_tuning:
            return _FINE_TUNING[self.fine_tuning.data]
        return _PRETRAINING[self.data]

    @property
    def image_size(self) -> int:
        """Side of the images of the last training in pixels."""
        return self.fine_tuning.image_size if self.fine_tuning else 224


def is_name(name) -> bool:
    """Whether weights of this name are, or are meant to be, a file of AugReg."""
    return re.match(rf"{COLLECTION}/[^/-]+-.", name) is not None


def parse(name) -> Recipe:
    """Reads a name "augreg/<file without .npz>".

    Raises:
        ValueError: if a part of the name does not follow the scheme; the message says which.
    """
    before, separator, after = name.removeprefix(f"{COLLECTION}/").partition("--")
    model, data, epochs, rate, level, *numbers = _read(name, before, _PARTS)
    fine_tuning = None
    if separator:
        tuned_on, steps, tuned_rate, side = _read(name, after, _FINE_TUNING_PARTS)
        fine_tuning = FineTuning(
            data=tuned_on,
            steps=int(steps),
            learning_rate=float(tuned_rate),
            image_size=int(side),
        )
    weight_decay, dropout, stochastic_depth = map(float, numbers)
    return Recipe(
        model=_MODELS[model],
        data=data,
        epochs=int(epochs),
        learning_rate=float(rate),
        augmentation=level,
        weight_decay=weight_decay,
        dropout=dropout,
        stochastic_depth=stochastic_depth,
        fine_tuning=fine_tuning,
    )


def _read(name, text, parts):
    """The values of the parts of a half of a name."""
    found, values = text.split("-"), []
    for index, (what, pattern, expected) in enumerate(parts):
        part = found[index] if index < len(found) else ""
        match = re.fullmatch(pattern, part, re.ASCII)
        if match is None:
            raise ValueError(
                f"No weights have the name {name}: {part!r} is not the {what} in a name of "
                f"AugReg's files. Expected {expected}."
            )
        values.append(match[1] if match.groups() else part)
    if rest := found[len(parts) :]:
        raise ValueError(
            f"No weights have the name {name}: nothing follows the {parts[-1][0]} but, with two "
            f"hyphens, the fine-tuning. Received: {'-'.join(rest)!r}."
        )
    return values
