"""`make tpu-check`: its controls, its table, the sums over cores, and one compilation."""

import math
import sys

import pytest

import vit_tf
from tests.pipelines.families import axial_resnet
from tests.tpu import check
from tests.tpu.all_reduces import summed_bytes
from tests.tpu.lowering import CORES, evaluation_step, training_step

COMPILED = {
    "seconds": 2.0,
    "arguments": 3e9,
    "results": 2.5e9,
    "aliased": 2e9,
    "temporaries": 4e9,
    "all_reduces": ["%a = f32[250000000]{0} all-reduce(%b), to_apply=%add"],
}


def case(**fields):
    return check.Case(**{"name": "a step", "module": lambda: b"", **fields})


def test_a_step_that_decodes_images_is_refused():
    (decoding,) = (case for case in check.CASES if case.refusal == "DecodeJpeg")
    ((topology, report, wrong),) = check.outcomes(decoding)
    assert not topology and not wrong
    assert "fails as expected: " in check.row(decoding, topology, report, wrong)


@pytest.mark.parametrize(
    ("fields", "report", "outcome"),
    [
        ({}, COMPILED, "fits"),
        ({"parameters": 249_999_999}, COMPILED, "fits"),
        (
            {"parameters": 250_000_000},
            COMPILED,
            "WRONG: sums 1,000,000,000 bytes, expected 1,000,000,004",
        ),
        ({}, {"error": "RESOURCE_EXHAUSTED: Ran out"}, "WRONG: RESOURCE_EXHAUSTED: Ran out"),
        ({"refusal": "RAN"}, {"error": "RAN out"}, "fails as expected: RAN out"),
        ({"refusal": "RAN"}, {"error": "INTERNAL: a"}, "WRONG: INTERNAL: a"),
        ({"refusal": "RAN"}, COMPILED, "WRONG: compiles, but must fail"),
        ({}, {"given": 1800}, "WRONG: not finished in 1,800 s"),
        ({"experiment": check.vit()}, {"given": 1800}, "not finished in 1,800 s"),
    ],
)
def test_unexpected_outcomes_are_wrong_and_exit_with_1(
    monkeypatch, capsys, fields, report, outcome
):
    one = case(**fields, topologies=("v5e:2x4",))
    monkeypatch.setattr(check, "CASES", [one])
    monkeypatch.setattr(check, "missing", lambda: "")
    monkeypatch.setattr(check, "compiled", lambda module, topology: report)
    assert check.main([]) == outcome.startswith("WRONG")
    printed = capsys.readouterr().out
    assert f"  {outcome}\n" in printed and "Nothing ran on a TPU" in printed
    unfinished = "given" in report and "experiment" in fields
    assert f"wrong outcomes, {int(unfinished)} not finished" in printed
    if report is COMPILED:
        cells = next(line for line in printed.splitlines() if "a step" in line).split()
        assert cells[3:9] == ["2", "3.000", "4.000", "7.500", "1.000", "1"]


def test_memory_of_a_core_is_that_of_the_plan():
    """ViT-B/16 (docs/paper.md A.11, with pre-logits) on 8 devices of each topology."""
    (large,) = (case for case in check.CASES if case.name == "train ViT-B/16, bf16, 64 images")
    assert large.parameters == 86_567_656 + 768 * 768 + 768
    v5e, v3 = (check.planned_memory(large.experiment, topology) for topology in check.TOPOLOGIES)
    # Weights, gradients, two moments, and weights in 16 bits; activations are the larger part.
    assert v5e == v3 > 2 * 18 * large.parameters
    row = check.row(large, "v3:2x2", COMPILED, "")
    assert f" 7.500   {v3 / 1e9:.3f} " in row


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("  %all-reduce.1 = f32[] all-reduce(%a), channel_id=1", 4),
        ("ROOT %s = f32[3,5]{1,0:T(8,128)} all-reduce(%a), to_apply=%add", 60),
        ("%s = (bf16[8]{0}, f32[2,2]{1,0}) all-reduce-start(%a, %b)", 32),
        ("%s = f32[8]{0} all-reduce-done(%a)", 0),
        ("%s = f32[8]{0} add(f32[8]{0} %all-reduce.1, f32[8]{0} %b)", 0),
    ],
)
def test_bytes_of_an_all_reduce(line, size):
    assert summed_bytes([line]) == size


