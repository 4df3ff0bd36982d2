"""What a run is: frozen dataclasses, typed overrides, JSON in both directions.

Every default lives here or in the recipe (`experiments.py`); nothing below reads a configuration
with a default of its own.
"""

import dataclasses
import difflib
import json
from typing import Any

from pipelines.config.augmentation import Augmentation
from pipelines.config.fields import fields_of, from_json, parse
from pipelines.config.names import BAD_IMAGES, SHARDINGS
from pipelines.config.sampling import Sampling
from pipelines.errors import UserError
from vit_tf.config import ModelConfig, ResNetConfig, StemConfig, ViTConfig
from vit_tf.config.variants import get_variant
from vit_tf.preprocessing import Preprocessing

# Fields that make a variant; see `override`.
_SIZES = (
    "patch_size",
    "hidden_size",
    "mlp_size",
    "layers",
    "heads",
    "representation_size",
    "stage_depths",
    "width",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """A variant and the fields that differ from it; None keeps the variant's own value."""

    # A name of vit_tf.list_models().
    name: str = "ViT-B/16"
    # (height, width) in pixels; one number means a square.
    image_size: tuple[int, int] = (224, 224)
    patch_size: int | None = None
    hidden_size: int | None = None
    mlp_size: int | None = None
    layers: int | None = None
    heads: int | None = None
    # Residual units of each stage of a ResNet or of a hybrid's stem, such as 3,4,9; () is the root
    # alone. They make a hybrid of a ViT.
    stage_depths: tuple[int, ...] | None = None
    # Width factor of the same, and its epsilons; see vit_tf.StemConfig.
    width: float | None = None
    group_norm_epsilon: float | None = None
    variance_epsilon: float | None = None
    deviation_epsilon: float | None = None
    classifier: str | None = None
    representation_size: int | None = None
    position_embedding: str | None = None
    activation: str | None = None
    dropout: float | None = None
    attention_dropout: float | None = None
    stochastic_depth: float | None = None
    layer_norm_epsilon: float | None = None
    head_bias: float | None = None
    # Keras dtype policy: float32 or mixed_bfloat16.
    dtype: str = "float32"

    def __post_init__(self):
        _check_choice("model.dtype", self.dtype, ("float32", "mixed_bfloat16"))
        try:
            self.config(num_classes=1)
        except (TypeError, ValueError) as error:
            raise UserError(f"model: {error}") from None

    def config(self, num_classes: int) -> ModelConfig:
        """The configuration this section describes."""
        variant = get_variant(self.name)
        fields = dataclasses.asdict(self) | {"num_classes": num_classes}
        del fields["name"], fields["dtype"]
        changed = {key: value for key, value in fields.items() if value is not None}
        if isinstance(variant, ViTConfig):
            names = {field.name for field in dataclasses.fields(StemConfig)} & changed.keys()
            if variant.stem is None and names and "stage_depths" not in names:
                left_out = ", ".join(sorted(names))
                raise ValueError(
                    f"{self.name} has no stem. Set stage_depths too, or leave out {left_out}."
                )
            stem = {name: changed.pop(name) for name in names}
            if stem:
                changed["stem"] = (variant.stem or StemConfig()).replace(**stem)
        return variant.replace(**changed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Augmentation):
    """Where images come from and how they become batches.

    Its further fields, such as data.crop and data.randaugment_layers, are those of
    `Augmentation`.
    """

    # folder:PATH, list:FILE, tfrecord:PATH, or a TFDS name such as "imagenet2012:5.1.0".
    name: str = "digits"
    # Where TFDS keeps prepared data sets; None is TFDS' own default.
    data_dir: str | None = None
    train_split: str = "train"
    # Evaluated during and after training; None evaluates nothing.
    eval_split: str | None = "test"
    # Examples that are shuffled together; about this many encoded images are held in memory.
    shuffle_window: int = 8192
    # global: batches are the same on any number of hosts; files: each host reads its own files.
    sharding: str = "global"
    # An image that cannot be decoded. stop: ends the run; skip: is left out; both name it.
    bad_images: str = "stop"
    # Evaluation. direct: resize, aspect not kept; resize_small: shorter side, then central crop.
    resize: str = "direct"
    # Length of the shorter side before the central crop, in pixels.
    resize_to: int | None = None

    def __post_init__(self):
        try:
            super().__post_init__()
        except ValueError as error:
            raise UserError(f"data.{error}") from None
        _check_choice("data.resize", self.resize, ("direct", "resize_small"))
        _check_choice("data.sharding", self.sharding, SHARDINGS)
        _check_choice("data.bad_images", self.bad_images, BAD_IMAGES)
        _check_at_least("data.shuffle_window", self.shuffle_window, 1)
        if (self.resize == "resize_small") != (self.resize_to is not None):
            raise UserError(
                f"data.resize_to belongs to data.resize=resize_small. "
                f"Received: resize={self.resize}, resize_to={self.resize_to}."
            )

    def augmentation(self) -> Augmentation:
        """What happens to training images."""
        names = [field.name for field in dataclasses.fields(Augmentation)]
        return Augmentation(**{name: getattr(self, name) for name in names})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """Equations: `training/optimizers.py`."""

    name: str = "adamw"
    # Peak of the schedule.
    learning_rate: float = 1e-3
    # Decoupled, multiplied by the current learning rate.
    weight_decay: float = 0.0
    # kernels: matrices and convolutions only; all: every variable, as in the paper's own code.
    weight_decay_mask: str = "kernels"
    momentum: float = 0.9
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    # Largest global norm of the gradient, summed over replicas; None does not clip.
    clip_norm: float | None = 1.0

    def __post_init__(self):
        _check_choice("optimizer.name", self.name, ("sgd", "adamw"))
        _check_choice("optimizer.weight_decay_mask", self.weight_decay_mask, ("kernels", "all"))
        for name in ("learning_rate", "weight_decay", "epsilon"):
            _check_at_least(f"optimizer.{name}", getattr(self, name), 0)
        for name in ("momentum", "beta_1", "beta_2"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise UserError(f"optimizer.{name} must be in [0, 1). Received: {value}.")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise UserError(
                f"optimizer.clip_norm must be above 0, or none. Received: {self.clip_norm}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """Linear warm-up, then decay to the last step (paper, table 3 and 4)."""

    warmup_steps: int = 0
    # linear (to 1e-5), cosine (to 0) or constant.
    decay: str = "cosine"

    def __post_init__(self):
        _check_choice("schedule.decay", self.decay, ("linear", "cosine", "constant"))
        _check_at_least("schedule.warmup_steps", self.warmup_steps, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """How long and how often."""

    # Optimizer steps of the whole run.
    steps: int = 1000
    # Images per step over all replicas and hosts.
    batch_size: int = 64
    # Parts a replica's images are processed in, one after another, to save memory.
    accumulate_steps: int = 1
    # Decay of the Polyak average of the weights, 0.9999 in the paper; none keeps no average.
    # Evaluations during training then use the average, and the run also writes ema.npz.
    ema_decay: float | None = None
    # softmax, or sigmoid summed over classes (the paper's pre-training loss).
    loss: str = "softmax"
    # Mass moved from the true class to the uniform distribution.
    label_smoothing: float = 0.0
    # Steps between progress lines.
    log_every: int = 50
    # Steps between evaluations; 0 evaluates at the end only.
    eval_every: int = 0
    # Steps between checkpoints; 0 saves at the end only.
    checkpoint_every: int = 500
    # Newest checkpoints that are kept.
    keep_last: int = 3
    # Keeps every checkpoint whose step is a multiple; 0 keeps none for that reason.
    keep_every: int = 0
    # Saves after every evaluation and keeps the best checkpoint, for --weights=best.
    keep_best: bool = False
    # After a loss or gradient that is not finite. stop; skip: the step changes nothing, at most 10
    # in a row; rewind: the newest checkpoint, then the data after that step, at most 10 times.
    non_finite: str = "stop"
    # Op determinism: the same run gives the same bits, on GPUs at some cost.
    deterministic: bool = False

    def __post_init__(self):
        _check_choice("train.loss", self.loss, ("softmax", "sigmoid"))
        _check_choice("train.non_finite", self.non_finite, ("stop", "skip", "rewind"))
        for name in ("steps", "batch_size", "accumulate_steps", "log_every", "keep_last"):
            _check_at_least(f"train.{name}", getattr(self, name), 1)
        for name in ("eval_every", "checkpoint_every", "keep_every"):
            _check_at_least(f"train.{name}", getattr(self, name), 0)
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise UserError(
                f"train.ema_decay must be in [0, 1), or none. Received: {self.ema_decay}."
            )
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"train.label_smoothing must be in [0, 1). Received: {self.label_smoothing}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides what a run computes, except the hardware."""

    # Of weights, data order, augmentation and dropout.
    seed: int = 0
    # Where the first weights come from: a workdir, .npz or .keras file, "shipped", or none. The
    # head is replaced by zeros and positions are resized, as for fine-tuning.
    init_from: str | None = None
    model: Model = dataclasses.field(default_factory=Model)
    data: Data = dataclasses.field(default_factory=Data)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    train: Train = dataclasses.field(default_factory=Train)

    def __post_init__(self):
        if not 0 <= self.seed < 2**31:
            raise UserError(f"seed must be in [0, 2^31). Received: {self.seed}.")
        if self.init_from == "":
            raise UserError("init_from is empty. Name a model, or use none.")
        try:
            self.preprocessing(())
        except ValueError as error:
            raise UserError(f"model.image_size, data.resize: {error}") from None
        if self.schedule.warmup_steps >= self.train.steps:
            raise UserError(
                f"schedule.warmup_steps={self.schedule.warmup_steps} must be below "
                f"train.steps={self.train.steps}."
            )

    def preprocessing(self, labels) -> Preprocessing:
        """How images become inputs of this run's model outside training.

        Args:
            labels: class names in label order.
        """
        return Preprocessing(
            image_size=self.model.image_size,
            resize=self.data.resize,
            resize_to=self.data.resize_to,
            labels=tuple(labels),
            probabilities=self.train.loss,
        )

    def sampling(self) -> Sampling:
        """Which examples are in which training batch."""
        return Sampling(
            batch_size=self.train.batch_size,
            shuffle_window=self.data.shuffle_window,
            seed=self.seed,
            sharding=self.data.sharding,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-able: tuples become lists."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> "Experiment":
        """Inverse of `to_dict`; `UserError` for unknown fields and wrong types."""
        return from_json(cls, fields, "")


def override(experiment: Experiment, assignments: list[str]) -> Experiment:
    """Applies `path.to.field=value` assignments, together, so that their order does not matter.

    Values are read by the field's type: `none` for an optional field, `224` or `224,160` for sizes.
    Another `model.name` takes the sizes of that model, not those the recipe gave to its own, and a
    ResNet none of the fields that only a Transformer has.

    Raises:
        UserError: for an unknown path (with near names), an unreadable value or a value that
            does not fit the rest.
    """
    fields = experiment.to_dict()
    for assignment in assignments:
        if assignment.startswith("model.name="):
            fields["model"] |= dict.fromkeys(_SIZES)
            if _is_resnet(assignment.partition("=")[2]):
                kept = {field.name for field in dataclasses.fields(ResNetConfig)}
                others = fields["model"].keys() - kept - {"name", "dtype"}
                fields["model"] |= dict.fromkeys(others)
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator:
            raise UserError(f"--set needs path=value, such as train.steps=100. Received: {path!r}.")
        kind = dict(config_paths()).get(path)
        if kind is None:
            near = difflib.get_close_matches(path, [name for name, _ in config_paths()], n=3)
            hint = f" Did you mean {' or '.join(near)}?" if near else ""
            raise UserError(f"Unknown config path {path!r} in --set {assignment}.{hint}")
        *sections, name = path.split(".")
        section = fields
        for key in sections:
            section = section[key]
        section[name] = parse(path, text, kind)
    return Experiment.from_dict(fields)


def _is_resnet(name):
    try:
        return isinstance(get_variant(name), ResNetConfig)
    except ValueError:
        return False  # `Model` says why.


def config_paths() -> list[tuple[str, Any]]:
    """All `(dotted path, type)` pairs that `--set` accepts."""
    return fields_of(Experiment)


def _check_choice(path, value, choices):
    if value not in choices:
        raise UserError(f"{path} must be one of {', '.join(choices)}. Received: {value!r}.")


def _check_at_least(path, value, minimum):
    if value < minimum:
        raise UserError(f"{path} must be at least {minimum}. Received: {value}.")
