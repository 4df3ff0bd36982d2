"""Runs studies in a folder: their units, their pages, and a page about all of them."""

import logging
import os
from collections.abc import Sequence

from pipelines.distribution.signals import interruptible
from pipelines.errors import RunError, UserError
from pipelines.research.lab.folder import mark
from pipelines.research.lab.lab import Lab, Stage
from pipelines.research.paper import records, report
from pipelines.research.paper.study import Study
from pipelines.research.paper.units import StudyUnit
from pipelines.runs.json_file import read_json, write_json
from vit_tf.files import storage

_log = logging.getLogger(__name__)

# The file that marks a folder, the command that it names, and what the folder has.
_MARK = ("paper.json", "pipelines.paper", "experiments")
_UNITS, _UNIT = "runs", "unit.json"


class StudyLab(Lab):
    """Runs the units of studies; the stages are the studies, whose cost is in seconds."""

    _title = "{}, run {} of {}"

    def results(self, units: Sequence[StudyUnit]) -> list[dict]:
        """As `Lab.results`; raises `RunError` if a loss is not finite."""
        found = super().results(units)
        for unit, result in zip(units, found, strict=True):
            if "failed" in result:
                raise RunError(f"{unit.folder}: {result['failed']}")
        return found

    def seconds(self) -> float:
        """The time that units took on their last start, of those that ran for this experiment.

        It may use the units of others too, whose time is counted there.
        """
        folders = (os.path.join(self.root, x, _UNIT) for x in self._finished[self._name])
        kept = map(read_json, folders)
        return sum(x["seconds"] for x in kept if x["experiment"] == self._name)

    def _keep(self, unit, result, seconds):
        record = {"settings": unit.settings, "experiment": self._name, "seconds": seconds}
        write_json(os.path.join(self.root, unit.folder, _UNIT), record)
        super()._keep(unit, result, seconds)


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


def run(studies: Sequence[Study], path, devices) -> dict:
    """Runs experiments, or what is left of them, and writes their pages.

    Args:
        studies: the experiments.
        path: the folder; created if missing. Other processes may run experiments there too.
        devices: see `Lab`.

    Returns:
        `{name: the record of the experiment}`, see `records.make_record`.

    Raises:
        UserError: if the folder holds something else.
        RunError: if something that must show does not; the other experiments have run, except
            after a gate.
        Interrupted: after a signal.
    """
    path, made, broken = storage.normal(path), {}, []
    stages = {x.name: Stage(len(listed(x).units), x.minutes and 60 * x.minutes) for x in studies}
    with interruptible():
        mark(path, *_MARK)
        lab = StudyLab(units_folder(path), devices, stages, pace=1.0)
        for study in studies:
            lab.begin(study.name)
            findings = study.run(lab)
            record = records.make_record(study, findings, lab)
            made[study.name] = record
            report.write(path, study, record)
            _log.info("\n" + records.text(study, record))
            failed = [x for x in findings.claims if x.must and not x.shows]
            broken += [f"{study.name}: {claim.text} ({claim.numbers})" for claim in failed]
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
