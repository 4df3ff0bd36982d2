"""Trains every combination of some settings, and tests the best one."""

import logging

from absl import flags

from pipelines.cli import command, request, shared_flags
from pipelines.cli.output import print_json
from pipelines.config.summary import summary

DESCRIPTION = """Trains one model for each combination of the values of --grid, on the training
split without a held-out part; picks the one with the highest accuracy on that part; trains it again
on the whole training split with several seeds; prints mean and deviation of their accuracy on
data.eval_split (the paper's protocol, appendix B.1.1). With --init_from it fine-tunes. Start the
same command again to go on; values may be added to the grid.

example: python -m pipelines.sweep --grid optimizer.learning_rate=0.003,0.01,0.03
"""
LOGS_TO = "stdout"

_log = logging.getLogger("pipelines.sweep")


def define(values):
    own = {"flag_values": values}
    flags.DEFINE_multi_string(
        "grid",
        [],
        "<path.to.field=value,value,...>: A field of the experiment and the values to try. Repeat "
        "it for more fields. A value with commas is put in parentheses.",
        **own,
    )
    flags.DEFINE_float(
        "hold_out", 0.1, "The part of the training split that the trials are compared on.", **own
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
        "init_from", None, f"To fine-tune, as finetune: {shared_flags.MODEL_KINDS}.", **own
    )
    shared_flags.define_weights(values, default=None)
    flags.DEFINE_bool("dry_run", False, "Print the trials and their cost, and end.", **own)
    shared_flags.define_json(values)


def main(values, arguments):
    del arguments
    begin, asked = request.read(values)
    workdir = request.workdir(values, "sweep", begin, asked)
    strategy = request.strategy(values)
    replicas = strategy.num_replicas_in_sync
    from pipelines.studies import sweep
    from pipelines.studies.sweep_plan import make_plan
    from pipelines.training import fine_tuning

    # The weights of a recipe are in its experiment.
    named = (values.init_from, values.weights, asked.assignments.values.get("init_from"))
    if named == (None, None, None):
        experiment = request.pretraining(begin, asked, values.grid)
    else:
        experiment, asked = fine_tuning.choose(
            begin, asked, workdir, values.config is not None, replicas
        )
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
    if values.json:
        print_json(result)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, logs_to=LOGS_TO)
