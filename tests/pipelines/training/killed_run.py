"""Runs a training repeatedly and kills it at chosen moments, until it is done.

usage: python -m tests.pipelines.training.killed_run WORKDIR KILLS SEED [assignment ...]

Each attempt is a separate process, forked before TensorFlow starts, that sends SIGKILL to itself at
one of the `MOMENTS`. After KILLS kills the last attempt runs to its end.

Prints one JSON object: "exit", the exit code of the last attempt, and "killed", with for each
killed attempt

    moment: why it was killed
    resumed: the step at which it resumed, None if it ended earlier or started from step 0
    newest: the newest whole checkpoint that it left, None without one
    saving: whether it left a folder with an unfinished checkpoint
"""

import json
import os
import random
import re
import signal
import sys
import threading
import time

import tensorflow as tf

from pipelines.distribution.log_lines import LineHandler, attached
from pipelines.evaluation.evaluation_step import Evaluator
from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir
from pipelines.training.train import train
from tests.pipelines.tiny import tiny_experiment

# Used in turn: while a checkpoint is written, in an evaluation, at a random time during the start,
# and three times soon after the first evaluation. All but the start come after the first evaluation
# of the attempt. Compiling comes before that and takes most of an attempt, so an attempt that is
# killed during the start makes no progress.
MOMENTS = ("save", "later", "evaluation", "later", "start", "later")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def kill_within(seconds):
    threading.Timer(seconds, kill).start()


def attempt(workdir, assignments, log, moment, moments):
    """Trains in this process, with its log lines in a file, until `moment`."""
    evaluate, write_json, evaluated = Evaluator.run, checkpoints.write_json, threading.Event()

    def run(evaluator):
        if moment == "evaluation" and evaluated.is_set():
            kill()
        means = evaluate(evaluator)
        evaluated.set()
        if moment == "later":
            kill_within(moments.uniform(0, 0.1))
        return means

    def write_checksums(path, values):
        if moment == "save" and evaluated.is_set():
            kill()
        write_json(path, values)

    Evaluator.run, checkpoints.write_json = run, write_checksums
    if moment == "start":
        kill_within(moments.uniform(0, 5))
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with open(log, "w", encoding="utf-8") as file, attached(LineHandler(file)):
        train(tiny_experiment(*assignments), workdir, strategy)


def is_saving(workdir, since):
    """Whether there is an unfinished checkpoint that was begun after a time."""
    folder = Workdir(workdir).checkpoints
    names = os.listdir(folder) if os.path.isdir(folder) else []
    paths = [os.path.join(folder, name) for name in names if name.startswith("unfinished-")]
    try:
        return any(os.stat(path).st_mtime > since for path in paths)
    except FileNotFoundError:  # It has just been finished.
        return False


def main(workdir, kills, seed, *assignments):
    moments = random.Random(int(seed))
    log, killed = workdir + ".log", []
    while True:
        open(log, "w").close()
        begin = time.time()
        moment = MOMENTS[len(killed) % len(MOMENTS)] if len(killed) < int(kills) else None
        moments.random()  # The child draws from a copy of its state.
        child = os.fork()
        if child == 0:
            status = 1
            try:
                attempt(workdir, assignments, log, moment, moments)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(json.dumps({"exit": os.WEXITSTATUS(status), "killed": killed}))
            return
        with open(log, encoding="utf-8") as file:
            resumed = re.search(r"resuming from step (\d+)", file.read())
        killed.append(
            {
                "moment": moment,
                "resumed": resumed and int(resumed[1]),
                "newest": checkpoints.newest(Workdir(workdir).checkpoints),
                "saving": is_saving(workdir, begin),
            }
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
