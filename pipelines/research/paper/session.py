"""Runs studies in a folder: their units, their pages, and a page about all of them."""

import datetime
import logging
import os
import time
from collections.abc import Iterable, Sequence

from pipelines.distribution.group import current_group
from pipelines.distribution.signals import interruptible
from pipelines.errors import Interrupted, RunError, UserError
from pipelines.research.lab.folder import mark
from pipelines.research.lab.lab import RESULT, Lab, Stage
from pipelines.research.paper import records, report
from pipelines.research.paper.kept import UNIT, Kept
from pipelines.research.paper.study import PILOTS, Study
from pipelines.research.paper.units import StudyUnit
from pipelines.runs import manifest
from pipelines.runs.json_file import read_json, write_json
from vit_tf.files import storage

_log = logging.getLogger(__name__)

# The file that marks a folder, the command that it names, and what the folder has.
_MARK = ("paper.json", "pipelines.paper", "experiments")
_UNITS = "runs"


class StudyLab(Lab):
    """Runs the units of studies; the stages are the studies, whose cost is in seconds.

    Args:
        root, devices, stages, kwargs: see `Lab`.
        kept: results that need no run, a `Kept`; None: there are none.
        budget: minutes from now, after which no unit begins; None: no limit.
    """

    _title = "{}, run {} of {}"

    def __init__(self, root, devices, stages, kept=None, budget=None, **kwargs):
        super().__init__(root, devices, stages, **kwargs)
        self._kept = kept or Kept(None)
        self._budget = budget
        self._end = None if budget is None else time.monotonic() + 60 * budget

    def attempts(self, units: Sequence[StudyUnit]) -> list[dict]:
        """The results of units; {"failed": the reason} where a loss was not finite."""
        return super().results(units)

    def results(self, units: Sequence[StudyUnit]) -> list[dict]:
        """As `Lab.results`; raises `RunError` if a loss is not finite."""
        found = self.attempts(units)
        for unit, result in zip(units, found, strict=True):
            if "failed" in result:
                raise RunError(f"{unit.folder}: {result['failed']}")
        return found

    def seconds(self) -> float:
        """The time that units took on their last start, of those that ran for this experiment.

        It may use the units of others too, whose time is counted there.
        """
        return sum(x["seconds"] for x in self._units() if x.get("experiment") == self._name)

    def first_run(self) -> str | None:
        """When the first of the units of this experiment began, ISO 8601; None: that is unknown.

        Pilots and choices of settings do not count: no result uses them.
        """
        times = [x.get("begun") for x in self._units() if x.get("seed") not in PILOTS]
        return None if None in times else min(times, default=None)

    def keep(self):
        """Writes what has ended of this experiment where results are kept."""
        for folder in self._finished[self._name]:
            if storage.exists(os.path.join(self.root, folder, UNIT)):
                self._kept.add(self.root, folder)
        self._kept.write(self._name)

    def _units(self):
        """What is known of each unit of this experiment besides its result."""
        for folder in self._finished[self._name]:
            path = os.path.join(self.root, folder, UNIT)
            # A run that made weights again is later than the result that was kept.
            kept = self._kept.get(folder)
            yield kept or (read_json(path) if storage.exists(path) else {})

    def _run(self, unit, is_done):
        if self._end is not None and current_group().from_chief(
            lambda: time.monotonic() >= self._end
        ):
            raise Interrupted(
                f"The {self._budget:g} minutes of --budget are over: no other run begins. Start "
                "the same command again to go on."
            )
        return super()._run(unit, is_done)

    def _has_files(self, unit):
        path = os.path.join(self.root, unit.folder, RESULT)
        return self._has_result(unit) and current_group().from_chief(lambda: storage.exists(path))

    def _read(self, unit):
        if kept := self._kept.get(unit.folder):
            return kept["result"]
        return super()._read(unit)

    def _keep(self, unit, result, seconds):
        software = manifest.software()
        record = {
            "settings": unit.settings,
            "seed": unit.seed,
            "experiment": self._name,
            "seconds": seconds,
            "begun": (
                datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
            ).isoformat(timespec="seconds"),
            "git": software["git"],
            "versions": software["versions"],
            "isa": software["ops"]["isas"]["chosen"],
            "onednn": software["onednn"],
        }
        write_json(os.path.join(self.root, unit.folder, UNIT), record)
        super()._keep(unit, result, seconds)


class KeptLab(StudyLab):
    """Runs nothing: the results are those that are kept.

    Args:
        root: the folder of the units, if they were run.
        studies: the experiments.
        kept: their results.
    """

    def __init__(self, root, studies, kept):
        super().__init__(root, None, {x.name: Stage(1, None) for x in studies}, kept)

    def _run(self, unit, is_done):
        raise UserError(
            f"The result of {unit.folder}, of {self._name}, is not kept. Run what is missing: "
            f"--run {self._name} with the same --units."
        )


