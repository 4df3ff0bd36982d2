"""Trains every combination of some settings, and tests the best one; or runs a suite of them."""

import logging
import typing

from absl import flags

from pipelines.cli import command, model_flags, request, shared_flags
from pipelines.config.names import SuiteName
from pipelines.config.summary import summary
from pipelines.distribution import onednn
from pipelines.distribution.group import current_group
from pipelines.runs import manifest

DESCRIPTION = """Trains one model for each combination of the values of --grid, on the training
split without a held-out part; picks the one with the highest accuracy on that part; trains it again
on the whole training split with several seeds; prints mean and deviation of their accuracy on
data.eval_split (the paper's protocol, appendix B.1.1). With --init_from it fine-tunes. Start the
same command again to go on; values may be added to the grid.

With --suite it fine-tunes on the data of a table of the paper, with the paper's settings, and
prints the result beside the paper's: vtab (19 tasks), cifar10, cifar100, pets, flowers. Tasks of
vtab whose data are missing are left out. Several processes may share a --workdir.

example: python -m pipelines.sweep --grid optimizer.learning_rate=0.003,0.01,0.03
example: python -m pipelines.sweep --suite=vtab --init_from=imagenet21k/ViT-L_16
"""
LOGS_TO = "stdout"

_log = logging.getLogger("pipelines.sweep")


def define(values):
    own = {"flag_values": values}
    flags.DEFINE_enum(
        "suite",
        None,
        typing.get_args(SuiteName),
        "Fine-tune with the settings of the paper's table 4 and appendix B.1.1; --init_from names "
        "the model. --grid adds fields to the choice of settings.",
        **own,
    )
    flags.DEFINE_multi_string(
        "grid",
        [],
        "<path.to.field=value,value,...>: A field of the experiment and the values to try. Repeat "
        "it for more fields. A value with commas is put in parentheses.",
        **own,
    )
    flags.DEFINE_float(
        "hold_out",
        0.1,
        "The part of the training split that the trials are compared on; by default that of the "
        "paper for --suite.",
        **own,
    )
    flags.DEFINE_integer(
        "seeds",
        3,
        "Trainings of the best trial on the whole training split, with the seeds seed, seed + 1 "
        "and so on; 0 only picks.",
        lower_bound=0,
        **own,
    )
    flags.DEFINE_string(
        "init_from", None, f"To fine-tune, as finetune: {model_flags.MODEL_KINDS}.", **own
    )
    model_flags.define_weights(values, default=None)
    flags.DEFINE_bool("dry_run", False, "Print the trials and their cost, and end.", **own)
    shared_flags.define_json(values)


def main(values, arguments):
    del arguments
    if values.suite:
        _run_suite(values)
        return
    begin, asked = request.read(values)
    workdir = request.workdir(values, "sweep", begin, asked)
    onednn.choose(manifest.onednn_of(workdir, has_runs=True))
    strategy = request.strategy(values)
    replicas = strategy.num_replicas_in_sync
    from pipelines.research.sweeps import sweep
    from pipelines.research.sweeps.sweep_plan import make_plan
    from pipelines.training import fine_tuning

    # The weights of a recipe are in its experiment.
    named = (values.init_from, values.weights, asked.assignments.values.get("init_from"))
    if named == (None, None, None):
        experiment = request.pretraining(begin, asked, values.grid)
    else:
        experiment, asked = fine_tuning.choose(
            begin, asked, workdir, values.config is not None, replicas
        )
    experiment = sweep.with_own_fields(experiment, asked.assignments, workdir)
    show = print if values.dry_run else _log.info
    show("\n".join([asked.origin, *summary(experiment)]))
    plan = make_plan(
        experiment,
        values.grid,
        values.hold_out,
        values.seeds,
        replicas,
        asked.assignments.values,
    )
    if values.dry_run:
        print("\n".join(sweep.describe(plan)))
        return
    result = sweep.run(plan, workdir, strategy)
    if values.json and current_group().is_chief:
        shared_flags.print_json(result)


def _run_suite(values):
    own = f"suite={values.suite}"
    shared_flags.refuse(values, own, ("experiment", "config"), "it has its own settings")
    begin, asked = request.read(values)
    workdir = request.workdir(values, "sweep", begin, asked, values.suite)
    onednn.choose(manifest.onednn_of(workdir, has_runs=True))
    strategy = request.strategy(values)
    from pipelines.research.sweeps import suite
    from pipelines.research.sweeps.suite_plan import make_suite_plan

    plan = make_suite_plan(
        values.suite,
        asked,
        grid=values.grid,
        hold_out=values.hold_out if values["hold_out"].present else None,
        seeds=values.seeds,
        workdir=workdir,
        replicas=strategy.num_replicas_in_sync,
    )
    if values.dry_run:
        print("\n".join(suite.describe(plan)))
        suite.check_data(plan)
        return
    result = suite.run(plan, workdir, strategy)
    if values.json and current_group().is_chief:
        shared_flags.print_json(result)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, logs_to=LOGS_TO)
