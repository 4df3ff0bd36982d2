"""Runs studies in a folder: their units, their pages, and a page about all of them."""

import logging
import os
from collections.abc import Sequence

from pipelines.distribution.signals import interruptible
from pipelines.errors import RunError, UserError
from pipelines.research.paper import records, report
from pipelines.research.paper.lab import Expected, Lab, Listing
from pipelines.research.paper.study import Study
from pipelines.research.sweeps.sweep import no_retracing_warnings
from pipelines.runs.json_file import read_json, write_json
from vit_tf.files import storage

_log = logging.getLogger(__name__)

_MARK, _UNITS = "paper.json", "runs"
_COMMAND = "pipelines.paper"


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
    expected = {
        x.name: Expected(len(listed(x).units), x.minutes and 60 * x.minutes) for x in studies
    }
    with interruptible(), no_retracing_warnings():
        _begin(path)
        lab = Lab(units_folder(path), devices, expected)
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
    if not storage.exists(os.path.join(path, _MARK)):
        raise UserError(f"{path} holds no experiments of {_COMMAND}. Name their --workdir.")
    report.write_index(path)
    return report.index_path(path)


def _begin(path):
    """Marks the folder; raises `UserError` if it holds something else."""
    mark = os.path.join(path, _MARK)
    if storage.exists(mark):
        if read_json(mark).get("command") != _COMMAND:
            raise UserError(f"{mark} was not written by {_COMMAND}. Choose another --workdir.")
        return
    storage.make_folders(path)
    if set(storage.list_names(path)) - {_MARK}:
        raise UserError(f"{path} exists and holds no experiments. Choose another --workdir.")
    write_json(mark, {"command": _COMMAND})
