"""The command `plan`: its text, its JSON, and wrong input."""

import functools
import json
import os
import re

import pytest

from tests.pipelines.process import ROOT, assert_user_error, run_command

L16 = [
    *("--experiment=jft_vit_l16", "--classes=1000", "--set=model.representation_size=none"),
    "--set=model.dtype=mixed_bfloat16",
]
MACS, PARAMETERS = 61.555e9, 304_326_632  # docs/paper.md L.2 and A.11.
STEPS = 7 * 303_000_000 // 4096


@pytest.fixture
def planned(printed):
    """`planned(*arguments)`: what `plan --json` prints."""
    return functools.partial(printed, "plan")


def test_a_run_of_the_paper(planned, tmp_path):
    """ViT-L/16 for 7 epochs of JFT-300M: table 6 has 783 exaFLOPs."""
    record = planned(*L16, "--chip=v3", "--chips=256", "--price=2", "--utilization=0.4")
    assert record["parameters"] == PARAMETERS
    assert record["exaflops"] == pytest.approx(783, rel=1e-3)
    assert (record["devices"], record["hosts"], record["images"]) == (512, 64, 8)
    assert record["steps"] == STEPS
    compute = 6 * MACS * 8 / (0.4 * 61.5e12)
    assert record["step"]["compute"] == pytest.approx(compute, rel=1e-4)
    assert record["step"]["all_reduce"] > 2 * 255 / 256 * 4 * PARAMETERS / (332e9 * 0.8)
    step = record["step"]["total"]
    assert record["cost"] == pytest.approx(2 * 256 * STEPS * step / 3600)
    assert record["needed_images_per_second_per_host"] > 4096 / 64 / step
    kept, again = record["activations"]["none"], record["activations"]["blocks"]
    assert kept["float32"] > kept["mixed_bfloat16"] == record["memory"]["activations"]
    assert kept["mixed_bfloat16"] == kept["mixed_float16"] > again["mixed_bfloat16"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        (("--experiment=jft_vit_h14", "--chips=128"), "train.accumulate_steps=16"),
        ((*L16, "--chips=256"), ""),
        (
            (
                *("--experiment=jft_r200x3_14epochs", "--classes=18291", "--chips=128"),
                "--set=train.shard_optimizer=true",
            ),
            "train.accumulate_steps=8",
        ),
    ],
    ids=["micro-batches", "as it is", "slices"],
)
def test_a_run_that_does_not_fit_gets_settings_that_fit(command, flags, settings):
    """As in `paper`; the settings that are named give the same plan without a further word."""
    flags = [*flags, "--images=303000000", "--chip=v3", "--json"]
    result = command("plan", *flags)
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stderr.splitlines() if "does not fit" in line]
    if not settings:
        assert not said
        return
    (line,) = said
    assert settings in line
    found = re.findall(r"--set (\S+)", line)
    again = command("plan", *flags, *(f"--set={setting}" for setting in found))
    assert again.stdout == result.stdout and "does not fit" not in again.stderr


@pytest.mark.process
def test_a_process_says_which_settings_it_chose(tmp_path):
    """Its module is called __main__, and only lines of `pipelines` are printed."""
    flags = ("--experiment=jft_vit_h14", "--chip=v3", "--chips=128")
    result = run_command("plan", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if "planned with --set" in line]
    assert line.endswith("planned with --set train.accumulate_steps=16")
    assert "planned with 18,000 classes" in result.stderr


def test_the_data_of_the_paper_have_their_classes(planned):
    """Parameters of docs/paper.md A.11 with heads of 21,843 and 1,000 classes."""
    flags = ("--images=14000000", "--chip=v3", "--chips=128")
    for recipe, parameters in (("imagenet21k_r50x1", 68_256_659), ("imagenet_r50x1", 25_549_352)):
        assert planned(f"--experiment={recipe}", *flags)["parameters"] == parameters
    jft = planned("--experiment=jft_r50x1", *flags)["parameters"]
    assert jft == 23_500_352 + 2049 * 18_000


def test_the_largest_model_fits_no_core_with_all_of_the_optimizer(command):
    flags = ["--experiment=jft_r200x3_14epochs", "--classes=18291", "--images=303000000"]
    assert_user_error(command("plan", *flags, "--chips=128"), "enough for 0 images")


