"""Runs pytest on files in the order of the command line, and notes the test that fails.

Usage: `python -P first_failure.py NOTES FILE ... -- ARGUMENT ...`. The JSON file NOTES holds
`running`, the test that started last, and `failed` and `message`, the first failure.
"""

import json
import pathlib
import sys

import pytest


class Notes:
    """A pytest plugin.

    Args:
        path: the JSON file.
        files: the order of the test files.
    """

    def __init__(self, path, files):
        self._path, self._order = pathlib.Path(path), {file: i for i, file in enumerate(files)}
        self._notes = {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        """Orders the tests, after the project's own order."""
        items.sort(key=lambda item: self._order.get(item.nodeid.partition("::")[0], 0))

    def pytest_runtest_logstart(self, nodeid):
        """A test that crashes the process is the last one that was noted."""
        self._note(running=nodeid)

    def pytest_runtest_logreport(self, report):
        """Notes a failure, and how its message begins."""
        if report.failed and "failed" not in self._notes:
            lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
            message = " ".join(line[1:].strip() for line in lines[:3])
            self._note(failed=report.nodeid, message=message[:300])

    def pytest_collectreport(self, report):
        """Notes a file that cannot be imported."""
        self.pytest_runtest_logreport(report)

    def _note(self, **values):
        self._notes |= values
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(self._notes))
        new.replace(self._path)  # At the time-out this process is killed, perhaps right here.


if __name__ == "__main__":
    place = sys.argv.index("--")
    notes, *chosen = sys.argv[1:place]
    plugin = Notes(notes, [file.partition("::")[0] for file in chosen])
    sys.exit(pytest.main([*sys.argv[place + 1 :], *chosen], plugins=[plugin]))
