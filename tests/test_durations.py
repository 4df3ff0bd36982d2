"""The record of durations holds the seconds of each test file."""

import json
import types

from tests.durations import Durations


def test_durations(tmp_path):
    path = tmp_path / "build" / "durations.json"
    durations = Durations(path)
    durations.pytest_sessionfinish()
    assert not path.exists()
    for name, seconds in [("a.py::test[1]", 1.0), ("b.py::test", 4.25), ("a.py::test[2]", 1.5)]:
        durations.pytest_runtest_logreport(types.SimpleNamespace(nodeid=name, duration=seconds))
    durations.pytest_sessionfinish()
    assert list(json.loads(path.read_text()).items()) == [("b.py", 4.2), ("a.py", 2.5)]
