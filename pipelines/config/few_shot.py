"""The section of few-shot evaluations during training."""

import dataclasses

from pipelines.config.names import AUTO_SPLIT
from pipelines.errors import UserError


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
        l2: strength of the regularization.
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
