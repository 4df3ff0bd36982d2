"""Describes a run without training: its configuration, model, cost and first batch."""

import dataclasses
import json
import re

import numpy as np

from pipelines.config.epochs import with_steps
from pipelines.config.model import model_field_types
from pipelines.config.summary import summary
from pipelines.data.bad_images import INPUT_ERRORS, BadImages
from pipelines.data.sources.splits import choose_splits
from pipelines.errors import DataError, MissingDataError
from pipelines.runs import checkpoints
from pipelines.runs.strategies import describe, is_tpu
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.tasks.task import task_of
from pipelines.training.train import check_input
from pipelines.training.train_data import open_data, open_few_shot_data
from vit_tf import cost

_PREFIXES = ("", "k", "M", "G", "T", "P", "exa")


def dry_run(experiment, workdir, strategy, extend=False, origin="", assigned=()):
    """Describes the run that `loop.train` would start; writes nothing to the workdir.

    Built-in data sets are prepared if they are missing, as for training.

    Prints the configuration as JSON, with every field of the model, its size and cost, and the
    shapes of the first batch, or that the data are not on this machine. Published
    weights to start from are not downloaded.

    Args:
        experiment, workdir, strategy, extend, origin, assigned: as for `loop.train`.

    Raises:
        UserError: for wrong input, as `loop.train`; if there are data that cannot be used, after
            printing the rest.
    """
    run, lines, data, wrong_data = Workdir(workdir), [], None, None
    try:
        splits = choose_splits(experiment.data, lines.append)
        experiment = dataclasses.replace(experiment, data=splits)
        data, _ = open_data(experiment, run)
        experiment = with_steps(experiment, data.source.num_examples, lines.append, assigned)
        if extend:
            experiment = run.with_own_warmup(experiment, assigned, lines.append)
    except DataError as error:
        wrong_data = error
    else:
        run.check(experiment, data.source.manifest(), extend)
        lines += _few_shot(experiment)
    if (step := checkpoints.newest(run.checkpoints)) is not None:
        lines.append(f"resumes from: step {step} of {run.path}")
    elif experiment.init_from:
        lines.append(f"starts from: {_initial_weights(experiment)}")
    classes = data.source.num_classes if data else None
    config = experiment.model_config(classes or 0)
    task = task_of(experiment, config)
    unknown = task.reads_labels and not classes
    check_input(experiment.train, config, strategy.num_replicas_in_sync, is_tpu(strategy))
    description = [
        _readable(_resolved(experiment, config)),
        *([origin] if origin else []),
        *summary(experiment, data.source.num_examples if data else None),
        *lines,
        f"model: {experiment.model.name} with {config.summary()}"
        + (", without a head: the number of classes comes from the data" if unknown else ""),
        *task.notes(),
        *_costs(experiment, config, strategy.num_replicas_in_sync),
        f"devices: {describe(strategy)}",
    ]
    print("\n".join(description))
    if isinstance(wrong_data, MissingDataError):
        print(f"first batch: none, since the data are not here. {wrong_data}")
    elif wrong_data is not None:
        raise wrong_data
    else:
        print(f"first batch: {_first_batch(data)}")


def _few_shot(experiment):
    """Lines about the data of few-shot evaluations, if there are any."""
    try:
        found = open_few_shot_data(experiment)
    except MissingDataError as error:
        return [f"few-shot evaluations: the data are not here. {error}"]
    if found is None:
        return []
    train, test = (data.source for data in found)
    return [f"few-shot evaluations: {train.num_examples:,} images of {train}, tested on {test}"]


def _initial_weights(experiment):
    """The source of the initial weights; a dry run does not download it."""
    path, weights = experiment.init_from, experiment.init_weights
    if weights == "final" and model_source.published_record(path):
        return f"{path}, published weights"
    return model_source.find(path, weights).name


def _costs(experiment, config, replicas):
    train, precision = experiment.train, experiment.model.dtype
    optimizer, has_ema = experiment.optimizer, train.ema_decay is not None
    state = cost.training_bytes(config, optimizer.name, has_ema, optimizer.momentum_dtype)
    images = train.batch_size // (replicas * train.accumulate_steps)
    activations = cost.activation_bytes(config, images, precision)
    macs = cost.macs(config)
    yield (
        f"size: {cost.parameters(config):,} parameters in {cost.arrays(config)} arrays, "
        f"{cost.weight_bytes(config) / 1e6:,.1f} MB"
    )
    flops = training_flops(config, train)
    whole = f", {with_prefix(flops, 'FLOPs')} for all {train.steps:,} steps"
    yield (
        f"cost: {with_prefix(macs, 'MACs')} per image forward, "
        f"{with_prefix(flops // train.steps, 'FLOPs')} per step"
        + (whole if train.epochs is None else "; the number of steps comes from the data")
    )
    yield (
        f"memory of each device: {state / 1e6:,.1f} MB for weights, gradients and optimizer, about "
        f"{activations / 1e6:,.1f} MB for the activations of {images} images at a time"
    )


def _resolved(experiment, config):
    """The experiment as a dictionary, with the variant's own values of the model's other fields."""
    values, fields = experiment.to_dict(), config.to_dict()
    names = {path.partition(".")[0] for path in model_field_types(experiment.model.name)}
    values["model"] |= {name: fields[name] for name in fields if name in names}
    return values


def _readable(values):
    """JSON with one line per field, also for lists."""
    text = json.dumps(values, indent=2)
    return re.sub(r"\[\n[^\[\]]*\]", lambda found: json.dumps(json.loads(found[0])), text)


def training_flops(config, train) -> int:
    """FLOPs of all steps: 2 for each of `vit_tf.cost.training_macs`.

    Args:
        config: configuration of the model.
        train: section `train` of the experiment.
    """
    return 2 * cost.training_macs(config) * train.batch_size * train.steps


def with_prefix(number, unit) -> str:
    """A count with three digits and a prefix, such as "17.6 GMACs"."""
    power = min(max(len(str(number)) - 1, 0) // 3, len(_PREFIXES) - 1)
    return f"{number / 1000**power:,.3g} {_PREFIXES[power]}{unit}"


def _first_batch(data):
    """The source of the first batch, and the dtype and shape of each of its tensors."""
    if data.bad_images is not None:
        data = dataclasses.replace(data, bad_images=BadImages(None, print))  # Writes no file.
    try:
        batch = next(iter(data.batch(0)))
    except INPUT_ERRORS as error:
        raise data.explain_input_error(error, [0], hosts=1) from None
    bad = np.flatnonzero(batch["weight"].numpy() == 0)
    if len(bad):
        data.record_bad_images([(0, position) for position in bad], 0, hosts=1)
    if len(bad) == len(batch["id"]):
        raise data.empty_batch_error(0)
    parts = [f"{name} {part.dtype.name} {list(part.shape)}" for name, part in batch.items()]
    source = data.source
    return (
        f"{', '.join(parts)}, from {source} ({source.num_examples:,} examples of "
        f"{source.num_classes} classes{', any number of labels each' * source.multi_label})"
    )
