"""Trains 300 steps and prints the resident memory, in bytes, at each log line, as a JSON list.

usage: python -m tests.pipelines.programs.training_memory WORKDIR

A batch has 1.6 MB, and a log interval 10 steps.
"""

import gc
import json
import os
import sys

from pipelines.training.train import train
from tests.pipelines.tiny import one_device, tiny_experiment

SETTINGS = (
    "model.layers=1",
    "model.image_size=64",
    "model.patch_size=16",
    "data.eval_split=test[:32]",
    "train.batch_size=32",
    "train.steps=300",
    "train.log_every=10",
    "train.eval_every=50",
    "train.checkpoint_every=50",
)


def resident():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(workdir):
    found = []

    def note(line):
        if "loss" in line:
            gc.collect()  # Python lets cycles of each evaluation wait.
            found.append(resident())

    with open(os.devnull, "w", encoding="utf-8") as sys.stdout:
        train(tiny_experiment(*SETTINGS), workdir, one_device(), on_metrics=note)
    print(json.dumps(found), file=sys.__stdout__)


if __name__ == "__main__":
    main(*sys.argv[1:])
