"""The experiments by name, and the tables and figures whose question they ask."""

import dataclasses

from pipelines.errors import UserError
from pipelines.replication.experiment import Toy
from pipelines.replication.toy.classifiers import CLASSIFIERS
from pipelines.replication.toy.few_labels import FEW_LABELS
from pipelines.replication.toy.gates import GATES
from pipelines.replication.toy.positions import POSITIONS
from vit_tf.config.near_names import did_you_mean

TOYS = {toy.name: toy for toy in (GATES, POSITIONS, FEW_LABELS, CLASSIFIERS)}
ALL = "all"


@dataclasses.dataclass(frozen=True)
class Part:
    """A table, a figure or a section of the paper.

    Attributes:
        title: what it shows.
        finding: what the paper concludes from it.
        nearest: the toy experiment that comes nearest if none asks the same question, or the
            command that shows the same of any model; None if there is an experiment.
    """

    title: str
    finding: str
    nearest: str | None = None


_SWEEP = "the suites of pipelines.sweep fine-tune any model on these data"
_INSPECT = "pipelines.inspect shows it of any model, also of those that the experiments train"
PARTS = {
    "table2": Part(
        "ViT against BiT and Noisy Student", "ViT-H/14 is ahead at a quarter of the cost", _SWEEP
    ),
    "table5": Part("fine-tuned accuracy by pre-training data", "more data, better models", _SWEEP),
    "table6": Part("accuracy and cost of 18 models", "ViTs need less computation", _SWEEP),
    "table8": Part("position embeddings", "without them it is worst; which one matters little"),
    "table9": Part("19 tasks of VTAB", "larger models and more data are better", _SWEEP),
    "section4.6": Part("masked patches", "they help, but less than pre-training with labels"),
    "figure6": Part("attention to the image", "it attends to what matters", _INSPECT),
    "figure7": Part("filters, positions, distances", "early heads look far too", _INSPECT),
    "figure9": Part("class token or mean", "equal, if each has its own rate"),
    "figure10": Part("position embeddings by settings", "the pattern depends on them", _INSPECT),
    "figure11": Part("attention distance", "it grows with depth", _INSPECT),
    "figure12": Part(
        "speed and largest batch", "ViTs are as fast as ResNets", "pipelines.plan --measure does it"
    ),
    "figure14": Part("attention to more images", "as figure 6", _INSPECT),
}


def choose(name) -> list[Toy]:
    """The experiments that `--run` names; None means those of the default run.

    Raises:
        UserError: for an unknown name, and for a part of the paper without an experiment.
    """
    if name is None:
        return [toy for toy in TOYS.values() if toy.default]
    if name == ALL:
        return list(TOYS.values())
    if name in TOYS:
        return [TOYS[name]]
    if name not in PARTS:
        hint = did_you_mean(name, [*TOYS, *PARTS, ALL]) or " --list prints the names."
        raise UserError(f"--run={name} is unknown.{hint}")
    found = [toy for toy in TOYS.values() if name in toy.paper]
    if not found:
        raise UserError(f"{name} has no experiment at toy scale: {PARTS[name].nearest}.")
    return found


def describe() -> list[str]:
    """Lines about all experiments, and about the parts of the paper."""
    from pipelines.studies.sweep_table import aligned

    rows = [["", "experiment", "minutes", "", "asks the question of"]]
    rows += [
        [
            toy.name,
            toy.title,
            f"{toy.minutes:g}",
            "default" if toy.default else "",
            ", ".join(toy.paper) or "none: it checks the others",
        ]
        for toy in TOYS.values()
    ]
    parts = [["", "in the paper", "at toy scale"]]
    for name, part in PARTS.items():
        own = ", ".join(toy.name for toy in TOYS.values() if name in toy.paper)
        parts.append([name, f"{part.title}: {part.finding}", own or part.nearest])
    return [*aligned(rows), "", *aligned(parts)]
