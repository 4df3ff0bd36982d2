"""Runs the units of experiments in one folder, which several processes may share.

A finished unit has a result and never runs again. A process takes the lock of a unit, so processes
run different units, and each waits for the results of the others.
"""

import dataclasses
import datetime
import logging
import os
import time
from collections.abc import Mapping, Sequence

from pipelines.errors import InUseError, RunError, UserError
from pipelines.research.paper.units import RESULT, UNIT, Unit
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.lock import only_writer
from vit_tf.files import storage

_log = logging.getLogger(__name__)

# Seconds between two looks at units of other processes.
_POLL = 2.0
# The folder of the locks of units, which have files of their own in theirs.
_LOCKS = "locks"


@dataclasses.dataclass(frozen=True)
class Expected:
    """What an experiment takes.

    Attributes:
        units: number of its units.
        seconds: of all of them, on 2 quiet cores; None if that is not known.
    """

    units: int
    seconds: float | None


class Lab:
    """Runs units: what an experiment gets.

    Args:
        root: the folder of all units.
        devices: what units run on: a `tf.distribute.Strategy`, or the `plans.Target` of commands.
        expected: what each experiment takes by name, for the time left.
    """

    def __init__(self, root, devices, expected: Mapping[str, Expected]):
        self.root = storage.normal(root)
        self._devices, self._expected = devices, expected
        self._name = ""
        self._finished = {name: set() for name in expected}
        self._announced = set()
        self._results = {}  # By folder; a result never changes.
        self._took = self._should_take = 0.0

    def begin(self, name):
        """Names the experiment whose units follow."""
        self._name = name

    def results(self, units: Sequence[Unit]) -> list[dict]:
        """The results of units, in their order; runs those that have none.

        Raises:
            RunError: if a loss is not finite.
            UserError: if a result is damaged.
            Interrupted: after a signal.
        """
        if needs := list(dict.fromkeys(need for unit in units for need in unit.needs)):
            self.results(needs)
        while left := [unit for unit in units if self._result(unit) is None]:
            tried = [self._run(unit) for unit in left if self._result(unit) is None]
            if tried and not any(tried):
                time.sleep(_POLL)
        found = [self._results[unit.folder] for unit in units]
        for unit, result in zip(units, found, strict=True):
            if "failed" in result:
                raise RunError(f"{unit.folder}: {result['failed']}")
        return found

    def seconds(self) -> float:
        """The time that units took on their last start, of those that ran for this experiment.

        It may use the units of others too, whose time is counted there.
        """
        folders = (os.path.join(self.root, x, UNIT) for x in self._finished[self._name])
        records = map(read_json, folders)
        return sum(x["seconds"] for x in records if x["experiment"] == self._name)

    def _run(self, unit):
        """Runs a unit; returns whether it has a result, as another process may run it."""
        is_new = unit.folder not in self._announced
        if is_new:
            self._announced.add(unit.folder)
            number, count = len(self._finished[self._name]) + 1, self._expected[self._name].units
            _log.info(f"\n{self._name}, run {number} of {count}: {unit.folder}{self._eta()}")
        try:
            with only_writer(os.path.join(self.root, _LOCKS, unit.folder)):
                if self._result(unit) is None:  # Else another process has just finished it.
                    self._run_now(unit)
        except InUseError:
            if is_new:
                _log.info("another process runs it")
            return False
        return True

    def _run_now(self, unit):
        begin, folder = time.perf_counter(), os.path.join(self.root, unit.folder)
        result = unit.run(self.root, self._devices)
        seconds = time.perf_counter() - begin
        record = {"settings": unit.settings, "experiment": self._name, "seconds": seconds}
        write_json(os.path.join(folder, UNIT), record)
        write_json(os.path.join(folder, RESULT), result)
        expected = self._expected[self._name]
        self._finished[self._name].add(unit.folder)
        if expected.seconds is not None:
            self._took += seconds
            self._should_take += expected.seconds / expected.units

    def _result(self, unit):
        """The result of a unit, or None."""
        if unit.folder not in self._results:
            path = os.path.join(self.root, unit.folder, RESULT)
            if not storage.exists(path):
                return None
            result = read_json(path)
            if not _is_result(result):
                raise UserError(
                    f"{path} is damaged. Restore it, or delete {os.path.dirname(path)}."
                )
            self._results[unit.folder] = result
        self._finished[self._name].add(unit.folder)
        return self._results[unit.folder]

    def _eta(self):
        """The time that is left if this process is alone, where it is known."""
        if any(expected.seconds is None for expected in self._expected.values()):
            return ""
        left = sum(
            (expected.seconds or 0.0) * max(0.0, 1 - len(self._finished[name]) / expected.units)
            for name, expected in self._expected.items()
        )
        pace = self._took / self._should_take if self._should_take else 1.0
        return f"  ETA {datetime.timedelta(seconds=round(pace * left))}"


class Listing:
    """Stands for a `Lab` and runs nothing: it notes the units that an experiment asks for.

    Every result is the same, so an experiment that picks settings asks for as many units as with a
    `Lab`, though maybe for others.
    """

    def __init__(self):
        self.units = {}  # By folder, in order.

    def results(self, units: Sequence[Unit]) -> list[dict]:
        """Stands for `Lab.results`."""
        for unit in units:
            if unit.needs:
                self.results(unit.needs)
            self.units[unit.folder] = unit
        return [unit.stand_in() for unit in units]


def _is_result(result):
    if "failed" in result:
        return isinstance(result["failed"], str)
    return all(type(value) in (int, float) for value in result.values())
