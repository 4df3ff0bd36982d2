"""Runs a training again and again, killing it at chosen moments, until it is done.

usage: python -m tests.pipelines.training.killed_run WORKDIR KILLS SEED [assignment ...]

The program is loaded once; each attempt is a process of its own, forked before TensorFlow starts,
and ends by SIGKILL at one of the `MOMENTS`. After KILLS kills the last attempt ends by itself.

Prints one JSON object: "exit", its exit code, and "killed", for each killed attempt

    resumed: the step it went on from, None if it did not get that far or began anew
    newest: the newest whole checkpoint that it left, None without one
    saving: whether it left a folder of its own with a checkpoint that is not finished
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

# One after the other: while a checkpoint is written, in an evaluation, at some time during the
# start, and three times soon after the first evaluation. Compiling, which comes before it, takes
# most of an attempt, so that one that is killed then makes no progress.
MOMENTS = ("save", "later", "evaluation", "later", "start", "later")
_EVALUATING, _EVALUATED = "evaluating", "evaluated"


def attempt(workdir, assignments, log):
    """Trains in this process, with what it prints in a file."""
    with open(log, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
    run = Evaluator.run

    def reported(evaluator):
        say(_EVALUATING)
        means = run(evaluator)
        say(_EVALUATED)
        return means

    Evaluator.run = reported
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    loop.train(tiny_experiment(*assignments), workdir, strategy)


def wait_for(moment, child, workdir, log, begin, moments):
    """Waits until an attempt that began at `begin` is to be killed, or has ended by itself."""

    def wait_until(condition):
        # Without reaping it: that is for the caller.
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
    """Whether there is a checkpoint that is not finished, and not of an earlier attempt."""
    folder = Workdir(workdir).checkpoints
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if name.startswith("unfinished-"):
            with contextlib.suppress(FileNotFoundError):  # It is finished.
                if os.stat(os.path.join(folder, name)).st_mtime > begin:
                    return True
    return False


def read(log):
    """What an attempt has printed so far."""
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
        child = os.fork()
        if child == 0:
            status = 1
            try:
                attempt(workdir, assignments, log)
                status = 0
            finally:
                os._exit(status)
        if len(killed) < int(kills):
            wait_for(MOMENTS[len(killed) % len(MOMENTS)], child, workdir, log, begin, moments)
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
