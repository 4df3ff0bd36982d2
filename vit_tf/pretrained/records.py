"""The table of published weights, by name. Loads no framework.

A name is `<collection>/<file without .npz>`. The files are those that the authors of the Vision
Transformer, AugReg, SAM and BiT list (docs/paper.md B.9).
"""

import dataclasses
import re

from vit_tf.analysis import resnet_cost, vit_cost
from vit_tf.config import ModelConfig
from vit_tf.config.near_names import as_question, did_you_mean
from vit_tf.config.other_spellings import other_spelling
from vit_tf.config.variants import VARIANTS
from vit_tf.preprocessing import Preprocessing
from vit_tf.pretrained import augreg
from vit_tf.pretrained.class_names import IMAGENET_1K, IMAGENET_21K
from vit_tf.pretrained.verified import VerifiedFile, verified_files

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
        listed_size: bytes of the file, rounded, as the authors list it; None if they do not.
        num_classes: 1000 (ImageNet-1k), 21,843 (ImageNet-21k), or for another data set of
            AugReg's fine-tuning.
        preprocessing: how images are prepared, without class names.
        recipe: the `vit_tf.pretrained.augreg.Recipe` that the name of a file of AugReg states, else
            None.
        top1: accuracy on ImageNet in percent that the authors measured; None if they list none.
        license: identifier of the license, as in SPDX.
    """

    name: str
    model: str
    url: str
    listed_size: int | None
    num_classes: int
    preprocessing: Preprocessing
    recipe: augreg.Recipe | None = None
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
    def config(self) -> ModelConfig:
        """The configuration of the model in the file."""
        config = VARIANTS[self.model]
        config = config.replace(image_size=self.image_size, num_classes=self.num_classes)
        if self.has_pre_logits:
            return config.replace(representation_size=getattr(config, "hidden_size", None))
        return config

    @property
    def size(self) -> int:
        """Bytes of the file: as it is listed, else four for each weight of the model."""
        if self.listed_size is not None:
            return self.listed_size
        config = self.config
        model = resnet_cost if config.family == "resnet" else vit_cost
        costs = model.parts(config, size=4, compiled=False).values()
        return 4 * sum(cost.parameters for cost in costs)

    @property
    def verified(self) -> VerifiedFile | None:
        """What `pipelines.verify_weights` found in the file, if it was verified."""
        return verified_files().get(self.name)

    @property
    def has_pre_logits(self) -> bool:
        """Whether the file has the hidden layer before the head."""
        return self.collection == "imagenet21k"

    @property
    def most_bytes(self) -> int:
        """Larger files are refused.

        A file whose size is not listed may hold the state of the optimizer beside the weights.
        """
        return 4 * self.size if self.listed_size is None else self.size + self.size // 20 + _MIB


def _record(name, model, side, classes, *, listed=None, resize_to=None, top1=None):
    folder = "" if name.startswith("bit_models/") else "vit_models/"
    return WeightsRecord(
        name=name,
        model=model,
        url=f"{_BASE}{folder}{name}.npz",
        listed_size=None if listed is None else round(listed),
        num_classes=classes,
        preprocessing=Preprocessing(
            image_size=(side, side),
            resize="direct" if resize_to is None else "resize_small",
            resize_to=resize_to,
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
# AugReg: the best file of each model before fine-tuning, the rate of its best fine-tuning at 384
# pixels, and the top-1 of that. `vit_tf/pretrained/augreg.py` reads all other names.
_AUGREG = (
    ("L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0", 0.01, 85.59),
    ("B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0", 0.03, 85.49),
    ("S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0", 0.03, 83.73),
    ("R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1", 0.01, 85.99),
    ("R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", 0.03, 83.85),
    ("Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", 0.03, 78.22),
    ("B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0", 0.01, 83.59),
    ("S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0", 0.03, 79.58),
    ("R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0", 0.03, 75.40),
)
# Depths and widths of BiT.
_BIT = ("R50x1", "R101x1", "R50x3", "R101x3", "R152x4")


def _paper():
    for stem, size in _PAPER.items():
        yield _record(f"imagenet21k/{stem}", _model(stem), 224, IMAGENET_21K, listed=size)
    for stem, size in _PAPER_FINE_TUNED.items():
        name, side = f"imagenet21k+imagenet2012/{stem}", 224 if stem.endswith("-224") else 384
        yield _record(name, _model(stem.removesuffix("-224")), side, IMAGENET_1K, listed=size)
    for stem, size in _SAM.items():
        yield _record(f"sam/{stem}", _model(stem), 224, IMAGENET_1K, listed=size)


def _augreg():
    for stem, rate, top1 in _AUGREG:
        name = f"{augreg.COLLECTION}/{stem}"
        yield _augreg_record(name)
        yield _augreg_record(f"{name}--imagenet2012-steps_20k-lr_{rate}-res_384", top1)


def _augreg_record(name, top1=None):
    """The record of any name of AugReg's scheme; ValueError for another name."""
    recipe = augreg.parse(name)
    record = _record(name, recipe.model, recipe.image_size, recipe.num_classes, top1=top1)
    return dataclasses.replace(record, recipe=recipe)


def _bit():
    for size in _BIT:
        for name, side, classes in (
            (f"BiT-S-{size}", 224, IMAGENET_1K),
            (f"BiT-M-{size}", 224, IMAGENET_21K),
            (f"BiT-M-{size}-ILSVRC2012", 480, IMAGENET_1K),
        ):
            yield _record(f"bit_models/{name}", f"BiT-{size}", side, classes)
    # The authors judge images of 224 as the center of 256; the same ratio is used for 160.
    for side, resize_to, top1 in ((224, 256, 82.8), (160, 183, 80.5)):
        yield _record(
            f"bit_models/distill/R50x1_{side}",
            "BiT-R50x1",
            side,
            IMAGENET_1K,
            resize_to=resize_to,
            top1=top1,
        )


def _model(stem):
    return stem.replace("_", "/")


RECORDS = {record.name: record for records in (_paper(), _augreg(), _bit()) for record in records}


def list_weights() -> dict[str, WeightsRecord]:
    """Published weights by name; `create_model(weights=name)` downloads them.

    These are the files that the authors list. `create_model` also takes the names of all other
    files of AugReg.
    """
    return dict(RECORDS)


def named_record(name) -> WeightsRecord | None:
    """The record of a name of `list_weights` or of a file of AugReg; None for any other text."""
    if name in RECORDS or not augreg.is_name(name):
        return RECORDS.get(name)
    try:
        return _augreg_record(name)
    except ValueError:
        return None


def find_record(name, config=None) -> WeightsRecord:
    """The record of a name.

    Args:
        name: a name of `list_weights` or of a file of AugReg, or with `config` also a collection.
        config: configuration of the model that is wanted.

    Raises:
        ValueError: if no weights have this name or fit the model, or several do; the message lists
            those, or names the part that AugReg's names do not have.
    """
    if record := named_record(name):
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
    if not begun and augreg.is_name(name):
        augreg.parse(name)  # Raises: it has no record.
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
    of_augreg = named_record(f"{augreg.COLLECTION}/{ends.removesuffix('.npz')}")
    for record in (*RECORDS.values(), *([of_augreg] if of_augreg else [])):
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
