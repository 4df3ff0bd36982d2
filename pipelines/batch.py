"""Lists the examples of a training batch, checks all images, or measures the input."""

import math

from absl import flags

from pipelines.cli import command, request, shared_flags

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
    if values.throughput is None:
        shared_flags.require(values, "throughput", ["teraflops"])
    if values.check:
        others, why = ("step", "hosts", "throughput"), "it reads every image once"
        shared_flags.refuse(values, "check", others, why)
        _check(values)
    elif values.throughput is not None:
        why = "it measures the input of this machine"
        shared_flags.refuse(values, "throughput", ("step", "hosts"), why)
        _measure(values)
    else:
        _list(values)


def _read(values):
    """Returns the experiment, and the `Workdir` of its run or None."""
    from pipelines.errors import UserError
    from pipelines.runs.workdir import Workdir

    if values.workdir and values.set:
        raise UserError("--workdir names the experiment of a run. Leave out --set, or --workdir.")
    run = Workdir(values.workdir) if values.workdir else None
    return request.experiment(values, run=run), run


def _list(values):
    """Prints the examples of a batch."""
    from pipelines.data import batch_listing
    from pipelines.data.sources.subset import open_train_source
    from pipelines.runs import manifest

    experiment, run = _read(values)
    hosts = values.hosts
    if hosts is None and run is not None and experiment.data.sharding != "global":
        hosts = manifest.read_hosts(run.manifest)
    source = open_train_source(experiment.data)
    batch = batch_listing.list_batch(source, experiment.sampling(), values.step, hosts or 1)
    shared_flags.print_result(values, batch, batch_listing.format_batch)


def _check(values):
    """Prints the report about all images of both splits, and raises `RunError` for its faults."""
    from pipelines.data.faults import find_faults, format_faults, open_sources

    report = find_faults(*open_sources(_read(values)[0].data))
    shared_flags.print_result(values, report, format_faults)
    _raise_for(report)


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


def _measure(values):
    """Prints the rates of the input and of the model."""
    from pipelines.data import throughput
    from pipelines.data.decoding import cores
    from pipelines.data.sources.subset import open_train_source
    from pipelines.errors import UserError

    for name in ("throughput", "teraflops"):
        value = values[name].value
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{name}={value:g} is not a positive number.")
    experiment = _read(values)[0]
    source = open_train_source(experiment.data)
    measured = throughput.measure(source, experiment, values.throughput / 2)
    config = experiment.model_config(source.num_classes)
    result = {
        "images_per_second": measured.decoded,
        "images_per_second_without_decoding": measured.encoded,
        "data_set": str(source),
        "model": experiment.model.name,
        "image_size": list(experiment.train_preprocessing().image_size),
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
    shared_flags.print_result(values, result, throughput.format_throughput)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, shared_flags=SHARED_FLAGS)
