"""The studies by name, and the tables and figures whose question they ask."""

import dataclasses
import functools

from pipelines.errors import UserError, counted
from pipelines.reports.text_table import aligned
from pipelines.research.paper.full import results
from pipelines.research.paper.full.plans import Target, summary
from pipelines.research.paper.study import Study
from pipelines.research.paper.toy.classifiers import CLASSIFIERS
from pipelines.research.paper.toy.data_size import DATA_SIZE
from pipelines.research.paper.toy.depth_and_width import DEPTH_AND_WIDTH
from pipelines.research.paper.toy.few_labels import FEW_LABELS
from pipelines.research.paper.toy.few_shot_proxy import FEW_SHOT_PROXY
from pipelines.research.paper.toy.gates import GATES
from pipelines.research.paper.toy.hybrids import HYBRIDS
from pipelines.research.paper.toy.inductive_bias import INDUCTIVE_BIAS
from pipelines.research.paper.toy.permutations import PERMUTATIONS
from pipelines.research.paper.toy.positions import POSITIONS
from pipelines.research.paper.toy.related_work import RELATED_WORK
from pipelines.research.paper.toy.resolutions import RESOLUTIONS
from vit_tf.config.near_names import did_you_mean

TOYS = {
    toy.name: toy
    for toy in (
        *(GATES, POSITIONS, FEW_LABELS, DATA_SIZE, CLASSIFIERS, HYBRIDS, DEPTH_AND_WIDTH),
        *(RESOLUTIONS, FEW_SHOT_PROXY, INDUCTIVE_BIAS, PERMUTATIONS, RELATED_WORK),
    )
}
ALL = "all"


@dataclasses.dataclass(frozen=True)
class Part:
    """A table, a figure or a section of the paper.

    Attributes:
        title: what it shows.
        finding: what the paper concludes from it.
        nearest: what comes nearest where no study at toy scale asks the same question; "" if one
            does.
    """

    title: str
    finding: str
    nearest: str = ""


_SUITES = "pipelines.sweep --suite fine-tunes any model on data of the paper"
_SWEEP = "pipelines.sweep trains any model with any optimizer at several rates"
_INSPECT = "pipelines.inspect shows it of any model, also of those that the studies train"
_MEASURE = "pipelines.plan --measure is its search, on the devices of this machine"
_DATA = "E3 asks about the number of images"
PARTS = {
    "table2": Part(
        "ViT against BiT and Noisy Student", "ViT-H/14 is ahead at a quarter of the cost", _SUITES
    ),
    "table5": Part("accuracy by the data of pre-training", "more data, better models", _DATA),
    "table6": Part("accuracy and cost of 18 models", "ViTs need less computation", _DATA),
    "table7": Part("Adam and SGD for ResNets", "Adam is better, but for ImageNet itself", _SWEEP),
    "table8": Part("position embeddings", "without them it is worst; which one matters little"),
    "table9": Part("19 tasks of VTAB", "larger models and more data are better", _SUITES),
    "section3.1": Part("inductive bias", "a ViT has much less of it than a ResNet"),
    "section3.2": Part(
        "fine-tuning at a higher resolution", "it is often better than at that of pre-training"
    ),
    "section4.1": Part(
        "few-shot accuracies", "they stand in for fine-tuned ones where these cost too much"
    ),
    "section4.6": Part("masked patches", "they help, but less than pre-training with labels"),
    "figure2": Part(
        "VTAB by groups of tasks", "ViT-H/14 is ahead on natural and structured tasks", _SUITES
    ),
    "figure3": Part("ImageNet by the data of pre-training", "large models need much data"),
    "figure4": Part("few shots by the number of images", "ResNets are ahead with few of them"),
    "figure5": Part("accuracy against cost", "ViTs need less computation"),
    "figure6": Part("attention to the image", "it attends to what matters", _INSPECT),
    "figure7": Part("filters, positions, distances", "some early heads look far", _INSPECT),
    "figure8": Part("shapes of a ViT", "depth helps most, width least"),
    "figure9": Part("class token or mean", "equal, if each has its own rate"),
    "figure10": Part("positions by other settings", "their pattern depends on them", _INSPECT),
    "figure11": Part("attention distance", "it grows with depth", _INSPECT),
    "figure12": Part("speed and largest batch", "ViTs are about as fast as ResNets", _MEASURE),
    "figure13": Part("axial models", "better for the same steps, slower", _SWEEP),
    "figure14": Part("attention to more images", "as figure 6", _INSPECT),
}


def choose(name, scale="toy") -> list[Study]:
    """The studies that `--run` names; None means those of the default run.

    Raises:
        UserError: for an unknown name, and for a part of the paper that has none.
    """
    if name is not None and name not in (*TOYS, *PARTS, ALL):
        hint = did_you_mean(name, [*TOYS, *PARTS, ALL]) or " --list prints the names."
        raise UserError(f"--run={name} is unknown.{hint}")
    if scale == "full":
        return _full(name)
    if name is None:
        return [toy for toy in TOYS.values() if toy.default]
    if name in (*TOYS, ALL):
        return [toy for toy in TOYS.values() if name in (toy.name, ALL)]
    found = [toy for toy in TOYS.values() if name in toy.paper]
    if not found:
        raise UserError(f"{name} has no study at toy scale: {PARTS[name].nearest}.")
    return found


def _full(name):
    if name is None or name in TOYS:
        raise UserError(
            "--scale=full runs a table or figure. Name one with --run, such as --run table5."
        )
    return [_study(part) for part in (PARTS if name == ALL else [name])]


def _study(name):
    part = PARTS[name]
    return Study(
        name=name,
        title=part.title,
        paper=(name,),
        question=f"Does it show here: {part.finding}?",
        setup="The commands of this project with the paper's settings; a number is that of the "
        "last evaluation, of a look into the models, or of a timing.",
        run=functools.partial(results.run, name=name),
    )


def describe() -> list[str]:
    """Lines about all studies, and about the parts of the paper with their costs and data."""
    target, gone = Target(), {}
    rows = [["", "at toy scale", "minutes", "", "asks the question of"]]
    rows += [
        [
            toy.name,
            toy.title,
            f"{toy.minutes:g}",
            "default" if toy.default else "",
            ", ".join(toy.paper) or "none",
        ]
        for toy in TOYS.values()
    ]
    parts = [["", "in the paper", "at toy scale", "at full scale"]]
    for name, part in PARTS.items():
        own = ", ".join(toy.name for toy in TOYS.values() if name in toy.paper)
        days, unfit, missing = summary(name, target)
        gone |= dict.fromkeys(missing)
        full = f"{days:,.0f} core-days"
        full += f", and {counted(len(unfit), 'command')} that need larger chips" * bool(unfit)
        full += f"; {counted(len(missing), 'data set')} missing" * bool(missing)
        parts.append([name, f"{part.title}: {part.finding}", own or part.nearest, full])
    where = f"{target.chips} chips of {target.chip}"
    lines = [*aligned(rows), "", *aligned(parts), f"core-days are those of {where}"]
    return [*lines, f"data that are not here: {', '.join(gone)}"] if gone else lines
