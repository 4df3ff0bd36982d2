"""Suites that are killed at random moments, also with a second process, end with the same table."""

import glob
import os
import random
import time

import numpy as np
import pytest

from tests import fork_server
from tests.pipelines.data import true_features
from tests.pipelines.process import ROOT, TIMEOUT, run_command, run_module
from tests.pipelines.research.sweeps.sweeps import write_initial
from tests.pipelines.tiny import TINY

pytestmark = pytest.mark.process

KILLS = 3  # Of real trainings.
_FILES = ("suite.json", "suite.csv")


def results(path):
    """The finished trainings of a suite."""
    return glob.glob(f"{path}/*/*/*/result.json")


def start(folder, arguments):
    with open(folder / "log", "a", encoding="utf-8") as log:
        environment = os.environ | {"PYTHONPATH": ROOT, "TF_CPP_MIN_LOG_LEVEL": "3"}
        streams = {"stdout": log.fileno(), "stderr": log.fileno()}
        return fork_server.Process("pipelines", arguments, cwd=folder, env=environment, **streams)


def killed(folder, path, arguments, moments, total):
    """Starts a suite and kills it at a random moment; returns the number of its results then."""
    process, before = start(folder, arguments), len(results(path))
    # At least one training begins, and not all of them end.
    after = min(before + moments.randint(0, total // 4), total - 2)
    while process.poll() is None and (len(results(path)) < after or not os.path.exists(path)):
        time.sleep(0.002)
    time.sleep(moments.uniform(0, 0.3))
    process.kill()
    process.wait(TIMEOUT)
    return len(results(path))


def assert_same_tables(path, expected):
    for name in _FILES:
        with open(path / name, "rb") as one, open(expected / name, "rb") as other:
            assert one.read() == other.read(), name


def test_kills_change_no_table(tmp_path):
    """19 trainings that take no time; the last start has a companion that is killed."""
    program, moments = "tests.pipelines.research.sweeps.killed_suite", random.Random(0)
    result = run_module(program, tmp_path / "whole", 0, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    arguments, path = ["-m", program, tmp_path / "killed", 0.02], tmp_path / "killed"
    counts = [killed(tmp_path, path, arguments, moments, 19) for _ in range(2)]
    assert 0 < counts[-1] < 19 and counts == sorted(counts)
    last = start(tmp_path, arguments)
    killed(tmp_path, path, arguments, moments, 19)
    assert last.wait(TIMEOUT) == 0, (tmp_path / "log").read_text()
    assert_same_tables(path, tmp_path / "whole")


def prepare_three_tasks(folder):
    """Prepares the data of three tasks of VTAB, in their true features."""

    def dtd(key):
        pixels = np.random.default_rng(key).integers(0, 256, (8, 8, 3), np.uint8)
        return {"image": pixels, "label": key % 47, "file_name": f"{key}.jpg"}

    def camelyon(key):
        pixels = np.full((96, 96, 3), key % 2 * 255, np.uint8)
        return {"image": pixels, "label": key % 2, "id": str(key)}

    def kitti(key):
        return true_features.EXAMPLES["kitti"](key % true_features.COUNT)

    sizes = {"train": 800, "validation": 200, "test": 60}
    true_features.prepare("dtd", folder, dtd, splits=sizes)
    true_features.prepare("patch_camelyon", folder, camelyon, splits=sizes)
    true_features.prepare("kitti", folder, kitti, "3.1.0", sizes)


def real_suite(folder):
    """`(arguments of a suite over three tasks, number of its trainings)`."""
    prepare_three_tasks(folder / "data")
    initial = write_initial(folder)
    own = [text for text in TINY if not text.startswith(("data.", "train.eval", "model.h"))]
    settings = [
        *(text for text in own if not text.startswith("model.") or "image_size" in text),
        "model.image_size=12",
        "data.shuffle_window=64",
        f"data.data_dir={folder / 'data'}",
        "train.accumulate_steps=1",
        "train.checkpoint_every=3",
        "train.deterministic=true",
    ]
    flags = [f"--set={text}" for text in dict.fromkeys(settings)]
    return ["--suite=vtab", "--seeds=2", f"--init_from={initial}", *flags], 6


@pytest.mark.release
def test_kills_of_real_trainings_change_no_table(tmp_path):
    arguments, total = real_suite(tmp_path)
    result = run_command("sweep", *arguments, "--workdir=whole", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no data of caltech101" in result.stdout and "tasks: 3 of 19" in result.stdout
    moments, path = random.Random(0), tmp_path / "killed"
    command = ["-m", "pipelines.sweep", *arguments, f"--workdir={path}"]
    for _ in range(KILLS):
        process, seconds = start(tmp_path, command), moments.uniform(4, 16)
        begin = time.monotonic()
        while process.poll() is None and time.monotonic() - begin < seconds:
            time.sleep(0.01)
        process.kill()
        process.wait(TIMEOUT)
    processes = [start(tmp_path, command) for _ in range(2)]
    codes = [process.wait(TIMEOUT) for process in processes]
    assert codes == [0, 0], (tmp_path / "log").read_text()
    assert len(results(path)) == total
    assert_same_tables(path, tmp_path / "whole")
