"""The sections of an experiment, one class for each concern; the model has its own module."""

import dataclasses

from pipelines.config.augmentation import Augmentation
from pipelines.config.fields import check_at_least, check_choice
from pipelines.config.names import (
    AUTO_SPLIT,
    BAD_IMAGES,
    DECAYS,
    LOSSES,
    NON_FINITE_MODES,
    OPTIMIZERS,
    SHARDINGS,
    WEIGHT_DECAY_MASKS,
)
from pipelines.errors import UserError
from vit_tf.preprocessing import RESIZE_RULES


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
    # auto: train, or the first 90 % of a split that is there alone; see `data/sources/splits.py`.
    # The config.json of a run holds what was chosen.
    train_split: str = AUTO_SPLIT
    # Evaluated during and after training; None evaluates nothing. auto: test, else a validation
    # split, or the rest of a split that is there alone.
    eval_split: str | None = AUTO_SPLIT
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
        check_choice("data.resize", self.resize, RESIZE_RULES)
        check_choice("data.sharding", self.sharding, SHARDINGS)
        check_choice("data.bad_images", self.bad_images, BAD_IMAGES)
        check_at_least("data.shuffle_window", self.shuffle_window, 1)
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
    """How a gradient changes the weights; the equations are in `training/optimizers.py`."""

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
        check_choice("optimizer.name", self.name, OPTIMIZERS)
        check_choice("optimizer.weight_decay_mask", self.weight_decay_mask, WEIGHT_DECAY_MASKS)
        for name in ("learning_rate", "weight_decay", "epsilon"):
            check_at_least(f"optimizer.{name}", getattr(self, name), 0)
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
        check_choice("schedule.decay", self.decay, DECAYS)
        check_at_least("schedule.warmup_steps", self.warmup_steps, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """How long and how often."""

    # Optimizer steps of the whole run.
    steps: int = 1000
    # Images per step over all replicas and hosts.
    batch_size: int = 64
    # Micro-batches that a replica's images are processed in, one after another, to save memory.
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
        check_choice("train.loss", self.loss, LOSSES)
        check_choice("train.non_finite", self.non_finite, NON_FINITE_MODES)
        for name in ("steps", "batch_size", "accumulate_steps", "log_every", "keep_last"):
            check_at_least(f"train.{name}", getattr(self, name), 1)
        for name in ("eval_every", "checkpoint_every", "keep_every"):
            check_at_least(f"train.{name}", getattr(self, name), 0)
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise UserError(
                f"train.ema_decay must be in [0, 1), or none. Received: {self.ema_decay}."
            )
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"train.label_smoothing must be in [0, 1). Received: {self.label_smoothing}."
            )
