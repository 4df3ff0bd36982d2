"""Repeats the questions of the paper's tables and figures as experiments."""

import os

from absl import flags

from pipelines.cli import command, request, shared_flags
from pipelines.distribution import onednn
from pipelines.errors import UserError
from pipelines.runs import manifest

DESCRIPTION = """Asks the questions of the paper's tables and figures with small models on the data
sets of the package, in minutes: is a ViT without positions worse, does pre-training help where
labels are few? Each experiment states before its run what is expected and how it is analyzed, and
writes a page whose numbers lead to their runs; WORKDIR/index.html (default: runs/paper) has all of
them. Without --run it runs the default ones.

With --scale=full it runs the commands of a table or figure with the paper's models and data, which
takes a cluster; --dry_run prints them, to be started anywhere, with what they take of chips.

An interrupted call goes on when it is started again, and so does one that has ended with exit code
75 because the minutes of --budget were over. Several processes may share a --workdir. The
exit code is 1 if something does not show that must.

example: python -m pipelines.paper --run table8
"""
LOGS_TO = "stdout"
SHARED_FLAGS = ("workdir", *request.DEVICE_FLAGS)


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
    flags.DEFINE_string("chip", "v3", "The chips of --scale=full, as for plan.", **own)
    flags.DEFINE_integer("chips", 128, "Their number.", lower_bound=1, **own)
    flags.DEFINE_bool("dry_run", False, "Print the runs of the experiments, and end.", **own)
    flags.DEFINE_bool(
        "report",
        False,
        "Write the page about all experiments again, and end; with --units, also the pages of the "
        "experiments whose results are there.",
        **own,
    )
    flags.DEFINE_string(
        "units",
        None,
        "A folder for the results of trainings and measurements, a file for each experiment: what "
        "it has is not run again, also on another machine.",
        **own,
    )
    flags.DEFINE_float(
        "budget",
        None,
        "Minutes after which no run begins: the call ends with exit code 75 and the same command "
        "goes on. A run that has begun ends first.",
        lower_bound=0.0,
        **own,
    )
    shared_flags.define_json(values)


def main(values, arguments):
    del arguments
    workdir = values.workdir or os.path.join("runs", "paper")
    onednn.choose(manifest.onednn_of(workdir, has_runs=True))
    from pipelines.research.paper import catalog

    if values.list:
        print("\n".join(catalog.describe()))
        return
    if values.strategy == "multi_worker":
        raise UserError(
            "paper runs in one process, or several that share a --workdir. Leave out "
            "--strategy=multi_worker; start the lines of --scale=full --dry_run on each machine."
        )
    studies = catalog.choose(values.run, values.scale)
    from pipelines.research.paper import session
    from pipelines.research.paper.full import plans

    if values.dry_run:
        if values.scale == "full":
            root = session.units_folder(workdir)
            lines = [plans.describe(study.name, root, _target(values)) for study in studies]
        else:
            lines = [session.describe(studies)]
        print("\n\n".join("\n".join(each) for each in lines))
        return
    if values.report:
        if values.units:
            print(session.rebuild(catalog.choose(values.run or catalog.ALL), workdir, values.units))
        else:
            print(session.rewrite(workdir))
        return
    records = session.run(studies, workdir, _devices(values), values.units, values.budget)
    if values.json:
        shared_flags.print_json(records)


def _devices(values):
    """What units run on: the strategy of this process, or the target of commands."""
    return _target(values) if values.scale == "full" else request.strategy(values)


def _target(values):
    from pipelines.research.paper.full.plans import Target

    given = [name for name in request.DEVICE_FLAGS if values[name].present]
    devices = tuple(f"--{name}={values[name].value}" for name in given)
    return Target(values.chip, values.chips, devices)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, shared_flags=SHARED_FLAGS, logs_to=LOGS_TO)
