"""Writes the duration of each test file to `build/test-durations.json`, for developers."""

import collections
import json


class Durations:
    """A pytest plugin; each run replaces the file.

    Args:
        path: the JSON file: name of a test file -> seconds, the slowest first. With several test
            processes the seconds of all are added up.
    """

    def __init__(self, path):
        self._path, self._seconds = path, collections.Counter()

    def pytest_runtest_logreport(self, report):
        """Adds the set-up, the call or the tear-down of a test."""
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self):
        """Writes the file, unless no test ran."""
        if self._seconds:
            seconds = {file: round(total, 1) for file, total in self._seconds.most_common()}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(seconds, indent=1) + "\n")
