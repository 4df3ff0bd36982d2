"""Repeats the questions of the paper's tables and figures as experiments."""

import os

from absl import flags

from pipelines.cli import command, request, shared_flags
from pipelines.cli.output import print_json

DESCRIPTION = """Asks the questions of the paper's tables and figures with small models on the data
sets of the package, in minutes: is a ViT without positions worse, does pre-training help where
labels are few? Each experiment states before its run what is expected and how it is analyzed, and
writes a page whose numbers lead to their runs; WORKDIR/index.html (default: runs/paper) has all of
them. Without --run it runs the default ones.

An interrupted call goes on when it is started again. Several processes may share a --workdir. The
exit code is 1 if something does not show that must.

example: python -m pipelines.paper --run table8
"""
LOGS_TO = "stdout"
SHARED_FLAGS = ("workdir", *shared_flags.DEVICE_FLAGS)


def define(values):
    own = {"flag_values": values}
    flags.DEFINE_bool("list", False, "Print the experiments, and end.", **own)
    flags.DEFINE_string(
        "run", None, "An experiment, such as E1, or a table, figure or section; or all.", **own
    )
    flags.DEFINE_bool("dry_run", False, "Print the runs of the experiments, and end.", **own)
    flags.DEFINE_bool(
        "report", False, "Write the page about all experiments again, and end.", **own
    )
    shared_flags.define_json(values)


def main(values, arguments):
    del arguments
    from pipelines.replication import catalog

    if values.list:
        print("\n".join(catalog.describe()))
        return
    toys = catalog.choose(values.run)
    from pipelines.replication import study

    workdir = values.workdir or os.path.join("runs", "paper")
    if values.dry_run:
        print("\n".join(study.describe(toys)))
        return
    if values.report:
        print(study.rewrite(workdir))
        return
    records = study.run(toys, workdir, request.strategy(values))
    if values.json:
        print_json(records)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, shared_flags=SHARED_FLAGS, logs_to=LOGS_TO)
