"""The search of `plan --measure`: with a machine of formulas, and one real process of each kind."""

import dataclasses
import json
import re
import sys

import pytest

from pipelines.errors import RunError, UserError
from pipelines.research.planning import measured_report, measuring
from tests.pipelines.process import run_module
from vit_tf import cost

TINY = ("model.name=ViT-Ti/16", "model.image_size=16", "model.layers=1")
REQUEST = measuring.MeasuredBatch(
    assignments=TINY, images=2, passes="inference", timings=3, pause=0.01, classes=10
)


@pytest.mark.parametrize("largest", [0, 1, 2, 3, 7, 8, 9, 63, 64, 99, 100, 1000])
@pytest.mark.parametrize("most", [1, 64, 100])
def test_doubling_then_bisection(largest, most):
    tried = []

    def fits(images, doubling):
        tried.append((images, doubling))
        return images <= largest

    assert measuring.largest_that_fits(fits, most) == min(largest, most)
    numbers = [images for images, _ in tried]
    assert len(set(numbers)) == len(numbers) <= 2 * max(1, most).bit_length() + 1
    assert max(numbers) <= most
    doublings = [images for images, doubling in tried if doubling]
    assert doublings == [min(2**power, most) for power in range(len(doublings))]
    assert numbers[: len(doublings)] == doublings


class Machine:
    """A machine where a batch takes 1 GB and 0.1 GB for each image; it has 3 GB beside the model.

    Its speed per image is highest with 8 images.
    """

    def __init__(self):
        self.requests = []

    def measure(self, request):
        self.requests.append(request)
        added = 10**9 + 10**8 * request.images
        if added > 3 * 10**9:
            return None
        best = request.images * (0.1 + 0.01 * abs(request.images - 8))
        seconds = [1.5 * best, best, 1.25 * best][: request.timings]
        return {"built": 5 * 10**8, "peak": 5 * 10**8 + added, "seconds": seconds}


