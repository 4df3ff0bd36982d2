"""The table of published weights, by name. Loads no framework.

A name is `<collection>/<file without .npz>`. The files are those that the authors of the Vision
Transformer, AugReg, SAM and BiT list (docs/paper.md B.9).
"""

import dataclasses
import re

from vit_tf.config import ModelConfig
from vit_tf.config.near_names import as_question, did_you_mean
from vit_tf.config.other_spellings import other_spelling
from vit_tf.config.variants import VARIANTS
from vit_tf.preprocessing import Preprocessing
from vit_tf.pretrained.class_names import IMAGENET_1K, IMAGENET_21K

_BASE = "https://storage.googleapis.com/"
_MIB, _GIB = 2**20, 2**30
# A path with one of these ends is not another project's name.
_FILES = (".npz", ".keras", ".safetensors")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightsRecord:
    """One published file.

    Attributes:
        name: "<collection>/<file without .npz>".
        model: name of the model, see `vit_tf.list_models`.
        url: where the file is.
        size: bytes, rounded: as the authors list it, else four for each weight of the model.
        size_is_listed: whether `size` is from the authors' list.
        num_classes: 1000 (ImageNet-1k) or 21,843 (ImageNet-21k).
        preprocessing: how images are prepared, without class names.
        top1: accuracy on ImageNet in percent that the authors measured; None if they list none.
        license: identifier of the license, as in SPDX.
    """

    name: str
    model: str
    url: str
    size: int
    size_is_listed: bool
    num_classes: int
    preprocessing: Preprocessing
    top1: float | None = None
    license: str = "Apache-2.0"

    @property
    def collection(self) -> str:
        """The part of the name before the file."""
        return self.name.rpartition("/")[0]

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of the images of the training, in pixels."""
        return self.preprocessing.image_size

    @property
    def has_pre_logits(self) -> bool:
        """Whether the file has the hidden layer before the head."""
        return self.collection == "imagenet21k"

    @property
    def most_bytes(self) -> int:
        """Larger files are refused.

        A file whose size is not listed may hold the state of the optimizer beside the weights.
        """
        return self.size + self.size // 20 + _MIB if self.size_is_listed else 4 * self.size


def _record(name, model, size, side, classes, *, listed=True, resize_to=None, top1=None):
    folder = "" if name.startswith("bit_models/") else "vit_models/"
    return WeightsRecord(
        name=name,
        model=model,
        url=f"{_BASE}{folder}{name}.npz",
        size=round(size),
        size_is_listed=listed,
        num_classes=classes,
        preprocessing=Preprocessing(
            image_size=(side, side),
            resize="direct" if resize_to is None else "resize_small",
            resize_to=resize_to,
            exif="apply",
        ),
        top1=top1,
    )


# The paper's ImageNet-21k files: file -> size.
_PAPER = {
    "R26+ViT-B_32": 450.23 * _MIB,
    "R50+ViT-B_16": 439.85 * _MIB,
    "R50+ViT-L_32": 1.31 * _GIB,
    "ViT-B_8": 393.72 * _MIB,
    "ViT-B_16": 393.69 * _MIB,
    "ViT-B_32": 400.01 * _MIB,
    "ViT-L_16": 1.22 * _GIB,
    "ViT-L_32": 1.23 * _GIB,
    "ViT-H_14": 2.46 * _GIB,
}
# The same, fine-tuned on ImageNet; at 384 pixels if the file name ends with no other size.
_PAPER_FINE_TUNED = {
    "R50+ViT-B_16": 377.57 * _MIB,
    "ViT-B_8": 334.78 * _MIB,
    "ViT-B_16": 331.4 * _MIB,
    "ViT-B_16-224": 330.29 * _MIB,
    "ViT-B_32": 336.89 * _MIB,
    "ViT-L_16": 1.14 * _GIB,
    "ViT-L_16-224": 1.13 * _GIB,
    "ViT-L_32": 1.14 * _GIB,
}
# Trained on ImageNet with sharpness-aware minimization.
_SAM = {
    "ViT-S_16": 252.57 * _MIB,
    "ViT-B_16": 330.3 * _MIB,
    "ViT-B_32": 336.61 * _MIB,
    "ViT-L_16": 1.13 * _GIB,
    "ViT-L_32": 1.14 * _GIB,
}
# AugReg: model, settings in the file name, rate of fine-tuning, MiB before and after fine-tuning
# (four bytes for each weight), top-1 of the fine-tuned file.
_AUGREG = (
    ("ViT-L/16", "lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0", 0.01, 1242.4, 1162.4, 85.59),
    ("ViT-B/16", "lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0", 0.03, 391.4, 331.3, 85.49),
    ("ViT-S/16", "lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0", 0.03, 114.7, 84.7, 83.73),
    ("R50+ViT-L/32", "lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", 0.01, 1336.5, 1255.4, 85.99),
    ("R26+ViT-S/32", "lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", 0.03, 169.6, 139.1, 83.85),
    ("ViT-Ti/16", "lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", 0.03, 37.2, 22.1, 78.22),
    ("ViT-B/32", "lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", 0.01, 397.7, 336.8, 83.59),
    ("ViT-S/32", "lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0", 0.03, 117.9, 87.4, 79.58),
    ("R+ViT-Ti/16", "lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", 0.03, 39.5, 24.2, 75.40),
)
# BiT: width and depth -> MiB with ImageNet's and with ImageNet-21k's classes (four bytes for each
# weight).
_BIT = {
    "R50x1": (97.5, 260.4),
    "R101x1": (169.9, 332.8),
    "R50x3": (829.0, 1317.6),
    "R101x3": (1479.9, 1968.4),
    "R152x4": (3572.6, 4224.0),
}


def _paper():
    for stem, size in _PAPER.items():
        yield _record(f"imagenet21k/{stem}", _model(stem), size, 224, IMAGENET_21K)
    for stem, size in _PAPER_FINE_TUNED.items():
        name, side = f"imagenet21k+imagenet2012/{stem}", 224 if stem.endswith("-224") else 384
        yield _record(name, _model(stem.removesuffix("-224")), size, side, IMAGENET_1K)
    for stem, size in _SAM.items():
        yield _record(f"sam/{stem}", _model(stem), size, 224, IMAGENET_1K)


def _augreg():
    for model, settings, rate, before, after, top1 in _AUGREG:
        short = model.replace("ViT-", "").replace("+", "_").replace("/", "_")
        name = f"augreg/{short}-i21k-300ep-{settings}"
        yield _record(name, model, before * _MIB, 224, IMAGENET_21K, listed=False)
        name += f"--imagenet2012-steps_20k-lr_{rate}-res_384"
        yield _record(name, model, after * _MIB, 384, IMAGENET_1K, listed=False, top1=top1)


def _bit():
    for size, (small, large) in _BIT.items():
        model = f"BiT-{size}"
        for name, mib, side, classes in (
            (f"BiT-S-{size}", small, 224, IMAGENET_1K),
            (f"BiT-M-{size}", large, 224, IMAGENET_21K),
            (f"BiT-M-{size}-ILSVRC2012", small, 480, IMAGENET_1K),
        ):
            yield _record(f"bit_models/{name}", model, mib * _MIB, side, classes, listed=False)
    # The authors judge images of 224 as the center of 256; the same ratio is used for 160.
    for side, resize_to, top1 in ((224, 256, 82.8), (160, 183, 80.5)):
        yield _record(
            f"bit_models/distill/R50x1_{side}",
            "BiT-R50x1",
            _BIT["R50x1"][0] * _MIB,
            side,
            IMAGENET_1K,
            listed=False,
            resize_to=resize_to,
            top1=top1,
        )


def _model(stem):
    return stem.replace("_", "/")


RECORDS = {record.name: record for records in (_paper(), _augreg(), _bit()) for record in records}


def list_weights() -> dict[str, WeightsRecord]:
    """Published weights by name; `create_model(weights=name)` downloads them."""
    return dict(RECORDS)


def find_record(name, config=None) -> WeightsRecord:
    """The record of a name.

    Args:
        name: a name of `list_weights`, or with `config` also a collection.
        config: configuration of the model that is wanted.

    Raises:
        ValueError: if no weights have this name or fit the model, or several do; the message lists
            those.
    """
    if name in RECORDS:
        record = RECORDS[name]
        if config is not None and sizes(VARIANTS[record.model]) != sizes(config):
            raise ValueError(f"The weights {name} are of another model: create a {record.model}.")
        return record
    begun = [record for record in RECORDS.values() if name and record.name.startswith(name)]
    if config is not None and begun:
        fitting = [r for r in begun if sizes(VARIANTS[r.model]) == sizes(config)]
        of_collection = [r for r in begun if r.collection == name.rstrip("/")]
        both = [record for record in fitting if record in of_collection]
        if len(both) == 1:
            return both[0]
        if of_collection and not both:
            models = ", ".join(dict.fromkeys(record.model for record in of_collection))
            raise ValueError(f"The weights {name} have no file for this model. They have {models}.")
        begun = both or fitting or begun
    if not begun:
        raise ValueError(
            f"There is no model at {name}, and no published weights have this name."
            f"{_names_meant(name) or did_you_mean(name, RECORDS)}"
        )
    names = ", ".join(record.name for record in begun)
    if len(begun) == 1:
        raise ValueError(f"{name!r} is the beginning of the name of weights {names}. Use this.")
    raise ValueError(f"{name!r} is the beginning of several names of weights. Choose one: {names}.")


def _names_meant(name):
    """The end of the message about another project's name of weights; "" for any other name."""
    variant, side = other_spelling(name) or (None, None)
    if name.endswith(_FILES):
        return ""
    name = name.lower()
    # "in21k_ft_in1k" has the classes of its fine-tuning.
    is_21k = re.search("2[12]k", name) and not re.search("[^2]1k", name)
    classes = IMAGENET_21K if is_21k else IMAGENET_1K

    def distance(record):
        return (
            record.num_classes != classes,
            side is not None and side not in record.image_size,
            record.collection not in name,
        )

    near = sorted((r for r in RECORDS.values() if r.model == variant), key=distance)
    if not near:
        return ""
    return (
        f"{as_question([record.name for record in near[:3]])} vit_tf.list_weights() has all names. "
        "A folder of Hugging Face or timm on this machine is named by its path."
    )


def find_file_record(path, num_classes) -> WeightsRecord | None:
    """The record whose file has the name of `path` and this number of classes; None without one."""
    ends = path.replace("\\", "/").rpartition("/")[2]
    for record in RECORDS.values():
        if record.url.endswith(f"/{ends}") and record.num_classes == num_classes:
            return record
    return None


def sizes(config: ModelConfig) -> dict:
    """The fields that tell models of different names apart."""
    fields = {name: getattr(config, name) for name in config.size_fields}
    fields.pop("representation_size", None)  # Files with and without it have the same model name.
    if fields.get("stem") is not None:
        stem = fields.pop("stem")
        fields |= {"stem.stage_depths": stem.stage_depths, "stem.width": stem.width}
    return fields
