"""Jobs for tests of the engine: a plain module, which the processes of a cluster import."""

import os
import pathlib
import signal
import time
from typing import NamedTuple

import numpy as np

from pipelines.errors import DataError


class Squares(NamedTuple):
    """The squares of a range; chosen blocks kill their process, the first time or always.

    Attributes:
        folder: it gets a file for each kill and each block that is done.
        kills: first indices of the blocks that kill.
        always: whether they kill every time.
    """

    folder: str
    kills: tuple = ()
    always: bool = False

    def open(self):
        def compute(block):
            path = pathlib.Path(self.folder, f"kill-{block.start}")
            if block.start in self.kills and (self.always or not path.exists()):
                path.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return [index**2 for index in block]

        return compute


class Failing(NamedTuple):
    """Raises an error in the block that begins at 4."""

    kind: str

    def open(self):
        def compute(block):
            if block.start < 4:
                return block.start
            if self.kind == "data":
                raise DataError("The file 7 is damaged.")
            if self.kind == "system":
                raise FileNotFoundError(2, "No such file or directory", "/gone")
            raise KeyError("a defect")

        return compute


class Large(NamedTuple):
    """Results of 4 MB; `folder` gets a file for each block that is done."""

    folder: str

    def open(self):
        def compute(block):
            pathlib.Path(self.folder, str(block.start)).touch()
            return np.full(1 << 22, block.start, np.uint8)

        return compute


class Slow(NamedTuple):
    """Blocks that take longer than the patience of a test."""

    def open(self):
        return lambda block: time.sleep(60)