def test_the_largest_batch_of_each_chip(planned):
    record = planned(*L16, "--chip=v4", "--chips=256")
    images = {entry["chip"]: entry["images"] for entry in record["largest_batch"]}
    assert len(images) == 9
    assert images["TPU v5e"]["none"]["mixed_float16"] is None
    assert images["NVIDIA V100 SXM2 32 GB"]["none"]["mixed_bfloat16"] is None
    for batches in images.values():
        for name, batch in batches["none"].items():
            assert batch is None or batch < batches["blocks"][name]
    order = ("NVIDIA A100 SXM4 80 GB", "NVIDIA H200 SXM5 141 GB")
    few, many = (images[chip]["none"]["mixed_bfloat16"] for chip in order)
    assert 1 < few < many


def test_more_chips_take_less_time_and_more_core_days(planned, command):
    numbers = [8, 64, 512, 2048]
    records = planned(*L16, "--chip=v4", f"--chips={','.join(map(str, numbers))}")
    assert [record["chips"] for record in records] == numbers
    times = [record["step"]["total"] for record in records]
    days = [record["core_days"] for record in records]
    assert times == sorted(times, reverse=True) and days == sorted(days)
    for record in records:
        assert sum(record["memory"].values()) <= record["usable_memory"]
        assert record["images"] * record["accumulate_steps"] * record["devices"] == 4096
    assert records[0]["accumulate_steps"] > records[-1]["accumulate_steps"] == 1
    result = command("plan", *L16, "--chip=v4", "--chips=8,64,512,2048", "--price=3")
    header, *rows = result.stdout.splitlines()[1:6]
    assert header.split()[:2] == ["chips", "devices"] and header.split()[-1] == "cost"
    assert [row.split()[0] for row in rows] == ["8", "64", "512", "2,048"]
    assert f"{1000 * times[1]:,.2f}" in rows[1] and f"{days[1]:,.4g}" in rows[1]


def test_text_has_each_part_and_each_assumption(command):
    """Also without arguments: 1,297 digits on eight chips."""
    result = command("plan")
    assert result.returncode == 0, result.stderr
    text = result.stdout
    parts = ("weights", "gradients", "optimizer", "activations", "together", "compute", "update")
    for part in (*parts, "all-reduce", "input", "checkpoint"):
        assert re.search(rf"^  {part} ", text, re.MULTILINE), part
    assert "step on 8 x TPU v3, 16 devices:" in text
    assert "--utilization=0.45: of the peak" in text and "--usable_memory=0.9" in text
    assert "the hosts deliver as many images as are needed" in text
    assert "  model.recompute=blocks" in text and "  NVIDIA H200 SXM5 141 GB" in text
    assert "run: " in text and "core-days" in text and "cost" not in text
    resnet = command("plan", "--set=model.name=BiT-R50x1", "--chips=1", "--price=0").stdout
    assert "recompute=blocks" not in resnet and "recomputed" not in resnet
    assert ", cost 0.00" in resnet


def test_the_measured_input_is_the_rate_of_a_host(command):
    result = command("plan", "--json", "--throughput=0.2")
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    rate = record["assumptions"]["input_rate"]
    assert f"this machine delivers {rate:,.0f} images/s of digits" in result.stderr
    assert record["step"]["input"] == pytest.approx(64 / (2 * rate))


def test_the_papers_costs(command, planned):
    result = command("plan", "--paper")
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["ViT-L/16", "JFT-300M", "7", "783.3", "783", "1.000"] in lines
    assert ["ViT-L/16", "JFT-300M", "14", "1,566.7", "680", "43.4", "%"] in lines
    assert planned("--paper").keys() == {"table_6", "table_2"}


def test_lengths_in_epochs_need_the_number_of_images(command, planned):
    flags = ["--set=data.name=folder:none", "--set=train.epochs=2", "--set=train.batch_size=64"]
    result = command("plan", *flags)
    assert_user_error(result, "train.epochs=2 needs the number of images", "Set --images")
    assert planned(*flags, "--images=640", "--classes=7")["steps"] == 20


