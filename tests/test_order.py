"""The record of durations has wall and processor time of each test file and orders the files."""

import json
import types

import pytest

from tests import durations


def _report(name, wall, processor):
    return types.SimpleNamespace(nodeid=name, duration=wall, processor_seconds=processor)


@pytest.mark.parametrize("is_first_process", [True, False])
def test_the_first_process_writes_what_all_reports_add_up_to(tmp_path, is_first_process):
    path = tmp_path / "build" / "durations.json"
    plugin = durations.Durations(path if is_first_process else None)
    plugin.pytest_sessionfinish()
    assert not path.exists()
    for report in [
        _report("a.py::test[1]", 1.0, 0.5),
        _report("b.py::test", 4.25, 8.0),
        _report("a.py::test[2]", 1.5, 0.25),
        types.SimpleNamespace(nodeid="a.py::test[3]", duration=0.0),  # Its worker died.
    ]:
        plugin.pytest_runtest_logreport(report)
    plugin.pytest_sessionfinish()
    assert path.exists() == is_first_process
    if is_first_process:
        rows = json.loads(path.read_text())
        assert list(rows.items()) == [("b.py", [4.2, 8.0]), ("a.py", [2.5, 0.8])]


def test_processor_time_of_programs_counts(monkeypatch):
    before = durations.processor_seconds()
    more = durations.fork_server.ended_seconds + 1000
    monkeypatch.setattr(durations.fork_server, "ended_seconds", more)
    assert durations.processor_seconds() >= before + 1000


def test_order_of_files(tmp_path, monkeypatch):
    table = tmp_path / "durations.json"
    table.write_text('{"long.py": [9, 1], "short.py": [2, 4]}')
    monkeypatch.setattr(durations, "TABLE", table)
    files = ["short.py", "new.py", "long.py"]
    assert durations.in_order(files) == ["new.py", "long.py", "short.py"]
    orders = {tuple(durations.in_order(files, seed)) for seed in "abcdefgh"}
    assert len(orders) > 1 and all(sorted(order) == sorted(files) for order in orders)
    assert durations.in_order(files, "a") == durations.in_order(files[::-1], "a")
