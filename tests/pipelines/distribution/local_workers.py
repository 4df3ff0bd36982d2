"""Starts the workers of a run as processes of this machine."""

import contextlib
import dataclasses
import os
import pathlib
import re

from pipelines.distribution.local_workers import free_addresses
from tests import fork_server
from tests.pipelines.process import ROOT, TIMEOUT

PROGRAM = "tests.pipelines.programs.worker"


@dataclasses.dataclass
class Worker:
    """A process, and the files that get its output."""

    process: fork_server.Process
    stdout: pathlib.Path
    stderr: pathlib.Path

    @property
    def code(self):
        return self.process.wait(TIMEOUT)

    @property
    def output(self):
        return self.stdout.read_text() + self.stderr.read_text()

    @property
    def error(self):
        """The line on stderr that begins with "error: ", without these words and the worker."""
        text = self.stderr.read_text()
        (line,) = re.findall(r"^(?:worker \d+: )?error: (.*)$", text, re.MULTILINE)
        return line


@contextlib.contextmanager
def started(folder, arguments, count=2, own=None, addresses=None):
    """In a `with` block, the workers of a command; what still runs at its end is killed.

    Args:
        folder: working directory.
        arguments: those of `python`, such as `["-m", "pipelines.pretrain", ...]`.
        count: number of workers.
        own: index -> further arguments of that worker.
        addresses: of the workers; by default free ones.
    """
    addresses = addresses or free_addresses(count)
    workers = []
    for index in range(count):
        files = [folder / f"worker-{index}.{end}" for end in ("out", "err")]
        with open(files[0], "w") as out, open(files[1], "w") as err:
            process = fork_server.Process(
                "pipelines",
                [
                    *map(str, arguments),
                    "--strategy=multi_worker",
                    f"--workers={','.join(addresses)}",
                    f"--worker_index={index}",
                    *((own or {}).get(index, [])),
                ],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": ROOT, "TF_CPP_MIN_LOG_LEVEL": "3"},
                stdout=out.fileno(),
                stderr=err.fileno(),
            )
        workers.append(Worker(process, *files))
    try:
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()


def run(folder, *arguments, code=0, **options):
    """Runs the workers of a command to their end; all must have the exit code."""
    with started(folder, arguments, **options) as workers:
        codes = [worker.code for worker in workers]
        assert codes == [code] * len(workers), "\n".join(worker.output for worker in workers)
    return workers
