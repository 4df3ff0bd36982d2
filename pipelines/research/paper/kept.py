"""Results of units beside their weights: a line of JSON for each, in a file for each study.

They are small enough for a repository. A page can be made from them again, and another machine goes
on where they end.
"""

import json
import os

from pipelines.errors import UserError
from pipelines.research.lab.lab import RESULT
from pipelines.research.lab.unit import is_result
from pipelines.runs.json_file import read_json
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

# What a unit's folder has besides `RESULT`: settings, times, versions.
UNIT = "unit.json"


class Kept:
    """The kept results of a folder.

    Args:
        path: the folder; None keeps nothing.

    Raises:
        UserError: if a file is damaged.
    """

    def __init__(self, path):
        self._path, self._lines = path and storage.normal(path), {}
        if path is None or not storage.exists(self._path):
            return
        for name in sorted(storage.list_names(self._path)):
            file = os.path.join(self._path, name)
            if name.endswith(".jsonl"):
                self._lines |= {record["folder"]: record for record in _read(file)}

    def get(self, folder) -> dict | None:
        """The record of a unit: "folder", "result", and what its `UNIT` has; None without one."""
        return self._lines.get(folder)

    @property
    def studies(self) -> set[str]:
        """The names of the studies that units ran for."""
        return {record["experiment"] for record in self._lines.values()}

    def add(self, root, folder):
        """Adds a unit that has run below `root`, unless it is there."""
        if self._path and folder not in self._lines:
            unit, result = (read_json(os.path.join(root, folder, x)) for x in (UNIT, RESULT))
            self._lines[folder] = {"folder": folder, "result": result, **unit}

    def write(self, study):
        """Writes the file of a study, whose units are those that ran for it."""
        own = [x for x in self._lines.values() if x["experiment"] == study]
        if not self._path or not own:
            return
        storage.make_folders(self._path)
        lines = [json.dumps(x, sort_keys=True) for x in sorted(own, key=lambda x: x["folder"])]
        data = "\n".join([*lines, ""]).encode()
        write_atomically(os.path.join(self._path, f"{study}.jsonl"), lambda file: file.write(data))


def _read(path):
    try:
        data = b"".join(storage.chunks(path))
        records = [json.loads(line) for line in data.decode().splitlines()]
        valid = all(is_result(x["result"]) and x["folder"] and x["experiment"] for x in records)
    except (ValueError, LookupError, TypeError):
        valid = False
    if not valid:
        raise UserError(f"{path} is damaged. Restore it, or delete it: its units run again.")
    return records
