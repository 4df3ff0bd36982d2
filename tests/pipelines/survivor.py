"""Runs a training again and again, killing it at random moments, until it is done.

usage: python -m tests.pipelines.survivor WORKDIR KILLS SEED [assignment ...]

The program is loaded once; each life is a process of its own, forked before TensorFlow starts, and
ends by SIGKILL: every sixth at some time during its start, the others soon after their first
training step, between steps, in an evaluation or while saving. After KILLS kills the last life ends
by itself. Prints one JSON object: its exit code and what each killed life had said last.
"""

import json
import os
import random
import signal
import sys
import time

import tensorflow as tf

from pipelines import train_loop
from tests.pipelines.tiny import tiny_experiment


def live(workdir, assignments, log):
    """One life: trains in this process, with what it prints in a file."""
    with open(log, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    train_loop.train(tiny_experiment(*assignments), workdir, strategy)


def kill_at_random(child, log, early, moments):
    """Waits for a random moment of a life and ends it; does nothing if it has ended."""
    if early:
        time.sleep(moments.uniform(0, 4))
    else:
        while "first step took" not in read(log) and os.waitpid(child, os.WNOHANG)[0] == 0:
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 0.6))
    os.kill(child, signal.SIGKILL)


def read(log):
    """What a life has printed so far."""
    with open(log, encoding="utf-8") as file:
        return file.read()


def main(workdir, kills, seed, *assignments):
    moments = random.Random(int(seed))
    log, said = workdir + ".log", []
    while True:
        open(log, "w").close()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                live(workdir, assignments, log)
                status = 0
            finally:
                os._exit(status)
        if len(said) < int(kills):
            kill_at_random(child, log, len(said) % 6 == 5, moments)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            print(json.dumps({"exit": os.WEXITSTATUS(status), "said": said}))
            return
        said.append((read(log).splitlines() or [""])[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
