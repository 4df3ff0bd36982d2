"""The folder of a lab: which command it belongs to, and whether settings have changed in it."""

import os
import time

from pipelines.config.experiment import lasting_differences
from pipelines.errors import InUseError, UserError
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.lock import LOCKS, only_writer
from vit_tf.files import storage

OTHER_WORKDIR = "Choose another --workdir."
# Two starts at the same time wait for each other: tries, and seconds between them.
_TRIES, _RETRY = 50, 0.1


def read_mark(path, name, command, what) -> dict | None:
    """The JSON file that says which command a folder belongs to; None in an empty folder.

    Args:
        path: the folder.
        name: of the file.
        command: what its "command" is.
        what: what the folder holds, such as "sweep".

    Raises:
        UserError: if the folder holds something else.
    """
    file = os.path.join(path, name)
    if storage.exists(file):
        record = read_json(file)
        if record.get("command") != command:
            raise UserError(f"{file} was not written by {command}. {OTHER_WORKDIR}")
        return record
    # A start that was killed may have left an unfinished file.
    names = storage.list_names(path) if storage.exists(path) else ()
    if not {x for x in names if not x.startswith(f"{name}.")} <= LOCKS:
        raise UserError(f"{path} exists and holds no {what}. {OTHER_WORKDIR}")
    return None


def mark(path, name, command, what, more=()) -> dict:
    """Marks a folder as that of a command, unless it is; returns what its file says.

    Args:
        path, name, command, what: as for `read_mark`.
        more: what a new file says besides its command, as a dictionary.

    Raises:
        UserError: if the folder holds something else.
    """
    for left in reversed(range(_TRIES)):
        try:
            with only_writer(path):
                record = read_mark(path, name, command, what)
                if record is None:
                    record = {"command": command, **dict(more)}
                    write_json(os.path.join(path, name), record)
                return record
        except InUseError:  # Another process does the same at this moment.
            if not left:
                raise
            time.sleep(_RETRY)
    raise AssertionError


def changed_settings(before, now) -> list[str]:
    """A line for each setting in which an experiment differs from that of its earlier start."""
    changed = lasting_differences(before, now)
    old, new = before.train.eval_batches, now.train.eval_batches
    if old != new:  # A run may change it, but results are compared.
        changed.append(f"train.eval_batches: {old} -> {new}")
    return changed
