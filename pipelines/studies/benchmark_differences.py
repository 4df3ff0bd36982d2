"""The paper's numbers beside a result of `benchmarks.run`, and what differs from the paper's."""

import dataclasses

from pipelines.evaluation.real import LABELED
from pipelines.stored_models.model_source import published_record
from pipelines.studies.paper_results import comparison, paper_values, pretraining_of
from vit_tf.config.variants import VARIANTS
from vit_tf.pretrained.records import sizes

# Images of the whole benchmark, docs/paper.md H.5.
_IMAGES = {"imagenet": 50_000, "real": 50_000, "objectnet": 50_273}
# Fine-tuning on ImageNet, tables 4 and 5 of the paper.
_DATA, _STEPS, _BATCH_SIZE, _SIDE = "imagenet2012", 20_000, 512, 384


def compare(result, source, config, examples) -> dict:
    """The numbers of the paper for a model, and what differs from them; never a judgment.

    Args:
        result: the result of a benchmark.
        source: the `StoredModel` that it is of.
        config: configuration of the model that was evaluated.
        examples: the `DataSource`.

    Returns:
        "paper" and "comparison" of `benchmarks.run`.
    """
    benchmark = result["benchmark"]
    model = next((name for name, own in VARIANTS.items() if sizes(own) == sizes(config)), None)
    if benchmark == "objectnet":  # The paper has numbers of one model.
        values = paper_values("objectnet") + paper_values("objectnet_top5")
        differs = ["the mapping of classes, which the paper does not publish"]
    else:
        values = () if model is None else paper_values(benchmark, model)
        differs = _size_differences(config, values)
    weights, fine_tuned, of_weights = _training(source)
    pretraining = pretraining_of(weights, fine_tuned)
    values = tuple(x for x in values if x.pretraining == pretraining) or values
    differs = [*_data_differences(result, examples), *of_weights, *differs]
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
    # Of ObjectNet, and of folders, the images are known by their number only.
    if benchmark != "objectnet" and not examples.name.startswith(_DATA):
        yield f"data.name: {_DATA} -> {examples.name}"


def _size_differences(config, values):
    height, width = config.image_size
    shown = f"{height} x {width}"
    if shown == f"{_SIDE} x {_SIDE}" or any(shown in value.note for value in values):
        return []
    return [f"model.image_size: {_SIDE} x {_SIDE} -> {shown}"]


def _training(source):
    """The weights that the training of a model is known by, see `comparison`, and differences."""
    if source.workdir is not None:
        experiment = source.workdir.read_experiment()
        data, train = experiment.data, experiment.train
        differs = [
            f"{name}: {paper} -> {own}"
            for name, paper, own in (
                ("training data", _DATA, data.name),
                ("train.steps", _STEPS, train.steps),
                ("train.batch_size", _BATCH_SIZE, train.batch_size),
            )
            if own != paper and not str(own).startswith(f"{paper}:")  # A version follows.
        ]
        return experiment.init_from, False, differs
    if published_record(source.name) is not None:
        return source.name, True, ["the run: no table names a released file"]
    return source.name, True, [f"train.steps: {_STEPS} -> unknown"]
