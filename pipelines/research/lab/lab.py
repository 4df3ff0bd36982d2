"""Runs units in one folder, which several processes may share.

A unit with a result is finished and never runs again. A process takes the lock of a unit, so
processes run different units, and each waits for the results of the others.
"""

import contextlib
import dataclasses
import datetime
import logging
import os
import time
from collections.abc import Mapping, Sequence

import tensorflow as tf

from pipelines.distribution.group import current_group
from pipelines.errors import InUseError, UserError
from pipelines.research.lab.unit import Unit, is_result
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.lock import written_by_chief
from pipelines.training.reuse import Reuse
from vit_tf.files import storage

_log = logging.getLogger(__name__)

RESULT = "result.json"
# Seconds between two looks at units of other processes.
_POLL = 2.0
# The folder of the locks of units, which have files of their own in theirs.
_LOCKS = "locks"


@dataclasses.dataclass(frozen=True)
class Stage:
    """Units of one purpose, such as the trials of a sweep.

    Attributes:
        units: their number.
        cost: of all of them, in the measure of `Unit.cost`; None if that is not known.
    """

    units: int
    cost: float | None


class Lab:
    """Runs units; of several workers, the chief writes and all run the same unit.

    Subclasses may keep results elsewhere than in `result.json` of each unit.

    Args:
        root: the folder of all units.
        devices: what units run on, see `Unit.run`.
        stages: name -> `Stage`, of all that this process is going to run, for the time left.
        pace: seconds for a cost of 1, until a unit has ended here; None if that is not known.
        required: names that each result has.
    """

    # What a unit is called, by its stage, its number and the number of all.
    _title = "{} {} of {}"

    def __init__(self, root, devices, stages: Mapping[str, Stage], *, pace=None, required=()):
        self.root = storage.normal(root)
        self._devices, self._stages, self._pace = devices, dict(stages), pace
        self._required, self._name = required, next(iter(stages), "")
        self._finished = {name: {} for name in stages}  # Costs by folder.
        self._begun = {}  # Folders by stage.
        self._results = {}  # By folder; a result never changes.
        self._took = self._cost = 0.0  # Of the units that ended here.
        self._reuse = Reuse()

    def begin(self, name, stage: Stage | None = None):
        """Names the stage whose units follow; `stage` replaces it, if more is known of it now."""
        self._name = name
        if stage is not None:
            self._stages[name] = stage

    def results(self, units: Sequence[Unit]) -> list[dict]:
        """The results of units, in their order; runs those that have none.

        Raises:
            UserError: if a result is damaged.
            Interrupted: after a signal.
        """
        self._finish(units, self._has_result)
        return [self._results[unit.folder] for unit in units]

    def _finish(self, units, is_done):
        """Runs units until `is_done` says of each that it is; first those that they need."""
        self._note(units)
        left = [unit for unit in units if not is_done(unit)]
        if needs := list(dict.fromkeys(need for unit in left for need in unit.needs)):
            self._finish(needs, self._has_files)
        if 0 < len(left) < len(units):
            _log.info(f"{self._name}: {len(units) - len(left)} of {len(units)} done before")
        while left:
            ran = [self._run(unit, is_done) for unit in left if not is_done(unit)]
            if ran and not any(ran):
                time.sleep(_POLL)
            left = [unit for unit in left if not is_done(unit)]

    def _note(self, units):
        """Counts what has a result for the stage, and what that needed before."""
        for unit in units:
            self._result(unit)
            self._note(unit.needs)

    def _has_result(self, unit):
        return self._result(unit) is not None

    def _has_files(self, unit):
        """Whether a unit has what another one needs of it, besides its result."""
        return self._has_result(unit)

    def _run(self, unit, is_done):
        """Runs a unit; returns whether it has a result, as another process may run it."""
        begun = self._begun.setdefault(self._name, set())
        is_new = unit.folder not in begun
        if is_new:
            begun.add(unit.folder)
            number, count = (
                len(begun | {*self._finished[self._name]}),
                self._stages[self._name].units,
            )
            title = self._title.format(self._name, number, count)
            _log.info(f"\n{title}: {unit.folder}{self._time_left()}")
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(self._locked(unit))
            except InUseError as error:
                if is_new:
                    _log.info(f"another process runs it: {error}")
                return False
            if not is_done(unit):  # Else another process has just finished it.
                self._run_now(unit)
        return True

    def _run_now(self, unit):
        begin = time.perf_counter()
        with _no_retracing_warnings(), self._reuse.in_use():
            result = unit.run(self.root, self._devices)
        seconds = time.perf_counter() - begin
        self._keep(unit, result, seconds)
        self._result(unit)
        if (cost := self._cost_of(unit)) is not None:
            self._took += seconds
            self._cost += cost

    def _result(self, unit):
        """The result of a unit, or None; of several workers, the chief reads it for all."""
        if unit.folder not in self._results:
            result = current_group().from_chief(lambda: self._read(unit))
            if result is None:
                return None
            self._results[unit.folder] = result
        self._finished[self._name][unit.folder] = self._cost_of(unit)
        return self._results[unit.folder]

    def _locked(self, unit):
        """A context in which no other process runs a unit; raises `InUseError` if one does."""
        return written_by_chief(os.path.join(self.root, _LOCKS, unit.folder))

    def _read(self, unit) -> dict | None:
        """The result that is stored, if there is one; called in the chief."""
        path = os.path.join(self.root, unit.folder, RESULT)
        if not storage.exists(path):
            return None
        result = read_json(path)
        if not is_result(result, self._required):
            raise UserError(f"{path} is damaged. Restore it, or delete {os.path.dirname(path)}.")
        return result

    def _keep(self, unit, result, seconds):
        """Stores the result of a unit that took some seconds."""
        del seconds
        if current_group().is_chief:
            write_json(os.path.join(self.root, unit.folder, RESULT), result)

    def _cost_of(self, unit):
        stage = self._stages[self._name]
        return unit.cost if unit.cost is not None else stage.cost and stage.cost / stage.units

    def _time_left(self):
        """The end of a line: the time that is left if this process is alone; "" if not known."""
        pace = self._took / self._cost if self._cost else self._pace
        left = 0.0
        for name, stage in self._stages.items():
            if stage.cost is None or pace is None:
                return ""
            left += pace * max(0.0, stage.cost - sum(self._finished[name].values()))
        return f"  ETA of all runs {datetime.timedelta(seconds=round(left))}"


@contextlib.contextmanager
def _no_retracing_warnings():
    """Hides TensorFlow's warning about repeated tracing: each run traces its own functions."""

    def is_other(record):
        return "triggered tf.function retracing" not in record.getMessage()

    tf.get_logger().addFilter(is_other)
    try:
        yield
    finally:
        tf.get_logger().removeFilter(is_other)