def test_a_search_of_one_model():
    machine = Machine()
    limited = dataclasses.replace(REQUEST, most_bytes=3_500_000_000)
    record = measuring.search(limited, 4096, 2, True, machine.measure)
    assert record["largest_batch"] == 20
    assert [row["images"] for row in record["batches"]] == [1, 2, 4, 8, 16, 20]
    assert all(bool(row["seconds"]) == (row["images"] <= 16) for row in record["batches"])
    assert {request.timings for request in machine.requests if request.images > 16} == {0, 3}
    assert (record["fastest_batch"], record["spread"]) == (8, pytest.approx(0.5))
    assert record["images_per_second_per_core"] == pytest.approx(8 / 0.8 / 2)
    config = REQUEST.experiment().model_config(10)
    image = 4 * 3 * 16 * 16  # The caller keeps the images.
    planned = cost.activation_bytes(config, 20, training=False) + 20 * image
    assert record["planned_bytes"] == planned and record["measured_bytes"] == 3 * 10**9
    assert record["error"] == pytest.approx(planned / 3e9 - 1)
    largest = record["planned_largest_batch"]
    live = [(largest + more) * planned // 20 for more in (0, 1)]
    assert live[0] <= 3_500_000_000 - cost.weight_bytes(config) < live[1]
    # Between 8 and 20 images, without the 1e9 bytes that any number takes.
    assert record["measured_bytes_per_image"] == pytest.approx(1e8)
    assert record["planned_bytes_per_image"] == pytest.approx(planned / 20)


def test_a_model_that_never_fits():
    record = measuring.search(REQUEST, 4096, 2, True, lambda request: None)
    assert record.pop("largest_batch") == 0 and record.pop("batches") == []
    assert set(record.values()) == {None}


def test_training_is_planned_as_runs_are():
    """Weights, gradients and AdamW's two are four times the weights, here without clipping."""
    training = dataclasses.replace(
        REQUEST, passes="training", assignments=(*TINY, "optimizer.clip_norm=none"), images=4
    )
    weights, added = training.planned(compiled=True)
    config = training.experiment().model_config(10)
    activations = sum(cost.activation_bytes(config, 4, training=kept) for kept in (True, False))
    assert weights == cost.weight_bytes(config) and added == 3 * weights + activations
    limit = 4 * weights + 10 * activations // 4
    assert dataclasses.replace(training, most_bytes=limit).planned_largest(True) == 10
    assert dataclasses.replace(training, most_bytes=limit - 1).planned_largest(True) == 9
    assert dataclasses.replace(training, most_bytes=weights).planned_largest(True) == 0


SETTINGS = measuring.Search(
    **{
        "assignments": (),
        "passes": "inference",
        "dtype": "float32",
        "memory_gb": 3.5,
        "most_images": 64,
    },
    **{"pause": 0.0, "device": "CPU", "cores": 2, "compiled": True, "timings": 3},
)


def test_all_models_and_sizes_with_progress_charts_and_numbers(tmp_path, logged):
    records = []

    def note(record):
        records.append(len(record["rows"]))
        measured_report.write_measured(record, tmp_path / "out")

    def measure(request):
        if any("R50x1" in text for text in request.assignments):
            return None
        return Machine().measure(request)

    models, sizes = ["ViT-B/32", "BiT-R50x1"], [64, 128]
    record = measuring.search_all(models, sizes, SETTINGS, note, measure=measure)
    assert records == [1, 2, 3, 4]
    assert json.loads((tmp_path / "out" / "measured.json").read_text()) == record
    rows = [(row["model"], row["image_size"], row["largest_batch"]) for row in record["rows"]]
    assert rows == [("ViT-B/32", 64, 20), ("ViT-B/32", 128, 20), ("BiT-R50x1", 64, 0)] + [
        ("BiT-R50x1", 128, 0)
    ]
    assert record["memory_gb"] == 3.5 and record["cores"] == 2
    text = "\n".join(logged)
    assert "ViT-B/32 at 128 x 128, 2 of 4:" in text and "ETA of the search 0:00:" in text
    planned = r"planned \d\.\d\d GB"
    assert re.search(rf"8 images: 1\.80 GB beside the model, {planned}, 10\.0 images/s", text)
    assert "32 images: more than the memory" in text
    header, row, *_ = measured_report.measured_text(record).splitlines()[1:]
    assert (
        header.split()[:2] == ["model", "size"] and row.split()[:4] == "ViT-B/32 64 5.0 8".split()
    )
    assert row.split()[4:8] == [
        "50.0",
        "%",
        "20",
        f"{record['rows'][0]['planned_largest_batch']:,}",
    ]
    for name in ("images_per_second.png", "largest_batch.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def test_a_search_goes_on_where_it_was_interrupted(tmp_path):
    def write(record):
        measured_report.write_measured(record, tmp_path)
        raise KeyboardInterrupt

    assert measured_report.known_rows(tmp_path, SETTINGS) == []
    arguments = ["ViT-B/32"], [64, 128], SETTINGS
    with pytest.raises(KeyboardInterrupt):
        measuring.search_all(*arguments, write, measure=Machine().measure)
    known = measured_report.known_rows(tmp_path, SETTINGS)
    machine = Machine()
    record = measuring.search_all(*arguments, lambda record: None, known, machine.measure)
    assert {text for each in machine.requests for text in each.assignments} == {
        *("model.name=ViT-B/32", "model.image_size=128")
    }
    assert record == measuring.search_all(
        *arguments, lambda record: None, measure=Machine().measure
    )
    with pytest.raises(UserError, match="measured.json holds a search with other settings"):
        measured_report.known_rows(tmp_path, dataclasses.replace(SETTINGS, cores=4))


def test_nothing_runs_if_a_model_cannot_have_a_size():
    with pytest.raises(UserError, match="image_size"):
        measuring.search_all(
            ["ViT-B/32"], [64, 16], SETTINGS, None, measure=lambda request: pytest.fail("it ran")
        )


def test_a_cpu_needs_a_limit():
    with pytest.raises(UserError, match="Set --memory_gb"):
        measuring.this_device(None)
    assert measuring.this_device(4)["device"] == "CPU"


@pytest.mark.parametrize(
    ("end", "fits"),
    [
        ("print('TensorFlow says a line'); print('{\"peak\": 3}')", True),
        (f"sys.exit({measuring.OUT_OF_MEMORY})", False),
        ("os.kill(os.getpid(), 9)", False),
        ("print('what():  std::bad_alloc', file=sys.stderr); os.abort()", False),
    ],
)
def test_how_a_process_ends(monkeypatch, end, fits):
    command = [sys.executable, "-I", "-S", "-c", f"import os, sys; {end}"]
    monkeypatch.setattr(measuring, "tied", lambda started: command)
    assert measuring.attempt(REQUEST) == ({"peak": 3} if fits else None)


def test_a_process_that_fails_for_another_reason(monkeypatch):
    command = [sys.executable, "-I", "-S", "-c", "raise ValueError('no model')"]
    monkeypatch.setattr(measuring, "tied", lambda started: command)
    with pytest.raises(RunError, match="model.layers=1 with 2 images.*code 1: ValueError: no mod"):
        measuring.attempt(REQUEST)


def measured(request, tmp_path):
    text = json.dumps(dataclasses.asdict(request))
    return run_module("pipelines.research.planning.measure_main", text, cwd=tmp_path)


@pytest.mark.process
@pytest.mark.parametrize(
    "passes", ["inference", pytest.param("training", marks=pytest.mark.heavy("training"))]
)
def test_a_real_measurement(tmp_path, passes):
    """Its memory is more than that of the images, its times are times."""
    request = dataclasses.replace(REQUEST, passes=passes, most_bytes=4 * 10**9)
    result = measured(request, tmp_path)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    assert 0 < answer["built"] < answer["peak"] < 4 * 10**9
    assert len(answer["seconds"]) == 3 and all(0 < second < 10 for second in answer["seconds"])


@pytest.mark.process
def test_a_batch_that_does_not_fit(tmp_path):
    """A million images of 3 KB are 3 GB."""
    request = dataclasses.replace(REQUEST, images=1_000_000, most_bytes=10**9)
    result = measured(request, tmp_path)
    assert result.returncode == measuring.OUT_OF_MEMORY, result.stderr