class Listing:
    """Stands for a lab and runs nothing: it notes the units that an experiment asks for.

    Every result is the same, so an experiment that picks settings asks for as many units as with a
    lab, though maybe for others.
    """

    def __init__(self):
        self.units = {}  # By folder, in order.

    def results(self, units: Sequence[StudyUnit]) -> list[dict]:
        """Stands for `Lab.results`."""
        for unit in units:
            if unit.needs:
                self.results(unit.needs)
            self.units[unit.folder] = unit
        return [unit.stand_in() for unit in units]

    attempts = results


def describe(studies: Sequence[Study]) -> list[str]:
    """Lines about experiments and their units, which are not run."""
    lines = []
    for study in studies:
        units = listed(study).units
        time = "" if study.minutes is None else f", about {study.minutes:g} minutes"
        lines += [f"{study.name}, {study.title}: {len(units)} runs{time}"]
        lines += [f"  {unit.describe()}" for unit in units.values()]
    total = sum(study.minutes or 0 for study in studies)
    return [*lines, f"together about {total:g} minutes on 2 quiet cores"]


def listed(study: Study) -> Listing:
    """The units of an experiment; where it picks settings, those of the last ones."""
    listing = Listing()
    study.run(listing)
    return listing


def run(studies: Sequence[Study], path, devices, units=None, budget=None) -> dict:
    """Runs experiments, or what is left of them, and writes their pages.

    Args:
        studies: the experiments.
        path: the folder; created if missing. Other processes may run experiments there too.
        devices: see `Lab`.
        units: folder where the results of units are kept, and read if they are not in `path`; see
            `kept`. None keeps none.
        budget: minutes after which no unit begins; one that runs then ends. None: no limit.

    Returns:
        `{name: the record of the experiment}`, see `records.make_record`.

    Raises:
        UserError: if the folder holds something else.
        RunError: if something that must show does not; the other experiments have run, except
            after a gate.
        Interrupted: after a signal, and if the budget ends before the experiments.
    """
    path, made, broken = storage.normal(path), {}, []
    stages = {x.name: Stage(len(listed(x).units), x.minutes and 60 * x.minutes) for x in studies}
    with interruptible():
        mark(path, *_MARK)
        lab = StudyLab(units_folder(path), devices, stages, Kept(units), budget, pace=1.0)
        for study in studies:
            lab.begin(study.name)
            try:
                findings = study.run(lab)
            finally:  # Another machine may go on after an interruption.
                lab.keep()
            record = records.make_record(study, findings, lab)
            made[study.name] = record
            report.write(path, study, record)
            _log.info("\n" + records.text(study, record))
            failed = [x for x in record["claims"] if x["must"] and x["shows"] is False]
            broken += [f"{study.name}: {claim['text']} ({claim['numbers']})" for claim in failed]
            if failed and study.is_gate:
                raise RunError(
                    f"{broken[0]}. Something is broken, so the other experiments would say "
                    "nothing. Run `make test`."
                )
        report.write_index(path)
    _log.info(f"\nwrote {report.index_path(path)}")
    if broken:
        raise RunError("What must show does not: " + "; ".join(broken) + ".")
    return made


def units_folder(path) -> str:
    """The folder of the units of the studies in a folder."""
    return os.path.join(storage.normal(path), _UNITS)


def rebuild(studies: Iterable[Study], path, units) -> str:
    """Writes the pages of the experiments whose units are kept; runs nothing.

    Args:
        studies: experiments; those without a kept unit are left out.
        path: the folder of the pages; created if missing.
        units: see `run`.

    Returns:
        The path of the page about all experiments.

    Raises:
        UserError: if the folder of the pages holds something else; if no unit of the experiments is
            kept, or one is missing.
    """
    path, kept = storage.normal(path), Kept(units)
    there = [study for study in studies if study.name in kept.studies]
    if not there:
        raise UserError(f"{units} has no results of {_MARK[1]}. Name the --units of its runs.")
    mark(path, *_MARK)
    lab = KeptLab(units_folder(path), there, kept)
    for study in there:
        lab.begin(study.name)
        report.write(path, study, records.make_record(study, study.run(lab), lab))
    report.write_index(path)
    return report.index_path(path)


def rewrite(path) -> str:
    """Writes the page about all experiments of a folder again; returns its path.

    Raises:
        UserError: if the folder holds no experiments.
    """
    path = storage.normal(path)
    if not storage.exists(os.path.join(path, _MARK[0])):
        raise UserError(f"{path} holds no experiments of {_MARK[1]}. Name their --workdir.")
    report.write_index(path)
    return report.index_path(path)
