"""Trains every combination of some settings, and tests the best one."""

import contextlib
import json
import sys

from absl import flags

from pipelines.cli import command, request, shared_flags
from pipelines.config.summary import summary

DESCRIPTION = """Trains one model for each combination of the values of --grid, on the training
split without a held-out part; picks the one with the highest accuracy on that part; trains it again
on the whole training split with several seeds; prints mean and deviation of their accuracy on
data.eval_split (the paper's protocol, appendix B.1.1). With --init_from it fine-tunes. Start the
same command again to go on; values may be added to the grid.

example: python -m pipelines.sweep --grid optimizer.learning_rate=0.003,0.01,0.03
"""
LOGS_TO = "stdout"


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
    flags.DEFINE_bool("dry_run", False, "Print the trials and what they cost, and end.", **own)
    shared_flags.define_json(values)


def main(values, arguments):
    del arguments
    begin, workdir = request.start(values), request.workdir(values, "sweep")
    strategy = request.strategy(values)
    replicas = strategy.num_replicas_in_sync
    if _names_weights(values):
        experiment, asked = request.fine_tuning(values, begin, workdir, replicas)
    else:
        experiment, asked = request.pretraining(values, values.grid)
    from pipelines.studies import sweep
    from pipelines.studies.sweep_plan import make_plan

    # With --json, stdout has only the result.
    with contextlib.redirect_stdout(sys.stderr) if values.json else contextlib.nullcontext():
        print("\n".join([asked.origin, *summary(experiment)]))
        own = (values.grid, values.hold_out, values.seeds, replicas)
        plan = make_plan(experiment, *own, asked.assigned)
        if values.dry_run:
            sweep.describe(plan)
            return
        result = sweep.run(plan, workdir, strategy)
    if values.json:
        print(json.dumps(result))


def _names_weights(values):
    """Whether a flag names initial weights; the weights of a recipe are in its experiment."""
    given = dict(text.partition("=")[::2] for text in values.set).get("init_from", "none")
    return values.init_from is not None or values.weights is not None or given.lower() != "none"


if __name__ == "__main__":
    command.run(main, DESCRIPTION, define, logs_to=LOGS_TO)
