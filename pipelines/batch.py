"""Lists the examples of a training batch, checks all images, or measures the input."""

import math

from absl import flags

from pipelines.cli import command, request, shared_flags
from pipelines.cli.output import print_json

DESCRIPTION = """Prints the examples of the global batch of one training step, in their order.

The list depends only on the experiment, not on devices, restarts or time; with data.sharding=files
also on the number of hosts. --workdir uses the experiment of that run and cannot be combined with
--set and --config.

--check decodes every image of training and evaluation. It prints the size of each class, all faults
of the folders or the list, images that cannot be decoded, photos with an EXIF orientation, equal
files and files that are not read. Exit code 1 if there is a fault or an image cannot be decoded.

--throughput measures the input alone; with --teraflops it prints how many images a second the model
of the experiment needs.

example: python -m pipelines.batch --step 1200 --workdir runs/pretrain-digits
example: python -m pipelines.batch --check --set data.name=folder:/data/pets
example: python -m pipelines.batch --throughput 20 --experiment digits
"""

SHARED_FLAGS = ("experiment", "workdir", "set")


def define(values):
    flags.DEFINE_integer(
        "step",
        0,
        "Index of the step; the first one of a run is 0.",
        lower_bound=0,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "hosts",
        None,
        "Number of hosts that train; only with data.sharding=files. By default the number at the "
        "last start of the run in --workdir, else 1.",
        lower_bound=1,
        flag_values=values,
    )
    flags.DEFINE_bool("check", False, "Check every image instead.", flag_values=values)
    flags.DEFINE_float(
        "throughput",
        None,
        "Measure for this many seconds how many images per second are read, decoded and augmented: "
        "half of the time without decoding, then half with it. Starting is not counted.",
        flag_values=values,
    )
    flags.DEFINE_float(
        "teraflops",
        None,
        "With --throughput: peak of the devices that this machine feeds, together, in TFLOP/s, "
        "such as 492 for a TPU v3-8 in bfloat16. Prints how many images a second the model needs, "
        "if training reaches 45 % of it.",
        flag_values=values,
    )
    shared_flags.define_json(values)


def main(values, arguments):
    del arguments
    from pipelines.data.sources.open import choose_splits
    from pipelines.data.sources.subset import open_train_source
    from pipelines.errors import UserError
    from pipelines.runs import manifest
    from pipelines.runs.workdir import Workdir

    _check_throughput(values)
    if values.check:
        _refuse(values, "check", "it reads every image once", ("step", "hosts", "throughput"))
    if values.workdir and values.set:
        raise UserError("--workdir names the experiment of a run. Leave out --set, or --workdir.")
    if values.workdir:
        run = Workdir(values.workdir)
        experiment, hosts = request.experiment(values, run=run), manifest.read_hosts(run.manifest)
    else:
        experiment, hosts = request.experiment(values), None
    if values.hosts is not None or experiment.data.sharding == "global":
        hosts = values.hosts
    if values.check:
        result, format_result = _check(experiment.data)
    else:
        source = open_train_source(choose_splits(experiment.data, evaluation=False))
        if values.throughput is not None:
            result, format_result = _measure(values, experiment, source)
        else:
            result, format_result = _list(values, experiment, source, hosts)
    if values.json:
        print_json(result)
    else:
        print(format_result(result))
    if values.check:
        _raise_for(result)


def _check_throughput(values):
    """Refuses values and combinations of the flags that make no sense."""
    from pipelines.errors import UserError

    if values.throughput is None:
        if values.teraflops is not None:
            raise UserError(
                "--teraflops belongs to --throughput. Add it, or leave out --teraflops."
            )
        return
    _refuse(values, "throughput", "it measures the input of this machine", ("step", "hosts"))
    for name in ("throughput", "teraflops"):
        value = values[name].value
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{name}={value:g} is not a positive number.")


def _refuse(values, flag, reason, others):
    """Refuses flags that have no meaning beside another flag."""
    from pipelines.errors import UserError

    for name in others:
        if values[name].present:
            raise UserError(f"--{flag} takes no --{name}: {reason}. Leave one of them out.")


def _list(values, experiment, source, hosts):
    """Returns the examples of a batch, and the function that formats them."""
    from pipelines.data import batch_listing

    batch = batch_listing.list_batch(source, experiment.sampling(), values.step, hosts or 1)
    return batch, batch_listing.format_batch


def _check(data):
    """Returns the report about all images of both splits, and the function that formats it."""
    from pipelines.data.check import check, format_check, open_sources

    return check(*open_sources(data)), format_check


def _raise_for(report):
    """Raises `RunError` if a report of `_check` has faults or images that cannot be decoded."""
    from pipelines.errors import RunError, counted

    sentences = []
    if count := len(report["faults"]):
        sentences.append(
            f"{counted(count, 'fault')} of the folders or the list, which training refuses. "
            "Correct what is named above."
        )
    if count := len(report["unreadable"]):
        sentences.append(
            f"{counted(count, 'image')} cannot be decoded. Remove or replace them, or train with "
            "--set data.bad_images=skip."
        )
    if sentences:
        raise RunError(" ".join(sentences))


def _measure(values, experiment, source):
    """Returns the rates of the input and of the model, and the function that formats them."""
    from pipelines.data import throughput
    from pipelines.data.reading import cores

    preprocessing = experiment.train_preprocessing()
    measured = throughput.measure(
        source,
        experiment.sampling(),
        experiment.data,
        preprocessing,
        seconds=values.throughput / 2,
        skips_bad_images=experiment.data.bad_images == "skip",
    )
    config = experiment.model_config(source.num_classes)
    result = {
        "images_per_second": measured.decoded,
        "images_per_second_without_decoding": measured.encoded,
        "data_set": str(source),
        "model": experiment.model.name,
        "image_size": list(preprocessing.image_size),
        "batch_size": experiment.train.batch_size,
        "cores": cores(),
        "seconds": values.throughput,
    }
    if values.teraflops is not None:
        result |= {
            "images_per_second_needed": throughput.needed_rate(config, values.teraflops),
            "teraflops": values.teraflops,
            "utilization": throughput.UTILIZATION,
        }
    return result, throughput.format_throughput


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, shared_flags=SHARED_FLAGS)
