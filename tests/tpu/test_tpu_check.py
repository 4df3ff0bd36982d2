"""`make tpu-check`: its controls, its table, and one compilation where .venv-tpu exists."""

import sys

import pytest

from tests.tpu import check
from tests.tpu.lowering import evaluation_step


def case(**fields):
    return check.Case(**{"name": "a step", "module": lambda: b"", **fields})


def test_a_step_that_decodes_images_is_refused():
    (decoding,) = (case for case in check.CASES if case.refusal == "DecodeJpeg")
    ((topology, report, is_expected),) = check.outcomes(decoding)
    assert not topology and is_expected
    assert "fails as expected: " in check.row(decoding, topology, report, is_expected)


@pytest.mark.parametrize(
    ("refusal", "report", "outcome"),
    [
        ("", {"seconds": 2.0, "arguments": 3e9, "results": 0, "temporaries": 4e9}, "fits"),
        ("", {"error": "RESOURCE_EXHAUSTED: Ran out"}, "WRONG: RESOURCE_EXHAUSTED: Ran out"),
        ("RESOURCE_EXHAUSTED", {"error": "RESOURCE_EXHAUSTED: a"}, "fails as expected: RESOURCE_"),
        ("RESOURCE_EXHAUSTED", {"error": "INTERNAL: a"}, "WRONG: INTERNAL: a"),
        ("RESOURCE_EXHAUSTED", {"seconds": 1.0}, "WRONG: compiles, but must fail"),
    ],
)
def test_unexpected_outcomes_are_wrong_and_exit_with_1(
    monkeypatch, capsys, refusal, report, outcome
):
    one = case(refusal=refusal, topologies=("v5e:2x2",))
    monkeypatch.setattr(check, "CASES", [one])
    monkeypatch.setattr(check, "missing", lambda: "")
    monkeypatch.setattr(check, "compiled", lambda module, topology: report)
    assert check.main([]) == outcome.startswith("WRONG")
    printed = capsys.readouterr().out
    assert outcome in printed and "Nothing ran on a TPU" in printed
    if "arguments" in report:
        assert "2.0      3.000    0.000        4.000  fits" in printed


def test_a_compilation_without_an_end_is_an_error(monkeypatch):
    monkeypatch.setattr(check, "PYTHON", sys.executable)
    monkeypatch.setattr(check, "_TIMEOUT", 0)
    assert check.compiled(b"", "v5e:2x2") == {"error": "the compilation was ended after 0 s"}


def test_an_environment_without_its_packages_is_missing(monkeypatch, tmp_path):
    (tmp_path / "python").touch()
    monkeypatch.setattr(check, "PYTHON", tmp_path / "python")
    monkeypatch.setattr(check, "INSTALLED", tmp_path / "installed")
    assert "make tpu-check" in check.missing()
    check.INSTALLED.touch()
    assert not check.missing()


@pytest.mark.process
@pytest.mark.skipif(bool(check.missing()), reason=check.missing())
def test_an_evaluation_step_compiles_for_a_core():
    report = check.compiled(evaluation_step(check.vit("model.layers=1")), "v5e:2x2")
    assert "error" not in report and report["device"] == "TPU v5 lite"
    # At least the weights and the images, in a core's memory of 16 GB.
    assert 16 * 12 * 12 * 3 * 4 < report["arguments"] + report["temporaries"] < 1e9
