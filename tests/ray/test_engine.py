"""A Ray cluster on this machine: results as without it, whatever processes of it are killed."""

import os
import pathlib
import sys
import time

import numpy as np
import pytest

from pipelines.data.sources import record_writer
from pipelines.data.sources.open import open_source
from pipelines.deduplication import pairs
from pipelines.deduplication.embeddings import Embedder
from pipelines.deduplication.index import Index
from pipelines.distribution.engine import ray_engine
from pipelines.distribution.engine.jobs import blocks
from pipelines.errors import DataError, Interrupted, RunError
from pipelines.predictions import files, images, results
from pipelines.predictions.files import Output
from pipelines.stored_models import model_source
from pipelines.stored_models.stored_model import AS_TRAINED
from tests.pipelines import encoded
from tests.ray import jobs

pytestmark = [pytest.mark.heavy("ray"), pytest.mark.process]

KILLS = tuple(range(5, 100, 10))


def test_ten_kills_lose_and_double_nothing(engine, tmp_path):
    job = jobs.Squares(str(tmp_path), KILLS)
    found = [*engine.map(job, blocks([(0, 100)], smallest=5))]
    assert len(list(tmp_path.iterdir())) == len(KILLS) == 10
    assert sum(found, []) == [index**2 for index in range(100)]