def all_reduces(step, experiment):
    """The lines with the all-reduces of a step, before it is compiled."""
    text = step(experiment, stage="hlo")
    return [line for line in text.splitlines() if " all-reduce(" in line]


@pytest.mark.parametrize("make", [check.vit, check.half], ids=["one batch", "micro-batches"])
def test_a_training_step_sums_each_gradient_once(make):
    experiment = make("model.layers=1")
    lines = all_reduces(training_step, experiment)
    gradients = 4 * vit_tf.cost.parameters(experiment.model_config(10))
    assert summed_bytes(lines) == gradients + 4  # and the loss
    assert all("replica_groups={{0,1,2,3,4,5,6,7}}" in line for line in lines)


def filled_bytes(experiment):
    """Bytes of all weights, each filled up to as many equal slices as there are cores."""
    model = vit_tf.create_model(experiment.model_config(10))
    sizes = [math.prod(variable.shape) for variable in model.trainable_variables]
    return 4 * sum(-(-size // CORES) * CORES for size in sizes)


def test_a_step_on_slices_sums_gradients_and_weights():
    """Each as many rows as there are cores, with less than a row of zeros at its end."""
    experiment = check.shared("model.layers=1")
    text = training_step(experiment, stage="hlo")
    lines = [line for line in text.splitlines() if " all-reduce(" in line]
    assert summed_bytes(lines) == 2 * filled_bytes(experiment) + 8  # Loss and norm.
    assert all("replica_groups={{0,1,2,3,4,5,6,7}}" in line for line in lines)


def test_statistics_of_the_batch_are_summed_too():
    experiment = axial_resnet()
    gradients = 4 * vit_tf.cost.parameters(experiment.model_config(10))
    lines = all_reduces(training_step, experiment)
    assert summed_bytes(lines) > gradients + 4


def test_a_compilation_without_an_end_is_not_finished(monkeypatch):
    monkeypatch.setattr(check, "PYTHON", sys.executable)
    monkeypatch.setattr(check, "_TIMEOUT", 0)
    assert check.compiled(b"", "v5e:2x4") == {"given": 0}


def test_an_environment_without_its_packages_is_missing(monkeypatch, tmp_path):
    (tmp_path / "python").touch()
    monkeypatch.setattr(check, "PYTHON", tmp_path / "python")
    monkeypatch.setattr(check, "INSTALLED", tmp_path / "installed")
    assert "make tpu-check" in check.missing()
    check.INSTALLED.touch()
    assert not check.missing()


@pytest.mark.process
@pytest.mark.skipif(bool(check.missing()), reason=check.missing())
def test_a_training_step_compiles_for_eight_cores():
    experiment = check.vit("model.layers=1")
    report = check.compiled(training_step(experiment), "v5e:2x4")
    assert "error" not in report and report["device"] == "TPU v5 lite" and report["cores"] == 8
    gradients = 4 * vit_tf.cost.parameters(experiment.model_config(10))
    assert summed_bytes(report["all_reduces"]) == gradients + 4
    # Weights, two moments and their average; the variables are overwritten.
    assert 4 * gradients < report["arguments"] < 1e9
    assert report["aliased"] > 4 * gradients


@pytest.mark.process
@pytest.mark.skipif(bool(check.missing()), reason=check.missing())
def test_a_step_on_slices_compiles_for_eight_cores():
    experiment = check.shared("model.layers=1")
    report = check.compiled(training_step(experiment), "v5e:2x4")
    assert "error" not in report and report["cores"] == 8
    assert summed_bytes(report["all_reduces"]) == 2 * filled_bytes(experiment) + 8


@pytest.mark.process
@pytest.mark.skipif(bool(check.missing()), reason=check.missing())
def test_an_evaluation_step_compiles_for_eight_cores():
    report = check.compiled(evaluation_step(check.vit("model.layers=1")), "v5e:2x4")
    assert "error" not in report
    # A few sums of metrics.
    assert 0 < summed_bytes(report["all_reduces"]) < 100
