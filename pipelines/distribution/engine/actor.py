"""What runs in the processes of a Ray cluster: opens a job once, and computes blocks of it."""

import dataclasses
import socket
from typing import Any

import numpy as np

from pipelines.distribution import sameness
from pipelines.errors import RunError, UserError


# No tuples: Arrow would make lists of them.
@dataclasses.dataclass(frozen=True)
class Failed:
    """An error that ends a job, for the process of the command, which raises it again."""

    kind: str  # name of the class in `pipelines.errors`
    message: str


@dataclasses.dataclass(frozen=True)
class Done:
    """The result of a block."""

    result: Any


class Actor:
    """Computes blocks of a job, one at a time.

    Args:
        job: the `jobs.Job`.
        program: `sameness.program` of the process of the command.
        host: name of its machine.
    """

    def __init__(self, job, program, host):
        self._job, self._program, self._host = job, program, host
        self._compute = None

    def __call__(self, batch):
        """Computes the block `[start, stop)`; the columns are arrays of one row."""
        block = range(int(batch["start"][0]), int(batch["stop"][0]))
        column = np.empty(1, object)
        column[0] = self._outcome(block)
        return {"outcome": column}

    def _outcome(self, block):
        try:
            if self._compute is None:
                self._check_program()
                self._compute = self._job.open()
            return Done(self._compute(block))
        except (UserError, RunError) as error:
            return Failed(type(error).__name__, self._from_here(str(error)))
        except OSError as error:
            place = f" ({error.filename})" if error.filename else ""
            return Failed("RunError", self._from_here(f"{error.strerror or error}{place}."))
        except Exception as error:  # Ray would say more about itself than about the error.
            line = str(error).strip().partition("\n")[0].rstrip(".")
            return Failed("RunError", self._from_here(f"{type(error).__name__}: {line}."))

    def _from_here(self, message):
        here = socket.gethostname()
        return message if here == self._host else f"{message} This is from the machine {here}."

    def _check_program(self):
        """Checks that this machine has the programs of the command: others give other bits."""
        own = sameness.program("")
        for name, expected in self._program.items():
            if own[name] != expected:
                differing = "code" if name == "code" else f"{name}: {own[name]}, not {expected}"
                raise UserError(
                    f"The programs of this machine differ from those of the command ({differing}). "
                    "Install the same version on all machines."
                )