def test_a_block_that_always_kills_ends_the_job(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(ray_engine, "_RETRIES", 1)
    job = jobs.Squares(str(tmp_path), (2,), always=True)
    with pytest.raises(RunError, match="cluster.*(died|unavail)"):
        list(engine.map(job, blocks([(0, 4)], smallest=1)))


def test_an_error_is_that_of_the_job(engine):
    found = engine.map(jobs.Failing("data"), blocks([(0, 6)], smallest=2))
    assert [next(found), next(found)] == [0, 2]
    with pytest.raises(DataError, match="^The file 7 is damaged.$"):
        next(found)


def test_results_that_nobody_takes_stop_the_processes(engine, tmp_path, monkeypatch):
    import ray.data

    context = ray.data.DataContext.get_current()
    # Of Ray's memory for objects: the default is a half, this is some dozens of MB.
    monkeypatch.setattr(context, "override_object_store_memory_limit_fraction", 0.01)
    found = engine.map(jobs.Large(str(tmp_path)), blocks([(0, 150)], smallest=1))
    next(found)
    done = None
    while done != (count := len(list(tmp_path.iterdir()))):
        done = count
        time.sleep(5)
    assert done < 75
    assert [int(result[0]) for result in found] == [*range(1, 150)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of 60 small images of two classes, of which two cannot be decoded."""
    folder = tmp_path_factory.mktemp("photos")
    for index in range(60):
        path = folder / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded.encode(encoded.pixels(16, 12, index), "PNG"))
    for name in ("a/4.png", "b/31.png"):
        (folder / name).write_bytes(b"broken")
    return open_source(f"folder:{folder}", "train")


def _contents(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.npy"])
def test_files_of_predictions_have_the_bytes_of_local_ones(
    engine, photos, tmp_path, monkeypatch, name
):
    monkeypatch.setattr(files, "blocks", lambda ranges, multiple: blocks(ranges, multiple, 16))
    opened = model_source.SHIPPED, "final"

    def open_model():
        if name.endswith(".npy"):
            return results.open_embedder(*opened)
        return results.open_classifier(*opened, None, AS_TRAINED, 3)

    model, taken = open_model(), images.from_source(photos)
    written = []
    for place, on in (("local", None), ("ray", (engine, open_model))):
        (tmp_path / place).mkdir()
        flag = "--embed" if name.endswith(".npy") else "--output"
        output = Output(str(tmp_path / place / name), 3, flag=flag)
        written.append(files.write(output, taken, model, batch_size=8, on=on))
    assert written[0] == written[1] and written[0].failed == 2
    assert _contents(tmp_path / "ray") == _contents(tmp_path / "local")
    assert len(_contents(tmp_path / "ray")) == (6 if name.endswith(".npy") else 3)


def test_records_have_the_bytes_of_local_ones(engine, photos, tmp_path, monkeypatch):
    sources = {"train": photos, "b": photos}
    record_writer.write_records(sources, tmp_path / "local", 4, "skip")

    def check():
        if len(list(tmp_path.glob("ray.partial/*.done"))) == 3:
            raise Interrupted("SIGTERM")

    with pytest.raises(Interrupted):
        record_writer.write_records(sources, tmp_path / "ray", 4, "skip", engine, check)
    with pytest.raises(DataError, match="ray.partial.*data or flags"):
        record_writer.write_records(sources, tmp_path / "ray", 5, "skip", engine)
    kept = {x: os.stat(x).st_mtime_ns for x in tmp_path.glob("ray.partial/*.tfrecord")}
    written = record_writer.write_records(sources, tmp_path / "ray", 4, "skip", engine)
    assert (written.counts, written.left_out) == ({"train": 58, "b": 58}, 2)
    ray, local = _contents(tmp_path / "ray"), _contents(tmp_path / "local")
    assert ray == local and len(ray) == 10
    same = [os.stat(tmp_path / "ray" / x.name).st_mtime_ns == time for x, time in kept.items()]
    assert sum(same) >= 3
    messages = []
    for on in (None, engine):
        with pytest.raises(DataError, match="png .* cannot be decoded") as error:
            record_writer.write_records(sources, tmp_path / "stop", 4, "stop", on)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_an_index_and_its_pairs_are_those_of_a_local_one(engine, photos, tmp_path, monkeypatch):
    # No block is as long as the keys of a view.
    monkeypatch.setattr(pairs, "_KEYS", 25)

    def open_embedder():
        return Embedder(model_source.find(model_source.SHIPPED))

    embedder, found, near = open_embedder(), [], []
    for place, on in (("local", None), ("ray", (engine, open_embedder))):
        index = Index(photos, tmp_path / place, embedder, is_query=True).fill(on=on)
        # A distance that many pairs of noise have.
        near.append(pairs.Searcher(index, 20, 0.9).pairs(index, engine=on and engine))
        found.append(index)
    for name in ("states", "hashes", "embeddings"):
        np.testing.assert_array_equal(getattr(found[1], name), getattr(found[0], name))
    assert np.abs(found[1].embeddings).sum() > 0
    for local, other in zip(*near, strict=True):
        np.testing.assert_array_equal(other, local)
    local = near[0]
    by_view = [local.is_part_of_query, local.is_part_of_reference, local.view < 2]
    assert min(np.sum(chosen & (local.distance <= 20)) for chosen in by_view) > 50


def test_a_signal_does_not_wait_for_a_block(engine):
    calls = []

    def check():
        calls.append(None)
        if len(calls) == 3:
            raise Interrupted("SIGTERM")

    with pytest.raises(Interrupted):
        list(engine.map(jobs.Slow(), blocks([(0, 1)]), check))


def test_two_commands_do_not_write_the_same_records(tmp_path, photos):
    from pipelines.runs.lock import only_writer
    from tests.pipelines.process import ROOT, run_command

    # Ray starts processes of its own, which have to find it.
    paths = {"PYTHONPATH": os.pathsep.join([ROOT, *sys.path]), "cold": True}
    root = photos.path(int(photos.ids([0])[0])).rsplit("/", 2)[0]
    flags = [f"--set=data.name=folder:{root}", "--set=data.bad_images=skip", "--engine=ray"]
    flags += ["--split=all=train[:100%]", "--output=records"]
    with only_writer(tmp_path / "records.partial"):
        result = run_command("make_tfrecords", *flags, cwd=tmp_path, **paths)
    assert result.returncode == 2, result.stderr
    assert "records.partial is in use by process" in result.stderr
    result = run_command("make_tfrecords", *flags, cwd=tmp_path, **paths)
    assert result.returncode == 0, result.stderr
    assert sorted(os.listdir(tmp_path)) == ["records"]
    assert "lock" not in os.listdir(tmp_path / "records")
