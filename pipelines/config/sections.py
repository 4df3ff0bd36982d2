"""The sections of an experiment, one class each, except those of model, data and masking."""

import dataclasses
import re

from pipelines.config.fields import check_at_least, check_choice
from pipelines.config.names import (
    AUTO_SPLIT,
    BEST_METRICS,
    DECAYS,
    LOSSES,
    MOMENTUM_DTYPES,
    NON_FINITE_MODES,
    OPTIMIZERS,
    WEIGHT_DECAY_MASKS,
)
from pipelines.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How gradients update the weights (docs/paper.md F.4, M.5).

    Attributes:
        name: "sgd" with momentum, or "adamw".
        learning_rate: largest learning rate, at the end of the warm-up.
        weight_decay: decoupled weight decay, multiplied by the current learning rate.
        weight_decay_mask: "kernels" decays matrices and convolutions only; "all" decays every
            variable, as the paper's own code does.
        momentum: momentum of sgd.
        momentum_dtype: type in which sgd's velocity, or adamw's mean of the gradients, is stored:
            "float32", or "bfloat16" to save 2 bytes per parameter. Updates are computed in float32.
        beta_1: decay of adamw's mean of the gradients.
        beta_2: decay of adamw's mean of the squared gradients.
        epsilon: of adamw, added to the root of the bias-corrected mean of the squared gradients.
        clip_norm: gradients with a larger global norm, after the sum over replicas, are scaled down
            to this norm; none turns clipping off.
        freeze: patterns of layers and variables that keep their values, such as
            patch_embedding,block_0,*/bias; `*` stands for any characters, `?` for one, `[ab]` for a
            or b and `[!ab]` for any other. Frozen variables have no gradient, weight decay or
            optimizer state.
        train_only: the opposite of `freeze`: patterns of the only layers and variables that are
            trained. `head` is a linear probe. Use one of the two.
        layer_decay: factor of the rate from each layer to the one before it, above 0 to 1; 1 gives
            all layers the same rate. In a ViT with L layers, head and final norm have the factor 1,
            layer i = 0 .. L - 1 has layer_decay^(L - i), and the embeddings have
            layer_decay^(L + 1). In ResNets a stage counts as a layer (docs/paper.md F.9).
    """

    name: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    weight_decay_mask: str = "kernels"
    momentum: float = 0.9
    momentum_dtype: str = "float32"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-8
    clip_norm: float | None = 1.0
    freeze: tuple[str, ...] = ()
    train_only: tuple[str, ...] = ()
    layer_decay: float = 1.0

    def __post_init__(self):
        check_choice("optimizer.name", self.name, OPTIMIZERS)
        check_choice("optimizer.momentum_dtype", self.momentum_dtype, MOMENTUM_DTYPES)
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
        if self.freeze and self.train_only:
            raise UserError(
                "optimizer.freeze and optimizer.train_only both choose what is trained. Set one of "
                "them."
            )
        if not 0 < self.layer_decay <= 1:
            raise UserError(
                f"optimizer.layer_decay must be above 0 and at most 1. Received: "
                f"{self.layer_decay}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """Linear warm-up, then decay to the last step (docs/paper.md F.3).

    Attributes:
        warmup_steps: steps in which the rate rises from 0 to optimizer.learning_rate. A recipe's
            value that does not fit into the steps of the run is scaled.
        warmup_epochs: the same in epochs, instead of warmup_steps; none: warmup_steps holds.
        decay: shape of the rate after the warm-up: "linear" (to 1e-5, or to
            optimizer.learning_rate if that is lower), "cosine" (to 0), "constant", or "staircase"
            (a tenth after each fraction in decay_at).
        decay_at: fractions of train.steps after which the rate falls to a tenth, such as
            0.3,0.6,0.9; only with staircase.
    """

    warmup_steps: int = 0
    warmup_epochs: float | None = None
    decay: str = "cosine"
    decay_at: tuple[float, ...] = ()

    def __post_init__(self):
        check_choice("schedule.decay", self.decay, DECAYS)
        check_at_least("schedule.warmup_steps", self.warmup_steps, 0)
        if self.warmup_epochs is not None:
            check_at_least("schedule.warmup_epochs", self.warmup_epochs, 0)
        if (self.decay == "staircase") != bool(self.decay_at):
            raise UserError(
                "schedule.decay_at belongs to schedule.decay=staircase: set both, or decay_at to "
                f"nothing. Received: decay={self.decay}, decay_at={self.decay_at}."
            )
        if list(self.decay_at) != sorted({x for x in self.decay_at if 0 < x < 1}):
            raise UserError(
                f"schedule.decay_at={self.decay_at} must be increasing fractions between 0 and 1."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """How long to train, and how often to log, evaluate and save.

    Attributes:
        steps: optimizer steps of the whole run.
        epochs: the length in epochs, instead of steps; none: steps holds. When the data are open,
            epochs become steps, rounded down: the config.json of a run holds steps.
        batch_size: images per step over all replicas and hosts.
        accumulate_steps: number of micro-batches per step; each replica processes them one after
            another, to save memory.
        ema_decay: decay of the moving (Polyak) average of the weights, 0.9999 in the paper; none
            keeps no average. With an average, evaluations during training use it, and the run also
            writes ema.npz.
        loss: "softmax", or "sigmoid" summed over the classes (the paper's pre-training loss), which
            data with lists of labels need.
        label_smoothing: probability moved from the true class to the uniform distribution.
        log_every: steps between progress lines.
        eval_every: steps between evaluations; 0 evaluates at the end only.
        eval_batches: largest number of batches of an evaluation during training, spread evenly over
            the data; 0 takes all of them.
        checkpoint_every: steps between checkpoints; 0 saves at the end only.
        keep_last: how many of the newest checkpoints are kept.
        keep_every: also keeps every checkpoint whose step is a multiple of this number; 0 turns
            this rule off.
        keep_best: saves after every evaluation and keeps the best checkpoint, for --weights=best:
            with the highest value of best_metric.
        best_metric: "evaluation": the accuracy, in multi-label data the mean average precision, of
            masked patches their accuracy or PSNR; "few_shot": the few-shot accuracy with the
            largest number of few_shot.shots (early stopping in the paper's figure 4).
        few_shot_every: steps between few-shot evaluations, of which the first is before the first
            step; 0 turns them off. See few_shot.
        non_finite: what happens at a loss or gradient that is not finite. "stop": the run ends;
            "skip": the step changes no weights, at most 10 steps in a row; "rewind": the run
            restores the newest checkpoint and continues with the data after the failed step, at
            most 10 times to the same checkpoint.
        profile: steps that are profiled for TensorBoard; 10:20 begins after 10 finished steps and
            ends after 20; none profiles nothing.
        histograms_every: steps between histograms of the weights for TensorBoard; 0 writes none.
        deterministic: turns on op determinism: a repeated run gives the same bits; slower on
            GPUs.
        jit_compile: compiles the training step (forward, backward, update) with XLA. Only on one
            device; a TPU compiles every step anyway.
    """

    steps: int = 1000
    epochs: float | None = None
    batch_size: int = 64
    accumulate_steps: int = 1
    ema_decay: float | None = None
    loss: str = "softmax"
    label_smoothing: float = 0.0
    log_every: int = 50
    eval_every: int = 0
    eval_batches: int = 0
    checkpoint_every: int = 500
    keep_last: int = 3
    keep_every: int = 0
    keep_best: bool = False
    best_metric: str = "evaluation"
    few_shot_every: int = 0
    non_finite: str = "stop"
    profile: str | None = None
    histograms_every: int = 0
    deterministic: bool = False
    jit_compile: bool = False

    def __post_init__(self):
        check_choice("train.loss", self.loss, LOSSES)
        check_choice("train.non_finite", self.non_finite, NON_FINITE_MODES)
        check_choice("train.best_metric", self.best_metric, BEST_METRICS)
        if self.best_metric == "few_shot" and not self.few_shot_every:
            raise UserError(
                "train.best_metric=few_shot needs few-shot evaluations. Set train.few_shot_every."
            )
        if self.best_metric != "evaluation" and not self.keep_best:
            raise UserError(
                f"train.best_metric={self.best_metric} chooses the checkpoint that "
                "train.keep_best=true keeps. Set that too."
            )
        for name in ("steps", "batch_size", "accumulate_steps", "log_every", "keep_last"):
            check_at_least(f"train.{name}", getattr(self, name), 1)
        if self.epochs is not None and self.epochs <= 0:
            raise UserError(f"train.epochs must be above 0, or none. Received: {self.epochs}.")
        for name in (
            "eval_every",
            "eval_batches",
            "few_shot_every",
            "checkpoint_every",
            "keep_every",
            "histograms_every",
        ):
            check_at_least(f"train.{name}", getattr(self, name), 0)
        if self.profile is not None:
            self.profiled_steps()
        if self.ema_decay is not None and not 0 <= self.ema_decay < 1:
            raise UserError(
                f"train.ema_decay must be in [0, 1), or none. Received: {self.ema_decay}."
            )
        if not 0 <= self.label_smoothing < 1:
            raise UserError(
                f"train.label_smoothing must be in [0, 1). Received: {self.label_smoothing}."
            )

    def profiled_steps(self) -> tuple[int, int] | None:
        """Returns `profile` as (finished steps at the begin, at the end).

        Raises:
            UserError: if it is not two numbers of steps in this order, up to `steps` unless the
                length is in epochs.
        """
        if self.profile is None:
            return None
        match = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12})", self.profile)
        begin, end = map(int, match.groups()) if match else (0, 0)
        last = self.steps if self.epochs is None else end
        if not begin < end <= last:
            raise UserError(
                "train.profile must be two numbers of steps, the smaller one first and none above "
                f"train.steps={self.steps}, such as 10:20. Received: {self.profile!r}."
            )
        return begin, end


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShot:
    """Few-shot evaluations during training, for train.few_shot_every (docs/paper.md H.1).

    Attributes:
        name: the data set; none: that of the run.
        data_dir: its folder; none: data.data_dir.
        train_split: its split for the training features. "auto": of the run's data set all of
            data.train_split, also if the run trains on a part of it; else as in data.
        eval_split: its split for the test features, as train_split.
        shots: numbers of training images of each class.
        l2: strength of the regularisation.
        seeds: number of selections of training images; the result is their mean.
    """

    name: str | None = None
    data_dir: str | None = None
    train_split: str = AUTO_SPLIT
    eval_split: str = AUTO_SPLIT
    shots: tuple[int, ...] = (1, 5, 10)
    l2: float = 1024.0
    seeds: int = 3

    def __post_init__(self):
        if not self.shots or min(self.shots) < 1:
            raise UserError(
                f"few_shot.shots must be numbers from 1 on, such as 1,5. Received: {self.shots}."
            )
        if self.l2 <= 0:
            raise UserError(f"few_shot.l2 must be above 0. Received: {self.l2}.")
        if not 1 <= self.seeds <= 1000:
            raise UserError(f"few_shot.seeds must be in 1 .. 1000. Received: {self.seeds}.")
