"""The section of training: its length, loss, evaluations and checkpoints."""

import dataclasses
import re
from typing import Any, Literal

from pipelines.config.fields import check, check_at_least, check_choices
from pipelines.errors import UserError


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
        ema_warmup: lets the decay of step t = 0, 1, ... begin small: min(ema_decay, (1 + t) / (10 +
            t)). Otherwise the initial weights, the zero head included, keep the share
            ema_decay^steps of the average. Assigning train.ema_decay where there was no average
            sets it to true. The paper's recipes have false, and so has a config.json without it.
        loss: "softmax", or "sigmoid" summed over the classes (the paper's pre-training loss), which
            data with lists of labels need.
        label_smoothing: softmax: probability moved from the true class to the uniform distribution;
            sigmoid: each target of 1 becomes 1 - label_smoothing, each of 0 label_smoothing.
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
        early_stop_after: ends the run after this many evaluations in a row without a better value
            of best_metric; 0 trains all steps. The schedule still covers all steps.
        few_shot_every: steps between few-shot evaluations; the first one is before the first
            step; 0 turns them off. See few_shot.
        non_finite: the reaction to a loss or gradient that is not finite. "stop": the run ends;
            "skip": the step changes no weights, at most 10 steps in a row; "rewind": the run
            restores the newest checkpoint and continues with the data after the failed step, at
            most 10 times to the same checkpoint.
        profile: steps that are profiled for TensorBoard; 10:20 begins after 10 finished steps and
            ends after 20; none profiles nothing.
        histograms_every: steps between histograms of the weights for TensorBoard; 0 writes none.
        inspect_every: steps between pictures of the model for TensorBoard: attention on eight
            evaluation images (of the training data with data.eval_split=none), similarity of
            positions, attention distances, and embeddings of one evaluation batch for the
            projector; 0 writes none.
        deterministic: turns on op determinism: a repeated run gives the same bits; slower on
            GPUs.
        jit_compile: compiles the training step (forward, backward, update) with XLA. Only on one
            device; a TPU compiles every step anyway.
        shard_optimizer: each replica keeps and updates a slice of the optimizer's state and of the
            moving average, not all of them: several replicas need less memory each, and send twice
            as much in a step. The weights stay whole on every replica. Results are equal up to
            rounding, and checkpoints are the same; on one replica it changes nothing.
        worker_timeout: --strategy=multi_worker: seconds after which one of the workers is taken to
            hang if all of them together finish no step, no batch of an evaluation and no
            checkpoint; the job then ends with exit code 76. Compiling the first step counts.
    """

    steps: int = 1000
    epochs: float | None = None
    batch_size: int = 64
    accumulate_steps: int = 1
    ema_decay: float | None = None
    ema_warmup: bool = False
    loss: Literal["softmax", "sigmoid"] = "softmax"
    label_smoothing: float = 0.0
    log_every: int = 50
    eval_every: int = 0
    eval_batches: int = 0
    checkpoint_every: int = 500
    keep_last: int = 3
    keep_every: int = 0
    keep_best: bool = False
    best_metric: Literal["evaluation", "few_shot"] = "evaluation"
    early_stop_after: int = 0
    few_shot_every: int = 0
    non_finite: Literal["stop", "skip", "rewind"] = "stop"
    profile: str | None = None
    histograms_every: int = 0
    inspect_every: int = 0
    deterministic: bool = False
    jit_compile: bool = False
    shard_optimizer: bool = False
    worker_timeout: float = 1800.0

    def __post_init__(self):
        check_choices(self, "train.")
        if self.best_metric == "few_shot" and not self.few_shot_every:
            raise UserError(
                "train.best_metric=few_shot needs few-shot evaluations. Set train.few_shot_every."
            )
        if self.best_metric != "evaluation" and not (self.keep_best or self.early_stop_after):
            raise UserError(
                f"train.best_metric={self.best_metric} chooses the checkpoint that "
                "train.keep_best=true keeps, or the end by train.early_stop_after. Set one of them."
            )
        if self.early_stop_after and self.best_metric == "evaluation" and not self.eval_every:
            raise UserError(
                f"train.early_stop_after={self.early_stop_after} counts evaluations during "
                "training, but there are none. Set train.eval_every."
            )
        for name in ("steps", "batch_size", "accumulate_steps", "log_every", "keep_last"):
            check_at_least(f"train.{name}", getattr(self, name), 1)
        seconds = self.worker_timeout
        check("train.worker_timeout", seconds, seconds >= 1, "at least 1")
        epochs, decay, smoothing = self.epochs, self.ema_decay, self.label_smoothing
        check("train.epochs", epochs, epochs is None or epochs > 0, "above 0, or none")
        check("train.ema_decay", decay, decay is None or 0 <= decay < 1, "in [0, 1), or none")
        most = 0.5 if self.loss == "sigmoid" else 1
        expected = f"in [0, {most})" + " for train.loss=sigmoid" * (most < 1)
        check("train.label_smoothing", smoothing, 0 <= smoothing < most, expected)
        for name in (
            "eval_every",
            "eval_batches",
            "early_stop_after",
            "few_shot_every",
            "checkpoint_every",
            "keep_every",
            "histograms_every",
            "inspect_every",
        ):
            check_at_least(f"train.{name}", getattr(self, name), 0)
        if self.profile is not None:
            self.profiled_steps()

    def fit_ema_warmup(self, values: dict[str, Any]):
        """Lets an average begin with a warm-up where this section has none, and the reverse.

        Args:
            values: the changed section as JSON holds it, changed in place.
        """
        averages = values["ema_decay"] is not None
        if averages != (self.ema_decay is not None):
            values["ema_warmup"] = averages

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
