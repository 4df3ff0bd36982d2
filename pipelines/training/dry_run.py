"""Describes a run without training: its configuration, model, cost and first batch."""

import dataclasses
import json
import re

import numpy as np

from pipelines.config import Request
from pipelines.config.model import model_field_types
from pipelines.config.summary import summary
from pipelines.data.bad_images import INPUT_ERRORS, BadImages
from pipelines.distribution.strategies import describe
from pipelines.errors import MissingDataError, counted
from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.training.prepare import prepare, state_of
from vit_tf import cost

_PREFIXES = ("", "k", "M", "G", "T", "P", "exa")


def dry_run(experiment, workdir, strategy, request=Request()):
    """Describes the run that `train.train` would start; writes nothing to the workdir.

    Built-in data sets are prepared if they are missing, as for training.

    Prints a summary with the size and cost of the model and the shapes of the first batch, or that
    the data are not on this machine, and then the configuration as JSON, with every field of the
    model. Published weights to start from are not downloaded.

    Args:
        experiment, workdir, strategy, request: as for `train.train`.

    Raises:
        UserError: for wrong input, as `train.train`; if there are data that cannot be used, after
            printing the rest.
    """
    run = Workdir(workdir)
    prepared = prepare(experiment, run, strategy, request, keeps_data_errors=True)
    experiment, config, data = prepared.experiment, prepared.model_config, prepared.data
    lines = list(prepared.notes)
    if data and data.few_shot:
        train, test = data.few_shot.train.source, data.few_shot.test.source
        lines.append(
            f"few-shot evaluations: {counted(train.num_examples, 'image')} of {train}, tested on "
            f"{test}"
        )
    if (step := checkpoints.newest(run.checkpoints)) is not None:
        lines.append(f"resumes from: step {step} of {run.path}")
    elif experiment.init_from:
        lines.append(f"starts from: {_initial_weights(experiment)}")
    unknown = prepared.task.reads_labels and not data
    description = [
        *([request.origin] if request.origin else []),
        *summary(experiment, prepared.images),
        *lines,
        f"model: {experiment.model.name} with {config.summary()}"
        + (", without a head: the number of classes comes from the data" if unknown else ""),
        *prepared.task.notes(),
        *_costs(prepared),
        f"devices: {describe(strategy)}",
    ]
    print("\n".join(description))
    try:
        if prepared.data_error is not None:
            raise prepared.data_error
        print(f"first batch: {_first_batch(data.train)}")
    except MissingDataError as error:
        print(f"first batch: none, since the data are not here. {error}")
    finally:
        print(_readable(_resolved(experiment, config)))


def _initial_weights(experiment):
    """The source of the initial weights; a dry run does not download it."""
    path, weights = experiment.init_from, experiment.init_weights
    if weights == "final" and model_source.published_record(path):
        return f"{path}, published weights"
    return model_source.find(path, weights).name


def _costs(prepared):
    sizes, train, config = prepared.sizes, prepared.experiment.train, prepared.model_config
    yield (
        f"size: {cost.parameters(config):,} parameters in {cost.arrays(config)} arrays, "
        f"{cost.weight_bytes(config) / 1e6:,.1f} MB"
    )
    flops = sizes.training_flops
    whole = f", {with_prefix(flops, 'FLOPs')} for all {train.steps:,} steps"
    yield (
        f"cost: {with_prefix(cost.macs(config), 'MACs')} per image forward, "
        f"{with_prefix(flops // train.steps, 'FLOPs')} per step"
        + (whole if train.epochs is None else "; the number of steps comes from the data")
    )
    yield (
        f"memory of each device: {sizes.state_bytes / 1e6:,.1f} MB for weights, gradients and "
        f"optimizer, about {sizes.activation_bytes / 1e6:,.1f} MB for the activations of "
        f"{counted(sizes.images, 'image')} at a time"
    )
    if train.shard_optimizer:
        yield _shared_state(prepared)


def _shared_state(prepared):
    """What a replica keeps with `train.shard_optimizer`, of what there is."""
    own, whole = prepared.sizes.state, state_of(prepared.experiment, prepared.model_config, 1)
    parts = [
        f"{own[name] / 1e6:,.2f} of {whole[name] / 1e6:,.2f} MB of the {name}"
        for name in ("optimizer", "average")
        if name in own
    ]
    return f"each of {counted(prepared.replicas, 'replica')} keeps {' and '.join(parts)}"


def _resolved(experiment, config):
    """The experiment as a dictionary, with the variant's own values of the model's other fields."""
    values, fields = experiment.to_dict(), config.to_dict()
    paths = model_field_types(experiment.model.name)
    parts = {path.partition(".")[0] for path in paths}
    # A section that the model lacks, such as the stem, has no value in a configuration.
    shown = {name for name in fields if name in (parts if fields[name] is not None else paths)}
    values["model"] |= {name: fields[name] for name in fields if name in shown}
    return values


def _readable(values):
    """JSON with one line per field, also for lists."""
    text = json.dumps(values, indent=2)
    return re.sub(r"\[\n[^\[\]]*\]", lambda found: json.dumps(json.loads(found[0])), text)


def with_prefix(number, unit) -> str:
    """A count with three digits and a prefix, such as "17.6 GMACs"."""
    power = min(max(len(str(number)) - 1, 0) // 3, len(_PREFIXES) - 1)
    return f"{number / 1000**power:,.3g} {_PREFIXES[power]}{unit}"


def _first_batch(data):
    """The source of the first batch, and the dtype and shape of each of its tensors."""
    if data.bad_images is not None:
        data = dataclasses.replace(data, bad_images=BadImages())  # Writes no file.
    try:
        batch = next(iter(data.batch(0)))
    except INPUT_ERRORS as error:
        raise data.explain_input_error(error, [0], hosts=1) from None
    bad = np.flatnonzero(batch["weight"].numpy() == 0)
    if len(bad):
        data.bad_images.record_slots(data.batches(hosts=1), [(0, slot) for slot in bad])
    if len(bad) == len(batch["id"]):
        raise data.empty_batch_error(0)
    parts = [f"{name} {part.dtype.name} {list(part.shape)}" for name, part in batch.items()]
    source = data.source
    return (
        f"{', '.join(parts)}, from {source} ({counted(source.num_examples, 'example')} of "
        f"{source.num_classes} classes{', any number of labels each' * source.multi_label})"
    )
