"""Runs a training repeatedly and kills it at chosen moments, until it is done.

usage: python -m tests.pipelines.training.killed_run WORKDIR KILLS SEED [assignment ...]

The program is loaded once. Each attempt is a separate process, forked before TensorFlow starts, and
SIGKILL ends it at one of the `MOMENTS`. After KILLS kills the last attempt runs to its end.

Prints one JSON object: "exit", the exit code of the last attempt, and "killed", with for each
killed attempt

    resumed: the step at which it resumed, None if it ended earlier or started from step 0
    newest: the newest whole checkpoint that it left, None without one
    saving: whether it left a folder with an unfinished checkpoint
    evaluating: whether it was killed in an evaluation
"""

import contextlib
import json
import os
import random
import re
import signal
import sys
import time

import tensorflow as tf

from pipelines.evaluation.evaluation_step import Evaluator
from pipelines.runs import checkpoints
from pipelines.runs.progress import say
from pipelines.runs.workdir import Workdir
from pipelines.training import loop
from tests.pipelines.tiny import tiny_experiment

# Used in turn: while a checkpoint is written, in an evaluation, at a random time during the start,
# and three times soon after the first evaluation. Compiling comes before that and takes most of an
# attempt, so an attempt that is killed during the start makes no progress.
MOMENTS = ("save", "later", "evaluation", "later", "start", "later")
_EVALUATING, _EVALUATED = "evaluating", "evaluated"


def attempt(workdir, assignments, log, moment):
    """Trains in this process, with its output in a file, until `moment` at least."""
    with open(log, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
    run = Evaluator.run

    def reported(evaluator):
        say(_EVALUATING)
        if moment == "evaluation" and _EVALUATED in read(log):
            time.sleep(600)  # until it is killed
        means = run(evaluator)
        say(_EVALUATED)
        return means

    Evaluator.run = reported
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    loop.train(tiny_experiment(*assignments), workdir, strategy)


def wait_for(moment, child, workdir, log, begin, moments):
    """Waits until the attempt that began at `begin` must be killed, or has ended by itself."""

    def wait_until(condition):
        # WNOWAIT leaves the process to be reaped by the caller.
        over = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while not condition() and os.waitid(os.P_PID, child, over) is None:
            time.sleep(0.001)

    if moment == "start":
        time.sleep(moments.uniform(0, 5))
        return
    wait_until(lambda: _EVALUATED in read(log))
    if moment == "save":
        wait_until(lambda: is_saving(workdir, begin))
    elif moment == "evaluation":
        wait_until(lambda: last_line(log) == _EVALUATING)
    else:
        time.sleep(moments.uniform(0, 0.3))


def is_saving(workdir, begin):
    """Whether there is an unfinished checkpoint of this attempt."""
    folder = Workdir(workdir).checkpoints
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.startswith("unfinished-"):
            with contextlib.suppress(FileNotFoundError):  # it was just finished
                if os.stat(os.path.join(folder, name)).st_mtime > begin:
                    return True
    return False


def read(log):
    """The output of an attempt so far."""
    with open(log, encoding="utf-8") as file:
        return file.read()


def last_line(log):
    return (read(log).splitlines() or [""])[-1]


def main(workdir, kills, seed, *assignments):
    moments = random.Random(int(seed))
    log, killed = workdir + ".log", []
    while True:
        open(log, "w").close()
        begin = time.time()
        moment = MOMENTS[len(killed) % len(MOMENTS)] if len(killed) < int(kills) else None
        child = os.fork()
        if child == 0:
            status = 1
            try:
                attempt(workdir, assignments, log, moment)
                status = 0
            finally:
                os._exit(status)
        if moment:
            wait_for(moment, child, workdir, log, begin, moments)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(json.dumps({"exit": os.WEXITSTATUS(status), "killed": killed}))
            return
        resumed = re.search(r"resuming from step (\d+)", read(log))
        killed.append(
            {
                "resumed": resumed and int(resumed[1]),
                "newest": checkpoints.newest(Workdir(workdir).checkpoints),
                "saving": is_saving(workdir, begin),
                "evaluating": last_line(log) == _EVALUATING,
            }
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
