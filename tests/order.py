"""Measures the wall time and the processor time of each test file.

Each run writes what it measured to `build/test-durations.json`. `tests/durations.json` is the table
of a run of everything; `tests/conftest.py` starts the files with the longest time first.
"""

import collections
import json
import math
import pathlib
import random
import resource

import pytest

from tests import fork_server

TABLE = pathlib.Path(__file__).parent / "durations.json"


def in_order(files, seed=None):
    """The test files in the order in which they start: by `tests/durations.json`, new files first.

    A long file that starts last would run alone while the other workers are idle.

    Args:
        files: paths below the checkout.
        seed: a string, for a random order; None for the order by wall time.
    """
    if seed is not None:
        return random.Random(seed).sample(sorted(files), len(files))
    table = json.loads(TABLE.read_text())
    return sorted(files, key=lambda file: -table.get(file, [math.inf])[0])


def processor_seconds():
    """Processor time of this process and of the ended programs that it started."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return fork_server.ended_seconds + sum(usage.ru_utime + usage.ru_stime for usage in usages)


class Durations:
    """A pytest plugin. Register it in every test process; only the first one writes the file.

    Args:
        path: the JSON file: name of a test file -> `[wall, processor]` in seconds, the longest wall
            time first; of all test processes together. None in a worker of pytest-xdist, whose
            reports carry its times to the first process.
    """

    def __init__(self, path):
        self._path, self._seconds = path, collections.defaultdict(lambda: [0.0, 0.0])
        self._last = processor_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        """Adds the processor time since the last report to the report."""
        report = yield
        now = processor_seconds()
        report.processor_seconds, self._last = now - self._last, now
        return report

    def pytest_runtest_logreport(self, report):
        """Adds the set-up, the call or the tear-down of a test.

        pytest-xdist reports the test in which a worker died itself: no worker measured that.
        """
        seconds = self._seconds[report.nodeid.partition("::")[0]]
        seconds[0] += report.duration
        seconds[1] += getattr(report, "processor_seconds", 0.0)

    def pytest_sessionfinish(self):
        """Writes the file, unless no test ran."""
        if self._path and self._seconds:
            rows = sorted(self._seconds.items(), key=lambda row: -row[1][0])
            lines = (f" {json.dumps(file)}: [{wall:.1f}, {cpu:.1f}]" for file, (wall, cpu) in rows)
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
