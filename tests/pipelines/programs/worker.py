"""Runs a command in which something happens to one worker only.

usage: python -m tests.pipelines.programs.worker EVENT WORKER COMMAND [argument ...]

EVENT is a function of this module; the worker with the index WORKER, or with WORKER "all" each,
calls it before the command.
"""

import os
import runpy
import signal
import sys
import time

import pytest

from pipelines.distribution import multi_worker, sameness, shared_folder
from pipelines.distribution.group import current_group
from pipelines.runs import progress
from pipelines.stored_models.stored_model import StoredModel
from pipelines.training import loop, train, train_step
from tests.pipelines.training.faults import BAD, experiment_with, ids_of, spoil


def slow_clock():
    """It believes that a step takes long, and would run one at a time."""
    progress.Progress.steps_within = lambda self, seconds: 1


def terminated():
    """It gets SIGTERM after five steps."""
    timed, taken = progress.Progress.timed, []

    def note(self, steps):
        before = sum(taken)
        taken.append(steps)
        if before < 5 <= sum(taken):
            os.kill(os.getpid(), signal.SIGTERM)
        return timed(self, steps)

    progress.Progress.timed = note


def terminated_early():
    """It gets SIGTERM while it prepares, when TensorFlow's servers run."""

    def end(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)

    train.build_trainer = StoredModel.open_model = end


def killed():
    """It is killed after three loops."""
    _after(3, lambda: os.kill(os.getpid(), signal.SIGKILL))


def stopped():
    """It stands still after three loops, as a machine that hangs."""
    _after(3, lambda: os.kill(os.getpid(), signal.SIGSTOP))


def sleeping():
    """Its main thread waits for ever after three loops, as for a disk that does not answer."""
    _after(3, signal.pause)


def _after(loops, happens):
    train_steps, count = loop.TrainingLoop._train, []

    def run(self, step):
        count.append(step)
        if len(count) > loops:
            happens()
        return train_steps(self, step)

    loop.TrainingLoop._train = run


def impatient():
    """After two loops it soon misses a worker; compiling takes longer on a busy machine."""
    _after(2, lambda: setattr(current_group(), "_timeout", 6))


def not_finite():
    """The last image of batch 6 of `faults` is not a number."""
    build = train_step.Trainer.__init__

    def init(self, *arguments):
        # Not before: TensorFlow's strategy is made first.
        spoil(pytest.MonkeyPatch(), ids_of(experiment_with(), BAD)[-1:])
        build(self, *arguments)

    train_step.Trainer.__init__ = init


def elsewhere():
    """It has another working directory, as on another machine."""
    os.chdir("elsewhere")
    shared_folder.DELAY = 2.0


def other_weights():
    """It starts from other weights, as from another file of the same name."""
    build = train_step.Trainer.__init__

    def init(self, model, *arguments):
        model.weights[0].assign(model.weights[0] + 1)
        build(self, model, *arguments)

    train_step.Trainer.__init__ = init


def other_code():
    """One of its files differs."""
    code = sameness._code

    def changed(folder):
        yield from ((path, digest) for path, digest in code(folder) if "config/data" not in path)
        if folder.endswith("pipelines"):
            yield "pipelines/config/data.py", "0" * 12

    sameness._code = changed


def other_ops():
    """Its library of compiled ops is another one."""
    program = sameness.program

    def changed(devices):
        found = program(devices)
        return found | {"compiled ops": found["compiled ops"] | {"library": "0" * 12}}

    multi_worker.program = changed


def main(event, worker, command, *arguments):
    if event in ("stopped", "sleeping"):
        impatient()
    if worker == "all" or f"--worker_index={worker}" in arguments:
        globals()[event]()
    sys.argv = [command, *arguments]
    runpy.run_module(f"pipelines.{command}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
