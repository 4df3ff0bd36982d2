"""The numbers of `benchmarks.peers`: choice of rows, peaks and CPUs, ratios, times, plot."""

import itertools
import time
import xml.etree.ElementTree

import numpy as np
import pytest

from benchmarks.peers import load, peak, plot, table, train, worker
from benchmarks.peers.machine import one_cpu_per_core
from benchmarks.peers.systems import (
    EXPORTS,
    ISAS,
    SYSTEMS,
    UNITS,
    choose_peak,
    chosen_systems,
    environment,
)

PEAKS = {"avx2": 2e9, "avx512": 4e9, "avx512_bf16": 3e9, "amx_bf16": 50e9}


def test_names_choose_rows():
    assert set(chosen_systems(["openvino", "pytorch-bf16"])) == {"openvino", "pytorch-bf16"}
    assert set(chosen_systems(["ours"])) == {f"ours-{name}" for name in EXPORTS}
    assert chosen_systems(["all"]) == SYSTEMS
    by_default = chosen_systems(None)
    assert "onnxruntime" in by_default and "pytorch-compile" not in by_default
    with pytest.raises(ValueError, match="openvimo.*ours-fused.*openvino"):
        chosen_systems(["openvino", "openvimo"])


@pytest.mark.parametrize(
    "dtype, isa, unit",
    [
        ("float32", None, "avx512"),
        ("float32", "avx2", "avx2"),
        ("bfloat16", None, "amx_bf16"),
        ("bfloat16", "avx512_bf16", "avx512"),  # Faster than the unit for bfloat16.
        ("bfloat16", "avx2", "avx2"),
    ],
)
def test_the_peak_is_the_fastest_allowed_unit(dtype, isa, unit):
    assert choose_peak(PEAKS, dtype, isa) == (unit, PEAKS[unit])


def test_bfloat16_has_its_own_unit_and_a_processor_may_lack_units():
    assert choose_peak(PEAKS | {"avx512_bf16": 5e9}, "bfloat16", "avx512_bf16")[1] == 5e9
    assert choose_peak({"avx2": 2e9}, "bfloat16") == ("avx2", 2e9)
    with pytest.raises(ValueError, match="peak for float32"):
        choose_peak({"amx_bf16": 1e9}, "float32")
    assert peak.fastest([{"avx2": 1.0, "avx512": 5.0}, {"avx2": 2.0, "avx512": 4.0}]) == {
        "avx2": 2.0,
        "avx512": 5.0,
    }


