"""The table of chips, and files with a chip."""

import dataclasses
import json

import pytest

from pipelines.errors import UserError
from pipelines.research.planning.chips import Chip, chip_table, find_chip

NAMES = ["v3", "v4", "v5e", "v5p", "v6e", "v100", "a100", "h100", "h200"]
FIELDS = {
    "name": "mine",
    "kind": "cpu",
    "memory_gb": 64,
    "memory_gb_per_s": 100,
    "teraflops": {"float32": 2.5},
    "link_gb_per_s": 10,
    "linked_chips": 4,
    "chips_per_host": 1,
}


def test_every_number_of_the_table_has_a_source():
    assert list(chip_table()) == NAMES
    for chip in chip_table().values():
        numbers = {
            field.name
            for field in dataclasses.fields(Chip)
            if field.name not in ("name", "kind", "devices", "sources")
            and getattr(chip, field.name) is not None
        }
        assert chip.sources.keys() == numbers
        assert all(chip.sources.values())


def test_a_core_of_v3_has_half_of_the_chip():
    """The other chips are one device; 61.5 TFLOP/s and 16 GiB are the paper's core."""
    core = find_chip("V3")
    assert core.peak("mixed_bfloat16") == core.peak("float32") == 61.5e12
    assert core.device_memory == pytest.approx(16 * 2**30, rel=1e-3)
    assert [chip.devices for chip in chip_table().values()] == [2] + [1] * 8
    assert find_chip("h200").device_memory == 141e9


@pytest.mark.parametrize(
    ("chip", "dtype", "choices"),
    [
        ("v100", "mixed_bfloat16", "float32, mixed_float16"),
        ("v5e", "mixed_float16", "float32, mixed_bfloat16"),
    ],
)
def test_a_type_that_a_chip_does_not_multiply(chip, dtype, choices):
    with pytest.raises(UserError, match=f"no peak for model.dtype={dtype}.*one of {choices}"):
        find_chip(chip).peak(dtype)


def test_a_chip_of_a_file(tmp_path):
    path = tmp_path / "chip.json"
    path.write_text(json.dumps(FIELDS))
    chip = find_chip(str(path))
    assert (chip.name, chip.devices, chip.network_gb_per_s) == ("mine", 1, None)
    assert chip.peak("float32") == 2.5e12


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_gb": None}, "memory_gb is of type float"),
        ({"memory_gb": 0}, "memory_gb must be above 0. Received: 0"),
        ({"memory_gb": "80 GB"}, "memory_gb is of type float. Received: '80 GB'"),
        ({"linked_chips": 0}, "linked_chips must be at least 1. Received: 0"),
        ({"kind": "fpga"}, "kind must be one of tpu, gpu, cpu. Received: 'fpga'"),
        ({"teraflops": {"float32": -1}}, "teraflops.float32 must be above 0. Received: -1"),
        ({"teraflops": {"bf16": 1}}, "teraflops.bf16"),
        ({"memory": 3}, "memory.*Did you mean"),
    ],
    ids=str,
)
def test_a_file_that_describes_no_chip(tmp_path, change, message):
    path = tmp_path / "chip.json"
    path.write_text(json.dumps(FIELDS | change))
    with pytest.raises(UserError, match=f"chip.json: .*{message}"):
        find_chip(str(path))


def test_names_and_files_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match="--chip=v7x is neither.*The chips are v3, v4"):
        find_chip("v7x")
    with pytest.raises(UserError, match="Did you mean h100"):
        find_chip("h1000")
    with pytest.raises(UserError, match="there is no such file"):
        find_chip(str(tmp_path / "none.json"))
    (tmp_path / "text.json").write_text("no object")
    with pytest.raises(UserError, match="text.json"):
        find_chip(str(tmp_path / "text.json"))
    (tmp_path / "few.json").write_text('{"name": "few"}')
    with pytest.raises(UserError, match="few.json: the chip has no kind, memory_gb, .*Add"):
        find_chip(str(tmp_path / "few.json"))
