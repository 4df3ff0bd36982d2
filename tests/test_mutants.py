"""The faults of the table can be applied, and a run of them tells found faults from others."""

import contextlib
import json
import pathlib
import signal
import subprocess

import pytest

from tests.mutants import copies, processes
from tests.mutants.faults_cpp import CPP
from tests.mutants.faults_python import PYTHON
from tests.mutants.report import report
from tests.mutants.run import Result, Settings, run_all, run_fault
from tests.mutants.table import Fault

ROOT = pathlib.Path(__file__).parent.parent


def test_each_fault_can_be_applied():
    assert [problem for fault in (*PYTHON, *CPP) if (problem := fault.problem(ROOT))] == []


def test_there_are_40_faults_in_python_and_20_in_cpp_and_no_two_are_equal():
    assert [fault.is_cpp for fault in (*PYTHON, *CPP)] == [False] * 40 + [True] * 20
    assert len({*PYTHON, *CPP}) == 60


@pytest.mark.parametrize(
    "path, old, new, problem",
    [
        ("none.py", "a", "b", "there is no such file"),
        ("a.py", "b", "c", "there 0 times"),
        ("a.py", "1", "2", "there 2 times"),
        ("a.py", "x = 1", "x = 1", "equals the old text"),
        ("a.py", "x = 1", "x =", "is no Python"),
        ("a.py", "x = 1", "x = 2", None),
    ],
)
def test_what_cannot_be_applied_is_named(tmp_path, path, old, new, problem):
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    found = Fault(path, "wrong constant", old, new).problem(tmp_path)
    assert found is None if problem is None else problem in found and path in found


@pytest.mark.parametrize(
    "code, notes, outcome, test",
    [
        (0, {"running": "t.py::b"}, "survived", ""),
        (1, {"failed": "t.py::a", "message": "E"}, "killed", "t.py::a"),
        (2, {"failed": "t.py", "message": "ImportError"}, "killed", "t.py"),
        (2, {"running": "t.py::a"}, "error", ""),
        (4, {}, "error", ""),
        (5, {}, "survived", ""),
        (None, {"running": "t.py::a"}, "survived", "t.py::a"),
        (-signal.SIGSEGV, {"running": "t.py::a"}, "killed", "t.py::a"),
        (-signal.SIGKILL, {"running": "t.py::a"}, "error", ""),
    ],
)
def test_outcome_of_an_exit_code_of_pytest(tmp_path, code, notes, outcome, test):
    class Copy:
        notes, output = tmp_path / "notes.json", tmp_path / "output.txt"

        def with_fault(self, fault):
            return contextlib.nullcontext(0.0)

        def run(self, *arguments, timeout):
            assert timeout == 90
            self.output.write_text("")
            self.notes.write_text(json.dumps(notes))
            return code

    settings = Settings(root=tmp_path, seconds=90, arguments=())
    result = run_fault(Copy(), Fault("a.py", "wrong constant", "1", "2"), ["t.py"], settings)
    assert (result.outcome, result.test) == (outcome, test)


def test_table_and_lists_of_a_report():
    results = {
        Fault("vit_tf/a.py", "off by one", "1", "2"): Result(outcome="killed"),
        Fault("vit_tf/layers/b.py", "lost seed", "3", "4"): Result(
            outcome="survived", message="time-out", test="t.py::b"
        ),
        Fault("vit_tf/layers/c.py", "wrong rounding", "5", "6", "it is not used"): Result(
            outcome="survived"
        ),
        Fault("pipelines/d.py", "removed check", "7", "8"): Result(
            outcome="error", message="exit code 4"
        ),
    }
    assert report(results).splitlines() == [
        "module         killed  surviving",
        "pipelines/d         0          0",
        "vit_tf/a            1          0",
        "vit_tf/layers       0          1",
        "all                 1          1",
        "killed: 1 of 3 faults",
        "",
        "survivors:",
        "  vit_tf/layers/b.py: lost seed (time-out; t.py::b)",
        "    '3'",
        "    -> '4'",
        "",
        "errors:",
        "  pipelines/d.py: removed check (exit code 4; no test)",
        "    '7'",
        "    -> '8'",
        "",
        "without effect, not counted:",
        "  vit_tf/layers/c.py: wrong rounding: it is not used",
    ]


FILES = {
    "product.py": "checked = 1\nnot_read = 2\n",
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    "tests/changed.py": (
        "NOT_CHOSEN, PACKAGES = (), ('tests',)\n"
        "def tests_for(path, sources):\n"
        "    return ['tests/test_slow.py', 'tests/test_fast.py']\n"
    ),
    "tests/durations.json": '{"tests/test_slow.py": [9.0, 1.0], "tests/test_fast.py": [0.5, 2.0]}',
    "tests/test_fast.py": "import product\ndef test_value():\n    assert product.checked == 1\n",
    "tests/test_slow.py": "import product\ndef test_value():\n    assert product.checked == 1\n",
}
FAULTS = [
    Fault("product.py", "not read", "not_read = 2", "not_read = 0"),
    Fault("product.py", "wrong constant", "checked = 1", "checked = 0"),
]


@pytest.fixture
def settings(tmp_path):
    """The settings for a small checkout, and its files."""
    root = tmp_path / "checkout"
    (root / "tests").mkdir(parents=True)
    for name, text in FILES.items():
        (root / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", root], check=True)
    return Settings(root=root, seconds=600, arguments=())


@pytest.mark.process
def test_a_run_and_another_one_that_continues(settings, tmp_path, monkeypatch):
    lines = []
    found = run_all(FAULTS, settings, tmp_path / "mutants", 1, lines.append)
    assert [(found[fault].outcome, found[fault].test) for fault in FAULTS] == [
        ("survived", ""),
        ("killed", "tests/test_fast.py::test_value"),
    ]
    assert lines[0] == "0 of 2 faults have a result already"
    assert lines[2].startswith("[2/2] killed product.py: wrong constant")
    assert (settings.root / "product.py").read_text() == FILES["product.py"]

    monkeypatch.setattr(processes, "run", None)
    assert run_all(FAULTS, settings, tmp_path / "mutants", 1, lines.append) == found


def test_a_test_that_fails_without_the_fault_too_shows_nothing(settings, tmp_path, monkeypatch):
    def fail(copy, program, notes, *arguments, timeout):
        notes.write_text(json.dumps({"failed": "tests/test_fast.py::test_value", "message": "E"}))
        return 1

    monkeypatch.setattr(copies.Copy, "run", fail)
    found = run_all(FAULTS, settings, tmp_path / "mutants", 1, str)
    assert [result.outcome for result in found.values()] == ["error", "error"]
    assert {result.message for result in found.values()} == {"fails without the fault too"}