def test_a_limit_holds_for_both_sides():
    assert set(ISAS) < set(UNITS)
    limited = environment(2, "avx512_bf16")
    assert limited["VIT_ISA"] == "avx512_bf16"
    assert limited["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
    assert limited["OMP_NUM_THREADS"] == "2"
    assert "VIT_ISA" not in environment(2)


def test_keras_hub_runs_with_and_without_onednn_so_that_its_better_setting_counts():
    for name, variable in (("keras-hub", "1"), ("keras-hub-no-onednn", "0")):
        found = environment(2, onednn=SYSTEMS[name].onednn)
        assert found["TF_ENABLE_ONEDNN_OPTS"] == variable


def test_threads_get_cores_of_their_own_while_there_are_cores():
    siblings = {0: "0,1", 1: "0,1", 4: "4-5", 5: "4-5"}
    assert one_cpu_per_core({k: [v] for k, v in siblings.items()}, 2) == [0, 4]
    assert one_cpu_per_core({k: [v] for k, v in siblings.items()}, 3) == [0, 1, 4]
    with pytest.raises(ValueError, match="--threads 5.* 4 CPUs"):
        one_cpu_per_core({k: [v] for k, v in siblings.items()}, 5)


def row(system, seconds, dtype="float32", ours=False):
    settings = {"model": "M", "batch": 2, "threads": 1, "difference": 1e-6, "macs": 500_000_000}
    return settings | {"system": system, "dtype": dtype, "ours": ours, "seconds": seconds}


def summarized():
    rows = [
        row("mine", [0.5, 1.0, 1.5], ours=True),
        row("first", [1.0, 4.0, 4.0]),
        row("second", [2.0, 2.0, 2.0]),
        row("mine-bf16", [0.1], "bfloat16", ours=True),
    ]
    table.summarize(rows, PEAKS)
    return {x["system"]: x for x in rows}


def test_rates_and_ratios():
    rows = summarized()
    mine, first, alone = rows["mine"], rows["first"], rows["mine-bf16"]
    assert (mine["best"], mine["median"], mine["spread"]) == (4.0, 2.0, 0.5)
    # The fastest peer by its best time, and by its median.
    assert (mine["peer"], mine["best_ratio"], mine["median_ratio"]) == ("first", 2.0, 2.0)
    # Exports of this project are no peers, and no system is compared with itself.
    assert (first["peer"], first["best_ratio"], first["median_ratio"]) == ("second", 2.0, 0.5)
    assert (alone["peer"], alone["best_ratio"], alone["spread"]) == (None, None, 0.0)
    # 4 images of 1 GFLOP a second, of 4; 20 of 50.
    assert (mine["unit"], mine["flops"], mine["of_peak"]) == ("avx512", 4e9, 1.0)
    assert (alone["unit"], alone["of_peak"]) == ("amx_bf16", 0.4)


def test_the_table_has_a_line_for_each_row_the_fastest_first():
    lines = table.text(list(summarized().values()), PEAKS).splitlines()
    assert "M, batch 2, 1 thread;" in lines[1] and "amx_bf16 50" in lines[1]
    names = ("mine", "first", "second", "mine-bf16")
    order = [words[0] for line in lines[3:] if (words := line.split())[0] in names]
    assert order == ["mine", "first", "second", "mine-bf16"]
    assert "x2.00 x2.00" in lines[4] and "100.0%" in lines[4]


def test_the_plot_shows_each_row(tmp_path):
    rows = list(summarized().values()) + [summarized()["mine"] | {"batch": 8}]
    assert [len(group) for group in plot.grouped(rows).values()] == [4, 1]
    assert plot.grouped(rows)["M", 2, 1][0]["system"] == "mine-bf16"
    plot.draw(rows, tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    assert xml.etree.ElementTree.fromstring(text).tag.endswith("svg")
    assert "<!-- mine-bf16 -->" in text and "<!-- M, batch 8, 1 thread -->" in text


def test_a_short_first_call_does_not_count():
    clock = itertools.count().__next__
    calls = []
    # The clock is read before and after a call, at the beginning, and before each further call.
    assert worker.timed(lambda: calls.append(0), 5, clock) == [1, 1]
    assert len(calls) == 3
    assert worker.timed(lambda: calls.append(0), 1, clock) == [1]
    assert len(calls) == 4


def test_load_calls_every_client_and_reports_its_error(monkeypatch):
    monkeypatch.setattr(worker, "INTERVAL", 0.01)
    counts = [0, 0]

    def client(index):
        def call():
            counts[index] += 1
            time.sleep(0.001)  # Lets the other client run.
            return index, counts[index]

        return call

    answer, results = worker.load([client(0), client(1)], 0.2)
    assert results == list(enumerate(counts))
    assert min(counts) > 1 and len(answer["latencies"]) == sum(counts) - 2
    assert answer["elapsed"] >= 0.05 and min(answer["memory"]) > 1e6

    def fails():
        counts[0] += 1
        if counts[0] > limit:
            raise RuntimeError("damaged")

    limit = counts[0] + 3
    with pytest.raises(RuntimeError, match="damaged"):
        worker.load([fails], 10)


def test_a_turn_has_percentiles_rates_and_growth_of_memory():
    found = load.summary([0.1] * 99 + [0.3], 5.0, [100, 200, 200, 200, 200, 201, 201, 201])
    assert (found["p50"], found["images_per_second"], found["calls"]) == (0.1, 20.0, 100)
    assert found["p99"] == pytest.approx(0.102)
    assert (found["memory_begin"], found["memory_end"]) == (100, 201)
    assert found["growth"] == pytest.approx(0.005) and found["flat"]
    assert not load.summary([0.1], 1.0, [200, 200, 200, 210])["flat"]
    assert load.summary([0.1], 1.0, [200])["flat"]


# Training -----------------------------------------------------------------------------------------


def test_a_system_that_trains_something_else_ends_the_program():
    losses = np.array([6.9, 6.8, 6.7])
    near = {"ours float32": losses, "a float32": losses * 1.0005, "b bfloat16": losses * 0.98}
    train.check("ViT", near)
    for name, factor in (("a float32", 1.01), ("b bfloat16", 0.96), ("a float32", np.nan)):
        with pytest.raises(SystemExit, match=f"the losses of {name}"):
            train.check("ViT", near | {name: losses * factor})


def test_training_is_compared_with_the_fastest_peer_of_its_dtype():
    def row(system, *seconds):
        return {"system": system, "dtype": system.split()[1], "batch": 8, "seconds": seconds}

    rows = [row("ours float32", 1, 2, 2), row("a float32", 2, 2, 2), row("b float32", 4, 4, 1)]
    rows += [row("ours bfloat16", 1, 1, 1), row("a bfloat16", 2, 2, 2)]
    lines = [line.split() for line in train.text("ViT", rows).splitlines()[3:]]
    assert [line[-2:] for line in lines if line[0] == "ours"] == [["x1.00", "x1.00"], ["x2.00"] * 2]
    assert [line[2:4] for line in lines if line[0] == "b"] == [["8.00", "2.00"]]


def test_training_begins_with_float32_and_refuses_batches_without_images(capsys):
    assert train.parse(["--dtypes", "bfloat16", "float32"]).dtypes == ["float32", "bfloat16"]
    with pytest.raises(SystemExit):
        train.parse(["--batches", "33"])
    assert "must be from 1 to 32. Received: [33]" in capsys.readouterr().err
