"""The numbers of `bench_encoder`: operations by stage, rates and shares."""

import dataclasses

import pytest

import vit_tf
from benchmarks import bench_encoder
from benchmarks.peers import operations
from vit_tf.config import ViTConfig, get_variant

TINY = ViTConfig(hidden_size=4, mlp_size=6, layers=2, heads=2, patch_size=1, image_size=(1, 2))


def test_only_variants_whose_tokens_all_come_from_the_image():
    names = bench_encoder.models()
    assert {"ViT-Ti/16", "ViT-B/16", "ViT-H/14"} < set(names)
    assert not any(name.startswith(("R", "Axial")) for name in names)


def test_operations_are_those_of_the_cost_model():
    config = get_variant("ViT-B/16")
    parts = vit_tf.cost.macs_by_part(config)
    expected = 2 * 3 * (parts["projections"] + parts["attention"] + parts["mlp"])
    assert sum(operations.operations(config, 3, False).values()) == expected


def test_operations_of_the_first_rows_by_hand():
    """3 tokens: 4 rows of queries in two blocks, but keys and values of 6 rows."""
    assert operations.operations(TINY, 1, True) == {
        "layer_norm": 0,
        "qkv": pytest.approx(2 * (4 * 4 * 4 + 6 * 4 * 8)),
        "attention": pytest.approx(2 * 2 * 4 * 3 * 4),
        "out": pytest.approx(2 * 4 * 4 * 4),
        "fc1": pytest.approx(2 * 4 * 4 * 6),
        "fc2": pytest.approx(2 * 4 * 6 * 4),
    }


def test_macs_of_a_fused_export_by_hand():
    """A query, its output and MLP for 1 of 3 tokens in the last block: 2 rows less of each."""
    skipped = 2 * (4 * 4 + 2 * 3 * 4 + 4 * 4 + 2 * 4 * 6)
    assert operations.fused_macs(TINY) == vit_tf.cost.macs(TINY) - skipped
    pooled = dataclasses.replace(TINY, classifier="gap")
    assert operations.fused_macs(pooled) == vit_tf.cost.macs(pooled)
    # The tokens of a hybrid come from its feature map.
    hybrid, plain = get_variant("R50+ViT-B/16"), get_variant("ViT-B/16")
    skipped = [vit_tf.cost.macs(x) - operations.fused_macs(x) for x in (hybrid, plain)]
    assert skipped[0] == skipped[1] == pytest.approx(0.069 * vit_tf.cost.macs(plain), rel=0.01)


def test_rows_have_times_shares_and_rates():
    """All stages take 1 s in the first run and 3 s in the second one; the encoder takes 5 s."""
    setting = bench_encoder.Setting("ViT-B/16", 2, 1, "float32", "")
    runs = [
        {"isa": "amx", "all": {name: [time] for name in bench_encoder.STAGES}} for time in (1, 3)
    ]
    for one in runs:
        one["all"] |= {name: [5] for name in bench_encoder.WHOLE}
    rows = bench_encoder.rows_of(setting, "all", runs, {"avx512": 1e12, "amx_bf16": 9e12})
    found = {row["stage"]: row for row in rows}
    work = operations.operations(get_variant("ViT-B/16"), 2, False)
    assert [row["stage"] for row in rows] == [
        *bench_encoder.STAGES,
        "sum",
        *bench_encoder.WHOLE,
    ]
    fc1, total, encoder = found["fc1"], found["sum"], found["encoder"]
    assert (fc1["best"], fc1["median"], fc1["share"]) == (1, 2, pytest.approx(1 / 6))
    assert (fc1["flops"], fc1["unit"]) == (work["fc1"], "avx512")
    assert fc1["of_peak"] == pytest.approx(work["fc1"] / 1e12)
    assert found["layer_norm"]["flops"] is None
    assert (total["best"], total["median"]) == (6, 12)
    assert total["flops"] == pytest.approx(sum(work.values()) / 6)
    assert encoder["share"] == pytest.approx(5 / 6)
    assert encoder["flops"] == pytest.approx(sum(work.values()) / 5)
    lines = bench_encoder.text(rows).splitlines()
    assert len(lines) == 3 + len(rows) and "peak of avx512 1,000 GFLOP/s" in lines[1]
    assert lines[3].split() == ["layer_norm", *"1000.000 2000.000 50.0% 16.7% - -".split()]
