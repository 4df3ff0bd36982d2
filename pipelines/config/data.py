"""The section of the data: where images come from, and how they become batches."""

import dataclasses
import re
from typing import Any, Literal

from pipelines.config.augmentation import Augmentation
from pipelines.config.fields import check, check_at_least, check_choices
from pipelines.config.names import AUTO_SPLIT, BUILTIN, ClassOrder, ImageDtype, SplitBy
from pipelines.errors import UserError
from vit_tf.images.value_range import MEAN, STD
from vit_tf.preprocessing import Exif, Interpolation, Jpeg, ResizeRule

# The fields that say which images a data set has, and how its classes and ranges are taken.
NAMING_FIELDS = ("data.name", "data.data_dir", "data.label", "data.split_by", "data.class_order")
# "global": batches are the same on any number of hosts; "files": each host reads its own files.
Sharding = Literal["global", "files"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """Decides, together with the data set, which examples are in which training batch.

    With sharding="files" the batches also depend on the number of hosts.

    Attributes:
        batch_size: examples in a global batch.
        shuffle_window: examples shuffled together; memory holds at most twice as many, encoded.
        seed: seed of the run, 0 .. 2**64 - 1.
        sharding: "global" or "files", see `data/order.py`.
    """

    batch_size: int
    shuffle_window: int
    seed: int
    sharding: Sharding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Augmentation):
    """Where images come from and how they become batches.

    The section also has all fields of `Augmentation`, such as data.crop.

    Attributes:
        name: the data set: digits, folder:PATH, list:FILE, tfrecord:PATH, shapes/CONFIG, or a TFDS
            name such as imagenet2012:5.1.0.
        data_dir: folder of prepared TFDS data sets; none is the default of TFDS. Relative paths of
            the other kinds of data sets start from this folder.
        label: name of the label feature of a TFDS data set with several, such as coarse_label of
            cifar100, or of a rule, such as clevr_count; none: its only rule, or the feature that
            its supervised_keys name. Other kinds of data sets have one label only.
        train_split: split for training, in TFDS notation, such as train[:90%], or a range of a
            range, such as train[90%:][:200]. "auto": train, or the first 90 % of the only split.
            The config.json of a run holds the chosen split.
        eval_split: split for evaluation during and after training; none turns evaluation off.
            "auto": test, else a validation split, or the rest of the only split.
        split_by: how ranges such as train[:90%] of folders and lists are taken. "class": of each
            class, so that both sides of a border have images of every class with at least two;
            "file": of all files together, by a hash of their paths. A run whose config.json has no
            such field goes on with "file".
        class_order: how the classes of folders and lists are numbered. "text": by the code points
            of their names, so 180 is before 90; "natural": numbers in the names count as numbers
            and letter case does not, as in timm; "auto": as text, but a list of whole numbers by
            number.
        exclude: file or URL of a list of training examples to leave out, as `pipelines.dedup`
            writes it; before `fraction` and `per_class` choose from the others. Evaluation data
            stay whole.
        fraction: part of the training split to train on, above 0 to 1; none takes all of it. A
            smaller fraction is contained in a larger one.
        per_class: number of training examples of each class, instead of `fraction`; none takes
            all. Fewer examples are contained in more.
        subset_seed: seed of the choice of these examples. It depends on nothing else but their ids.
        balance: whether rare classes are balanced. "none": they are not; "sample": an epoch has as
            many images of every class as of the largest, so it repeats the examples of the others;
            "loss": the loss of an example of class c is multiplied by n / (K n_c), for n examples
            of K classes, n_c of class c: the mean over the data is 1. Evaluations are not balanced.
        shuffle_window: examples that are shuffled together; memory holds at most twice as many
            encoded images.
        sharding: "global": batches are the same on any number of hosts; "files": each host reads
            its own files.
        bad_images: the reaction to an image that cannot be decoded. "stop": the run ends; "skip":
            the image is left out. In both cases a message names the image.
        scan: search for files that cannot be decoded before the first step, in folders and lists on
            local disks. "headers": reads the first and last bytes of each; "auto": the same for up
            to 100,000 files; "none": no search.
        resize: how images are resized to the model's size, except in training. "direct": without
            keeping the aspect ratio; "resize_small": the shorter side to `resize_to`, then a
            central crop; "shortest_edge" and "center": the same with the rounding of Hugging Face
            and of timm; "squash": both sides to `resize_to`, then a central crop.
        resize_to: length of the shorter side before the central crop, in pixels; not with direct.
        crop_fraction: instead of `resize_to`: the part of that length which the crop keeps, such
            as 0.875.
        interpolation: filter of every resize, "bilinear", "bicubic" or "area"; `eval_interpolation`
            can differ from it outside training.
        eval_interpolation: filter of the resize in evaluation and serving, "bilinear", "bicubic" or
            "area"; none is `interpolation`.
        antialias: whether the filter becomes wider with the reduction, as in Pillow, timm and
            Hugging Face; in training too.
        exif: whether a JPEG is turned by its EXIF orientation, as photos of phones may need.
            "apply": it is, in training, evaluation and serving; "ignore": it is read as it is
            stored, as by the paper's code. none: "ignore" for data sets of TFDS, "apply" for all
            others; recipes of published data in TFRecord files set "ignore". The config.json of a
            run holds the choice. A run whose config.json has no such field goes on with "ignore".
        jpeg: how JPEGs are decoded, in training too. "fast": TensorFlow's default, as in the
            paper's code; "accurate": with the pixels of Pillow, timm and Hugging Face, from which
            the former differ by 0.7 to 0.8 levels on average; none: accurate with `antialias`, else
            fast. A run whose config.json has no such field goes on with "fast".
        mean: mean of each color, for values from 0 to 1, that is subtracted.
        std: standard deviation of each color, by which the result is divided. With 0.5 and 0.5,
            models read pixels in [-1, 1].
        image_dtype: dtype of the images in batches: "float32", or "uint8", which takes a quarter of
            the bytes on the way to the devices: values are rounded to 0 .. 255 after resize and
            augmentation. Evaluations use it only with `antialias`, where the values are already
            whole.
    """

    name: str = "digits"
    data_dir: str | None = None
    label: str | None = None
    train_split: str = AUTO_SPLIT
    eval_split: str | None = AUTO_SPLIT
    split_by: SplitBy = "class"
    class_order: ClassOrder = "auto"
    exclude: str | None = None
    fraction: float | None = None
    per_class: int | None = None
    subset_seed: int = 0
    balance: Literal["none", "sample", "loss"] = "none"
    shuffle_window: int = 8192
    sharding: Sharding = "global"
    bad_images: Literal["stop", "skip"] = "stop"
    scan: Literal["auto", "headers", "none"] = "auto"
    resize: ResizeRule = "direct"
    resize_to: int | None = None
    crop_fraction: float | None = None
    interpolation: Interpolation = "bilinear"
    eval_interpolation: Interpolation | None = None
    antialias: bool = False
    exif: Exif | None = None
    jpeg: Jpeg | None = None
    mean: tuple[float, float, float] = MEAN
    std: tuple[float, float, float] = STD
    image_dtype: ImageDtype = "float32"

    def __post_init__(self):
        check_choices(self, "data.")
        try:
            super().__post_init__()
        except ValueError as error:
            raise UserError(f"data.{error}") from None
        check_at_least("data.shuffle_window", self.shuffle_window, 1)
        self._check_subset()
        self._check_image_dtype()
        if self.exif is None:
            exif = "ignore" if _kind(self.name) == "published" else "apply"
            object.__setattr__(self, "exif", exif)
        sides = [x for x in (self.resize_to, self.crop_fraction) if x is not None]
        if len(sides) != (self.resize != "direct"):
            raise UserError(
                "data.resize=direct has no crop; the other rules need data.resize_to or "
                f"data.crop_fraction, one of them. Received: resize={self.resize}, "
                f"resize_to={self.resize_to}, crop_fraction={self.crop_fraction}."
            )

    def for_name(self, name: str) -> dict[str, Any]:
        """Fields that follow another `name`: splits, label, class order and, for others, `exif`."""
        if name == self.name:
            return {}
        splits = ("train_split", "eval_split")
        chosen: dict[str, Any] = {x: AUTO_SPLIT for x in splits if getattr(self, x) is not None}
        # TFRecord files may be a copy of any data, such as the recipe's data.
        if _kind(name) not in ("records", _kind(self.name)):
            chosen["exif"] = None
        order = self.class_order if name.split(":")[0] in ("folder", "list") else "auto"
        return {**chosen, "label": None, "class_order": order}

    def is_same_data_set(self, other: "Data") -> bool:
        """Whether the fields that name the data set are equal; splits and parts may differ."""
        names = [path.removeprefix("data.") for path in NAMING_FIELDS]
        return all(getattr(self, name) == getattr(other, name) for name in names)

    @property
    def is_builtin(self) -> bool:
        """Whether `data/builtin` makes the data set."""
        return re.split("[/:]", self.name)[0] in BUILTIN

    def _check_subset(self):
        if self.fraction is not None and self.per_class is not None:
            raise UserError(
                "data.fraction and data.per_class both choose a part of the training data. Set one "
                "of them."
            )
        is_part = self.fraction is None or 0 < self.fraction <= 1
        check("data.fraction", self.fraction, is_part, "above 0 and at most 1, or none")
        if self.per_class is not None:
            check_at_least("data.per_class", self.per_class, 1)
        check_at_least("data.subset_seed", self.subset_seed, 0)

    def _check_image_dtype(self):
        if self.image_dtype == "float32":
            return
        for name in ("mixup", "cutmix"):
            if value := getattr(self, name):
                raise UserError(
                    f"data.{name}={value} mixes images as floats, not as data.image_dtype=uint8. "
                    f"Set data.image_dtype=float32, or data.{name}=0."
                )
        if (self.mean, self.std) != (MEAN, STD):
            raise UserError(
                "data.image_dtype=uint8 needs data.mean=0.5,0.5,0.5 and data.std=0.5,0.5,0.5: "
                "models map uint8 to [-1, 1]. Set them, or data.image_dtype=float32. Received: "
                f"mean={self.mean}, std={self.std}."
            )

    @property
    def eval_image_dtype(self) -> str:
        """Dtype of the images that are evaluated.

        An evaluation computes what the saved model will. So its images are uint8 only if rounding
        changes nothing: with `antialias`, every resize ends with whole levels.
        """
        return self.image_dtype if self.antialias else "float32"

    def preprocessing_fields(self) -> dict[str, Any]:
        """Returns the arguments of `vit_tf.Preprocessing` that this section holds."""
        return {
            "resize": self.resize,
            "resize_to": self.resize_to,
            "crop_fraction": self.crop_fraction,
            "interpolation": self.eval_interpolation or self.interpolation,
            "antialias": self.antialias,
            "exif": self.exif,
            "jpeg": self.jpeg,
            "mean": self.mean,
            "std": self.std,
        }


def _kind(name):
    """Whose images a data set has: "own", "published" (of TFDS), or, in TFRecord files, either."""
    first = re.split("[/:]", name)[0]
    if first == "tfrecord":
        return "records"
    return "own" if first in ("folder", "list", *BUILTIN) else "published"
