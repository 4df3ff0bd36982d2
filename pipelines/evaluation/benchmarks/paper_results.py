"""The accuracies that the paper's tables print, to show beside results of this project.

The numbers are in `paper_results.json`, with their provenance. They are for reading: a result is
never judged by them, since weights, data or steps nearly always differ.
"""

import dataclasses
import functools
import json
from importlib import resources

from vit_tf.pretrained.records import find_record

# The collection of published weights -> the data of the paper that they were trained on.
_PRETRAINING = {"imagenet21k": "ImageNet-21k"}
_FINE_TUNED = {"imagenet21k+imagenet2012": "ImageNet-21k"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperValue:
    """One number of a table.

    Attributes:
        table: "2", "5", "6" or "9"; "D.9" is that appendix.
        model: name of the model, as in `vit_tf.list_models`.
        pretraining: "ImageNet", "ImageNet-21k" or "JFT-300M".
        data: "imagenet", "real", "objectnet", "objectnet_top5", "cifar10", "cifar100", "pets",
            "flowers", "vtab" (the mean over its tasks), or "vtab/<task>".
        percent: top-1 accuracy; top-5 of "objectnet_top5".
        deviation: of three fine-tuning runs, in points; None where the paper prints none.
        note: settings that only this number has, or "".
    """

    table: str
    model: str
    pretraining: str
    data: str
    percent: float
    deviation: float | None
    note: str

    @property
    def place(self) -> str:
        """Where the paper has it, such as "table 5"."""
        return self.table if self.table.startswith("D") else f"table {self.table}"

    def __str__(self):
        spread = "" if self.deviation is None else f" +- {self.deviation:.2f}"
        note = f", {self.note}" if self.note else ""
        digits = 1 if self.table in ("9", "D.9") else 2
        return (
            f"{self.percent:.{digits}f}{spread} % ({self.model} from {self.pretraining}{note}; "
            f"{self.place})"
        )


def paper_values(data, model=None) -> tuple[PaperValue, ...]:
    """Returns the numbers of the paper about a data set, in the order of its tables.

    `evaluate --benchmark` and `sweep --suite` show them.

    Args:
        data: see `PaperValue.data`.
        model: only values of this model; None: of all. A model that the paper has no number of has
            an empty result.
    """
    return tuple(x for x in _all_values() if x.data == data and model in (None, x.model))


def paper_value(table, model, data, pretraining) -> PaperValue | None:
    """Returns one number of the paper; None if the table does not have it.

    Of a model that table 6 has twice, it is the one with fewer epochs of pre-training.

    Args:
        table, model, data, pretraining: see `PaperValue`.
    """
    wanted = (table, pretraining)
    found = (x for x in paper_values(data, model) if (x.table, x.pretraining) == wanted)
    return next(found, None)


def pretraining_of(weights, fine_tuned=False) -> str | None:
    """Returns the data of the paper that weights were pre-trained on; None for other weights.

    Only published weights of the paper's own code count: AugReg and BiT trained by other recipes.

    Args:
        weights: a path, or a name of published weights.
        fine_tuned: whether the weights are to be fine-tuned on ImageNet, not only pre-trained.
    """
    try:
        record = find_record(weights or "")
    except ValueError:
        return None
    return (_FINE_TUNED if fine_tuned else _PRETRAINING).get(record.collection)


def nearest_values(values, weights, fine_tuned=False) -> tuple[PaperValue, ...]:
    """Returns the values with the pre-training of some weights; all if none has it.

    Args:
        values: `PaperValue`s.
        weights, fine_tuned: see `pretraining_of`.
    """
    own = pretraining_of(weights, fine_tuned)
    return tuple(value for value in values if value.pretraining == own) or tuple(values)


def merged(differences) -> list[str]:
    """Returns each difference once, with what it concerns unless that is all.

    Args:
        differences: name of a task or table -> phrases about what differs there from the paper.
    """
    names = {}
    for name, phrases in differences.items():
        for phrase in phrases:
            names.setdefault(phrase, []).append(name)
    return [f"{phrase}{_where(own, differences)}" for phrase, own in names.items()]


def _where(names, every):
    others = [name for name in every if name not in names]
    if not others:
        return ""
    few = ", ".join(names) if len(names) <= len(others) else f"all but {', '.join(others)}"
    return f" ({few})"


def comparison(values, *, model, weights, fine_tuned=False, differences=()) -> list[str]:
    """Returns lines that show the paper's numbers, and what differs from them.

    Args:
        values: the `PaperValue`s to show, see `nearest_values`.
        model: name of the model of the result.
        weights: path or name of the weights that its training started from, or that were evaluated.
        fine_tuned: whether these are weights that were evaluated after fine-tuning on ImageNet.
        differences: phrases about settings of the result that are not the paper's, such as
            "train.steps: 2500 -> 100".
    """
    if not values:
        return [f"paper: no number for {model} on these data"]
    differs = []
    if model not in {value.model for value in values}:
        differs.append(f"the model, {model}")
    if pretraining_of(weights, fine_tuned) not in {value.pretraining for value in values}:
        differs.append(f"the weights, {weights or 'random ones'}")
    differs += differences
    known = "; ".join(differs) or "nothing that is known here"
    return [*(f"paper: {value}" for value in values), f"differs from the paper: {known}"]


@functools.cache
def _all_values():
    text = resources.files(__package__).joinpath("paper_results.json").read_text("utf-8")
    content = json.loads(text)
    return tuple(
        PaperValue(**dict(zip(content["columns"], row, strict=True))) for row in content["rows"]
    )
