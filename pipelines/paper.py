"""Repeats the questions of the paper's tables and figures as experiments."""

import os

from absl import flags

from pipelines.cli import command, request, shared_flags
from pipelines.cli.output import print_json
from pipelines.errors import UserError

DESCRIPTION = """Asks the questions of the paper's tables and figures with small models on the data
sets of the package, in minutes: is a ViT without positions worse, does pre-training help where
labels are few? Each experiment states before its run what is expected and how it is analyzed, and
writes a page whose numbers lead to their runs; WORKDIR/index.html (default: runs/paper) has all of
them. Without --run it runs the default ones.

With --scale=full it runs the commands of a table or figure with the paper's models and data, which
takes a cluster; --dry_run prints them, to be started anywhere, with what they take of chips.

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
    flags.DEFINE_enum(
        "scale",
        "toy",
        ["toy", "full"],
        "With full, the commands of a table or figure with the paper's models and data.",
        **own,
    )
    flags.DEFINE_string("chip", "v3", "The chip of --dry_run at full scale, as for plan.", **own)
    flags.DEFINE_integer("chips", 128, "Their number.", lower_bound=1, **own)
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
    studies = catalog.choose(values.run, values.scale)
    from pipelines.replication import session
    from pipelines.replication.full import plans

    workdir = values.workdir or os.path.join("runs", "paper")
    if values.dry_run:
        if values.scale == "full":
            lines = [plans.describe(study.name, values.chip, values.chips) for study in studies]
        else:
            lines = [session.describe(studies)]
        print("\n\n".join("\n".join(each) for each in lines))
        return
    if values.report:
        print(session.rewrite(workdir))
        return
    records = session.run(studies, workdir, _devices(values))
    if values.json:
        print_json(records)


def _devices(values):
    """The strategy of this process, or at full scale the flags of the commands."""
    if values.scale == "full":
        given = [name for name in shared_flags.DEVICE_FLAGS if values[name].present]
        return [f"--{name}={values[name].value}" for name in given]
    if values.strategy == "multi_worker":
        raise UserError(
            "Studies at toy scale run in one process each. Leave out --strategy=multi_worker; "
            "several processes may share a --workdir."
        )
    return request.strategy(values)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, shared_flags=SHARED_FLAGS, logs_to=LOGS_TO)
