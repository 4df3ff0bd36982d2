"""The faults of the table can be applied, and a run of them tells found faults from others."""

import pathlib
import subprocess

import pytest

from tests.mutants import processes
from tests.mutants.faults_cpp import CPP
from tests.mutants.faults_python import PYTHON
from tests.mutants.report import report
from tests.mutants.run import Settings, run_all
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


FILES = {
    ".gitignore": "__pycache__/\n",
    "product.py": "checked = 1\nnot_read = 2\n",
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    "tests/changed.py": (
        "NOT_CHOSEN, PACKAGES = (), ('tests',)\n"
        "def tests_for(path, sources):\n"
        "    return ['tests/test_slow.py', 'tests/test_fast.py']\n"
    ),
    "tests/durations.json": '{"tests/test_slow.py": 90}',
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
    text = report(found)
    assert "killed: 1 of 2 faults" in text and "  product.py: not read" in text

    monkeypatch.setattr(processes, "run", None)
    assert run_all(FAULTS, settings, tmp_path / "mutants", 1, lines.append) == found
