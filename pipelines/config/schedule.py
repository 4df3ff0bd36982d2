"""The section of the learning rate: warm-up and decay."""

import dataclasses
from typing import Literal

from pipelines.config.fields import check_at_least, check_choices
from pipelines.errors import UserError


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
    decay: Literal["linear", "cosine", "constant", "staircase"] = "cosine"
    decay_at: tuple[float, ...] = ()

    def __post_init__(self):
        check_choices(self, "schedule.")
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
