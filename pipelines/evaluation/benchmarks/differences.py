"""The paper's numbers beside a result of a benchmark, and what differs from the paper's."""

import dataclasses
import re

from pipelines.config.names import Benchmark
from pipelines.config.recipes import get_recipe
from pipelines.data.protocols.suites import IMAGENET, TABLE_4, setting_differences
from pipelines.evaluation.benchmarks.paper_results import (
    comparison,
    merged,
    nearest_values,
    paper_values,
)
from pipelines.evaluation.real import LABELED
from pipelines.stored_models.model_source import published_record
from vit_tf.config.variants import VARIANTS
from vit_tf.pretrained.records import sizes

# The usual `data.name`; `folder:` begins at data.data_dir.
DATA_NAMES: dict[Benchmark, str] = {
    "imagenet": "imagenet2012",
    "real": "imagenet2012_real",
    "objectnet": "folder:objectnet-1.0",
}
# Images of the whole benchmark, docs/paper.md H.5.
_IMAGES = {"imagenet": 50_000, "real": 50_000, "objectnet": 50_273}
_SPLIT = "validation"  # Of ImageNet and ReaL.
# The images of table 4 in pixels, and the factor of averaged weights (section 4.1). The note of a
# number says where it has other images, or averaged weights.
_SIZE, _AVERAGE = "384 x 384", 0.9999
# Compared apart, or not of the training.
_APART = ("init_from", "init_weights", "model.image_size", "data.eval_split")


def compare(result, source, config, examples, exif="ignore") -> dict:
    """The numbers of the paper for a model, and what differs from them; never a judgment.

    Args:
        result: the result of a benchmark.
        source: the `StoredModel` that it is of.
        config: configuration of the model that was evaluated.
        examples: the `DataSource`.
        exif: the value in the preprocessing that is stored with the model.

    Returns:
        "paper" and "comparison" of `benchmarks.run.run`.
    """
    benchmark = result["benchmark"]
    model = next((name for name, own in VARIANTS.items() if sizes(own) == sizes(config)), None)
    experiment = None if source.workdir is None else source.workdir.read_experiment()
    fine_tuned = experiment is None  # A run is known by the weights that it began with.
    weights = source.name if fine_tuned else experiment.init_from
    if benchmark == "objectnet":  # The paper has numbers of one model.
        values = paper_values("objectnet") + paper_values("objectnet_top5")
    else:
        values = () if model is None else paper_values(benchmark, model)
    values = nearest_values(values, weights, fine_tuned)
    # Settings that differ from the settings of each number; without a number, from table 4.
    settings = {}
    for value in values or [None]:
        training = _unknown_training(source, exif) if fine_tuned else _training(experiment, value)
        size = _size(config, value) if benchmark != "objectnet" else []
        settings[value and value.place] = [*training, *size]
    differs = [*_data_differences(result, examples), *merged(settings)]
    if benchmark == "objectnet":
        differs.append("the mapping of classes, which the paper does not publish")
    lines = comparison(
        values,
        model=model or "a model of other sizes",
        weights=weights,
        fine_tuned=fine_tuned,
        differences=differs,
    )
    if not values and differs:
        lines.append(f"differs from the paper: {'; '.join(differs)}")
    return {"paper": [dataclasses.asdict(value) for value in values], "comparison": lines}


def _data_differences(result, examples):
    benchmark = result["benchmark"]
    if result["examples"] != _IMAGES[benchmark]:
        yield f"images: {_IMAGES[benchmark]:,} -> {result['examples']:,}"
    if benchmark == "real" and result["labeled"] != LABELED:
        yield f"images with labels: {LABELED:,} -> {result['labeled']:,}"
    # The images of ObjectNet, in a folder of any name, are known by their number only.
    if benchmark != "objectnet":
        name = DATA_NAMES[benchmark]
        if (examples.name, examples.split) != (name, _SPLIT):
            yield f"data: {name} split {_SPLIT!r} -> {examples.name} split {examples.split!r}"


def _size(config, value):
    """The phrase about the size of the images, unless a number of the paper has this size."""
    own = "{} x {}".format(*config.image_size)
    noted = value and re.match(r"\d+ x \d+", value.note)
    paper = noted[0] if noted else _SIZE
    return [] if own == paper else [f"model.image_size: {paper} -> {own}"]


def _unknown_training(source, exif):
    """Phrases about the training of weights that are no run."""
    steps = get_recipe(IMAGENET.recipe).train.steps
    is_released = published_record(source.name) is not None
    yield (
        "the run: no table names a released file"
        if is_released
        else f"train.steps: {steps} -> unknown"
    )
    if exif != "ignore":
        yield f"data.exif: 'ignore' -> {exif!r}"


def _training(experiment, value):
    """How the settings of a run differ from a number of the paper, or for None from table 4.

    Numbers of ResNets are from the better of two setups: the one that is nearer to the run counts.
    """
    own, found = experiment.model, []
    average = _AVERAGE if value and "averaged weights" in value.note else None
    # Appendix D.9 does not say whether its weights are averaged.
    unsaid = ("train.ema_decay", "train.ema_warmup") if value and value.table == "D.9" else ()
    is_resnet = own.config(num_classes=1).family == "resnet"
    for setup, recipes in IMAGENET.recipes(is_resnet, own.name).items():
        paper = recipes[IMAGENET.name]
        paper = dataclasses.replace(
            paper,
            model=dataclasses.replace(paper.model, name=own.name),
            train=dataclasses.replace(paper.train, ema_decay=average),
        )
        rates = IMAGENET.rates if setup == TABLE_4 else ()
        found.append(setting_differences(paper, experiment, rates, (*_APART, *unsaid)))
    data, name = IMAGENET.tasks[IMAGENET.name].data_name, experiment.data.name
    other = [] if name.partition(":")[0] == data else [f"training data: {data} -> {name}"]
    return [*other, *min(found, key=len)]
