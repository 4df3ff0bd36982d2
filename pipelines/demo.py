"""Shows the whole product on real images in a few minutes."""

import os

from pipelines.cli import command, request
from pipelines.distribution import onednn
from pipelines.errors import UserError
from pipelines.runs import manifest

DESCRIPTION = """Demonstrates everything on real handwritten digits: pre-trains a small ViT on the
digits 0 to 4, fine-tunes it on all ten at a higher resolution, evaluates it on held-out images,
exports it, serves it from a process that has only TensorFlow, and writes WORKDIR/report.html
(default: runs/demo/report.html). A finished demo starts again from the beginning; an
interrupted one goes on. The exit code is 1 if a check fails.

example: python -m pipelines.demo --workdir runs/demo
"""
LOGS_TO = "stdout"

SHARED_FLAGS = ("workdir", "set", *request.DEVICE_FLAGS)


def main(values, arguments):
    del arguments
    if values.strategy == "multi_worker":
        raise UserError("The demo runs in one process. Leave out --strategy=multi_worker.")
    workdir = values.workdir or os.path.join("runs", "demo")
    onednn.choose(manifest.onednn_of(workdir, has_runs=True))
    strategy = request.strategy(values)
    from pipelines.research.demo import stages

    stages.run(workdir, strategy, values.set)


if __name__ == "__main__":
    command.run(main, DESCRIPTION, shared_flags=SHARED_FLAGS, logs_to=LOGS_TO)