def test_a_chip_of_a_file(planned, tmp_path):
    chip = {
        **{"name": "my CPU", "kind": "cpu", "memory_gb": 64, "memory_gb_per_s": 100},
        **{"teraflops": {"float32": 2}, "link_gb_per_s": 3, "linked_chips": 1},
        **{"network_gb_per_s": 1, "chips_per_host": 1},
    }
    (tmp_path / "cpu.json").write_text(json.dumps(chip))
    record = planned("--chip=cpu.json", "--chips=2")
    assert (record["chip"], record["devices"], record["hosts"]) == ("my CPU", 2, 2)
    assert record["network_bytes"] == record["memory"]["gradients"]
    assert record["largest_batch"][-1]["chip"] == "my CPU"


@pytest.mark.process
@pytest.mark.heavy("training")
def test_a_search_on_this_machine(command, tmp_path, monkeypatch):
    """A model of one layer at a large size, up to eight images, which do not all fit."""
    monkeypatch.setenv("PYTHONPATH", ROOT)
    flags = ["--models=ViT-Ti/16", "--sizes=896", "--set=model.layers=1", "--passes=training"]
    result = command(
        "plan", "--measure", *flags, "--memory_gb=0.5", "--most_images=8", "--pause=0", "--json"
    )
    assert result.returncode == 0, result.stderr
    record = json.loads(result.stdout)
    assert json.loads((tmp_path / "runs/plan-measure/measured.json").read_text()) == record
    (row,) = record["rows"]
    assert 1 <= row["largest_batch"] < 8
    assert "images: more than the memory" in result.stderr
    assert all(len(batch["seconds"]) in (0, 5) for batch in row["batches"])
    assert 0 < row["measured_bytes"] < 0.5e9 and row["images_per_second_per_core"] > 0
    assert {"images_per_second.png", "largest_batch.png"} < set(os.listdir("runs/plan-measure"))


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        (["--chip=v9"], ["--chip=v9 is neither a chip nor a file", "v5e"]),
        (["--chip=."], [". is not a file"]),
        (["--chips=0"], ["--chips=0 is not readable", "8,64"]),
        (["--chips=8,x"], ["--chips=8,x is not readable"]),
        (["--chips=3"], ["train.batch_size=64 is not a multiple of 6", "--chips=3 of TPU v3"]),
        (["--chips=8,3"], ["train.batch_size=64 is not a multiple of 6"]),
        (["--price=-1"], ["--price=-1"]),
        (["--throughput=0"], ["--throughput=0 is not a positive number"]),
        (["--throughput=1", "--input_rate=3"], ["--throughput measures --input_rate"]),
        (["--throughput=1", "--set=data.name=folder:none"], ["There is no folder"]),
        (["--measure", "--paper"], ["--measure takes no --paper"]),
        (["--paper", "--sizes=64"], ["--paper takes no --sizes"]),
        (["--paper", "--chips=8"], ["--paper takes no --chips: it plans no run"]),
        (["--classes=0"], ["classes"]),
        (["--measure"], ["fills the memory", "Set --memory_gb"]),
        (["--measure", "--chips=8"], ["--measure takes no --chips: it plans no run"]),
        (["--models=ViT-B/32"], ["--models belongs to --measure"]),
        (["--measure", "--memory_gb=0"], ["--memory_gb=0 is not a size"]),
        (["--measure", "--sizes=64,x"], ["--sizes=64,x is not readable", "such as 64,128"]),
        (["--measure", "--memory_gb=1", "--models=ViT-X/3"], ["ViT-X/3"]),
        (["--measure", "--memory_gb=1", "--sizes=16"], ["image_size=(16, 16) is smaller than"]),
        (["--measure", "--memory_gb=1", f"--models={','.join('a' * 17)}"], ["names 17 models"]),
        (["--measure", "--set=train.steps=3"], ["--set train.steps has no effect", "model.dtype"]),
        (
            [*L16, "--chip=v5e", "--chips=8", "--set=model.layers=400"],
            ["does not fit on --chips=8 of TPU v5e", "enough for 0 images"],
        ),
    ],
    ids=lambda value: " ".join(value[-2:]),
)
def test_wrong_input_is_one_sentence(command, tmp_path, flags, texts):
    assert_user_error(command("plan", *flags), *texts)
    assert os.listdir(tmp_path) == []
