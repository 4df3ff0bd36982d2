"""Verifies published weights one after another, and keeps the records of those that pass."""

import logging
import os

from pipelines.config.fields import check_local
from pipelines.errors import RunError, UserError, counted
from pipelines.research.verification.verify import summary, verify
from pipelines.runs.json_file import read_json, write_json
from vit_tf.pretrained.download import DownloadError
from vit_tf.pretrained.records import find_record

_log = logging.getLogger(__name__)


def run(names, output):
    """Verifies weights; a failure of one does not keep the others from it.

    Args:
        names: names of weights, see `vit_tf.list_weights`.
        output: JSON file, an object from names to records, which is made or added to.

    Raises:
        UserError: if there is no such name, the output cannot be used, or a file cannot be had.
        RunError: if a file is not as published, or several failed.
    """
    if not names:
        raise UserError(
            "Name weights, such as sam/ViT-B_32; vit_tf.list_weights() has the names, and any file "
            "of AugReg can be named."
        )
    records = [_record(name) for name in dict.fromkeys(names)]
    check_local("--output", output)
    kept = read_json(output) if os.path.lexists(output) else {}
    failures = []
    for record in records:
        _log.info(record.name)
        try:
            verification = verify(record)
        except DownloadError as error:
            failures.append(UserError(str(error)))
            _log.info(f"FAIL {record.name}: {error}")
            continue
        if verification.problems:
            problems = summary(verification.problems)
            failures.append(RunError(f"{record.name} is not as published: {problems}."))
            _log.info(f"FAIL {failures[-1]}")
            continue
        kept[record.name] = verification.record
        os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
        write_json(output, dict(sorted(kept.items())))
        _log.info(f"PASS {record.name}, recorded in {output}")
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise RunError(
            f"{len(failures)} of {counted(len(records), 'file')} failed, first: {failures[0]}"
        )


def _record(name):
    try:
        return find_record(name)
    except ValueError as error:
        raise UserError(str(error)) from None
