"""Lists the examples of a training batch."""

import json

from absl import flags

from pipelines import cli, shared_flags

DESCRIPTION = """Prints the examples of the global batch of one training step, in their order.

The list depends only on the experiment, not on devices, restarts or time; with data.sharding=files
also on the number of hosts. --workdir uses the experiment of that run and cannot be combined with
--set and --config.

example: python -m pipelines.batch --step 1200 --workdir runs/pretrain-digits
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
    shared_flags.define_json(values)


def main(values, arguments):
    del arguments
    from pipelines.data import batch_listing
    from pipelines.data.sources.splits import choose_splits
    from pipelines.data.sources.subset import open_train_source
    from pipelines.errors import UserError
    from pipelines.runs import manifest
    from pipelines.runs.workdir import Workdir

    if values.workdir and values.set:
        raise UserError("--workdir names the experiment of a run. Leave out --set, or --workdir.")
    if values.workdir:
        run = Workdir(values.workdir)
        experiment, hosts = cli.experiment(values, run=run), manifest.read_hosts(run.manifest)
    else:
        experiment, hosts = cli.experiment(values), None
    if values.hosts is not None or experiment.data.sharding == "global":
        hosts = values.hosts
    data = choose_splits(experiment.data, cli.print_note)
    source = open_train_source(data, cli.print_note)
    batch = batch_listing.list_batch(source, experiment.sampling(), values.step, hosts or 1)
    print(json.dumps(batch) if values.json else batch_listing.format_batch(batch))


if __name__ == "__main__":
    cli.run(main, DESCRIPTION, define, shared_flags=SHARED_FLAGS)
