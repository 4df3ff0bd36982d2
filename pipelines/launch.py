"""Starts a command as several workers on this machine."""

import sys

from absl import flags

from pipelines.cli import command
from pipelines.errors import UserError
from vit_tf.config.near_names import did_you_mean

DESCRIPTION = """Starts a command as several workers on this machine, with --strategy=multi_worker.
Each line that they print begins with the index of its worker. If a worker is lost, all of them are
started again, and a training goes on from its newest checkpoint.

Ctrl-C and SIGTERM let the workers save and end. docs/cluster.md has the rest, and how to start
workers on several machines.

example: python -m pipelines.launch --local_workers=2 -- pretrain --set train.steps=200
"""

POSITIONAL = "-- COMMAND [flags of the command]"

SHARED_FLAGS = ()

CHECK_OPS = False  # The workers do.

# The commands that share their work among workers.
_COMMANDS = ("pretrain", "finetune", "evaluate", "fewshot", "sweep")
# Their flags that are chosen here.
_CHOSEN = ("strategy", "workers", "worker_index", "tpu")


def define(values):
    values.set_gnu_getopt(False)  # What follows COMMAND belongs to it, also without "--".
    own = {"flag_values": values}
    flags.DEFINE_integer("local_workers", 2, "Number of workers.", lower_bound=1, **own)
    flags.DEFINE_integer(
        "restarts",
        10,
        "Most times that all workers are started again after one was lost.",
        lower_bound=0,
        **own,
    )
    flags.DEFINE_float(
        "restart_seconds",
        1.0,
        "Seconds before the first restart; each further pause is twice as long, at most a minute.",
        lower_bound=0.0,
        upper_bound=60.0,
        **own,
    )
    flags.DEFINE_float(
        "grace_seconds",
        60.0,
        "Seconds in which the workers must end after Ctrl-C, SIGTERM or the loss of one; then they "
        "are killed.",
        lower_bound=0.0,
        **own,
    )


def main(values, arguments):
    from pipelines.distribution.launcher import launch

    launch(
        _worker_command(arguments),
        values.local_workers,
        restarts=values.restarts,
        pause=values.restart_seconds,
        grace=values.grace_seconds,
    )


def _worker_command(arguments):
    """The command line of each worker."""
    if not arguments:
        raise UserError(
            "There is no command to start. Name it behind --, as in python -m pipelines.launch "
            "--local_workers=2 -- pretrain --workdir runs/a."
        )
    name, *rest = arguments
    if name not in _COMMANDS:
        hint = did_you_mean(name, _COMMANDS)
        raise UserError(
            f"{name!r} is no command that several workers share.{hint} These are "
            f"{', '.join(_COMMANDS)}."
        )
    for text in rest:
        flag = text.lstrip("-").partition("=")[0]
        if text.startswith("-") and flag in _CHOSEN:
            raise UserError(
                f"--{flag} is chosen by launch, which starts {name} with --strategy=multi_worker. "
                "Leave it out."
            )
    return [sys.executable, "-m", f"pipelines.{name}", *rest, "--strategy=multi_worker"]


if __name__ == "__main__":
    command.run(
        main,
        DESCRIPTION,
        define,
        POSITIONAL,
        check_ops=CHECK_OPS,
        shared_flags=SHARED_FLAGS,
    )
