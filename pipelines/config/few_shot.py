"""The section of few-shot evaluations during training."""

import dataclasses
from typing import Literal

from pipelines.config.fields import check, check_choices
from pipelines.config.names import AUTO_SPLIT


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShot:
    """Few-shot evaluations during training, for train.few_shot_every (docs/paper.md H.1).

    Attributes:
        name: the data set; none: the data set of the run.
        data_dir: its folder; none: data.data_dir.
        label: its label feature, as data.label; none: for the run's data set data.label, for
            another data set the feature that its supervised_keys name.
        train_split: its split for the training features. "auto": of the run's data set all of
            data.train_split, also if the run trains on a part of it; else as in data.
        eval_split: its split for the test features, as train_split.
        preprocessing: "run": as in the evaluations of the run; "protocol": both sides to 8/7 of
            the model's, bilinear without antialias, then a central crop, as 256 and 224 pixels in
            the published protocol; with data.jpeg=fast.
        shots: numbers of training images of each class.
        l2: strength of the regularization.
        seeds: number of selections of training images; the result is their mean.
    """

    name: str | None = None
    data_dir: str | None = None
    label: str | None = None
    train_split: str = AUTO_SPLIT
    eval_split: str = AUTO_SPLIT
    preprocessing: Literal["run", "protocol"] = "run"
    shots: tuple[int, ...] = (1, 5, 10)
    l2: float = 1024.0
    seeds: int = 3

    def __post_init__(self):
        check_choices(self, "few_shot.")
        are_counts = self.shots and min(self.shots) >= 1
        check("few_shot.shots", self.shots, are_counts, "numbers from 1 on, such as 1,5")
        check("few_shot.l2", self.l2, self.l2 > 0, "above 0")
        check("few_shot.seeds", self.seeds, 1 <= self.seeds <= 1000, "in 1 .. 1000")
