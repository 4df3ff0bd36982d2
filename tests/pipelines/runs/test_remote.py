"""Runs and models behind URLs, on `ram://`: the memory of this process as a file system."""

import dataclasses
import json
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from pipelines.config import Request
from pipelines.data.sources.folders import folder_splits, open_folder
from pipelines.data.sources.lists import list_splits
from pipelines.data.sources.records import record_splits
from pipelines.errors import DataError, RunError, UserError
from pipelines.runs import checkpoints, lease
from pipelines.runs.checkpoints import CheckpointStore
from pipelines.runs.workdir import Workdir
from pipelines.serving import saved_model
from pipelines.serving.atomic_directory import atomic_directory
from pipelines.stored_models import model_source
from pipelines.training.train import train
from tests.pipelines.process import assert_user_error
from tests.pipelines.tiny import one_device, tiny_experiment
from tests.pipelines.training_runs import FINISHED
from vit_tf.checkpoints.kinds import exported_folder
from vit_tf.files import storage

RUN = "ram://remote/run"
# As of the local run; a profile changes no number.
EXPERIMENT = tiny_experiment(*FINISHED, "train.profile=none")


@pytest.fixture(scope="module", autouse=True)
def _short_leases():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "TIMES", lease.Times(renew=2.0, settle=0.2, poll=0.01, stale=0.1))
        yield


@pytest.fixture(scope="module")
def runs(finished_run):
    """A local run; the same one behind a URL has the URL `RUN`."""
    train(EXPERIMENT, RUN, one_device(), Request(origin="a tiny run"))
    return str(finished_run)


def copy(source, destination):
    """Copies the folder of a URL to another URL."""
    storage.make_folders(destination)
    for folder, _, names in storage.walk(source):
        target = destination + folder.removeprefix(source)
        storage.make_folders(target)
        for name in names:
            content = b"".join(storage.chunks(f"{folder}/{name}"))
            storage.write_object(f"{target}/{name}", lambda file, data=content: file.write(data))


def weights(workdir, name):
    with storage.open_local(storage.join(workdir, name)) as file:
        return dict(np.load(file, allow_pickle=False))


def assert_same_run(received, expected):
    for name in ("final.npz", "ema.npz"):
        ours, theirs = weights(received, name), weights(expected, name)
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            np.testing.assert_array_equal(ours[key], value, err_msg=key)
    lines = [Workdir(run).read_metrics() for run in (received, expected)]
    for line in (*lines[0], *lines[1]):
        for varying in ("time", "images_per_second", "data_wait", "eval_images_per_second"):
            line.pop(varying, None)
    assert lines[0] == lines[1] and len(lines[0]) >= 6


def test_a_run_is_that_of_a_local_workdir(runs):
    assert_same_run(RUN, runs)
    files = storage.list_names(RUN)
    assert {
        "config.json",
        "manifest.json",
        "metrics.jsonl",
        "run.log",
        "tensorboard",
        "checkpoints",
        "final.npz",
        "final.npz.json",
        "ema.npz",
    } <= set(files)
    assert "lease.json" not in files
    assert storage.list_names(f"{RUN}/checkpoints") == ["step-12", "step-4", "step-8"]
    log = storage.read(f"{RUN}/run.log", 10**6).decode()
    assert "a tiny run" in log and f"wrote {RUN}/final.npz" in log
    assert any("tfevents" in name for name in storage.list_names(f"{RUN}/tensorboard/train"))
    shown = set(storage.list_names(f"{RUN}/tensorboard/validation"))
    assert shown > {"projector_config.pbtxt", "embeddings.tsv", "embedded_images.png"}


@pytest.mark.heavy("urls")
def test_a_cut_checkpoint_and_remains_of_renames_do_not_break_the_resume(runs, logged):
    """The newest checkpoint lacks its marker; copies were made whose originals are still there."""
    resumed = "ram://remote/resumed"
    copy(RUN, resumed)
    for name in ("final.npz", "final.npz.json", "ema.npz", "ema.npz.json"):
        storage.remove(f"{resumed}/{name}")
    steps = f"{resumed}/checkpoints"
    storage.remove(f"{steps}/step-12/checksums.json")
    copy(f"{steps}/step-8", f"{steps}/unfinished-8")
    copy(f"{steps}/step-8", f"{steps}/step-8/state_temp")
    copy(f"{steps}/step-4", f"{steps}/step-9")
    storage.remove(f"{steps}/step-9/checksums.json")
    assert checkpoints.steps(steps) == [4, 8] and checkpoints.newest(steps) == 8
    # A process that was killed has left its lease.
    storage.write_object(f"{resumed}/lease.json", lambda file: file.write(b'{"id": "dead"}'))

    train(EXPERIMENT, resumed, one_device())
    printed = logged.take()
    assert "resuming from step 8" in printed
    assert "in use by another process: waiting" in printed and "taking it" in printed
    assert_same_run(resumed, runs)
    assert storage.list_names(steps) == ["step-12", "step-4", "step-8"]
    with pytest.raises(UserError, match="holds a run with another configuration"):
        train(dataclasses.replace(EXPERIMENT, seed=7), resumed, one_device())


@pytest.fixture
def store(request):
    directory, variable = f"ram://remote/stores/{request.node.name}", tf.Variable(0.0)
    state = tf.train.Checkpoint(variable=variable)
    return CheckpointStore(directory, state, keep_last=1, keep_every=0), variable, directory


def test_checkpoints_are_kept_by_the_same_rules(store):
    store, variable, directory = store
    for step, score in ((1, 0.9), (2, 0.1), (3, None), (4, None)):
        variable.assign(float(step))
        store.save(step, score)
    assert checkpoints.steps(directory) == [1, 4]
    assert storage.list_names(directory) == ["step-1", "step-4"]
    assert checkpoints.best(directory) == 1
    store.save(4, score=1.0)
    assert checkpoints.best(directory) == 4
    path = f"{directory}/step-4/state.index"
    storage.write_object(path, lambda file: file.write(b"damaged"))
    assert store.restore_newest() == 1 and variable.numpy() == 1
    variable.assign(4.0)
    store.save(4)
    assert store.restore_newest() == 4


def test_an_upload_that_fails_leaves_no_checkpoint(store, monkeypatch):
    store, _, directory = store
    store.save(1)
    for failing in ("state.index", "checksums.json"):
        with monkeypatch.context() as patch:
            upload = storage.upload

            def stop(path, url, upload=upload, failing=failing):
                if url.endswith(failing):
                    raise OSError(13, "no permission", url)
                upload(path, url)

            patch.setattr(storage, "upload", stop)
            with pytest.raises(RunError, match="step 2 .*perm.* step 1;"):
                store.save(2)
        assert checkpoints.steps(directory) == [1] and store.restore_newest() == 1
    store.save(3)
    assert storage.list_names(directory) == ["step-3"]


def test_a_writer_without_its_lease_writes_nothing_more(runs):
    run = Workdir("ram://remote/lost")
    storage.make_folders(run.path)
    lost = []

    def check():
        if lost:
            raise RunError("taken over")

    with pytest.raises(RunError, match="taken over"), run.writing(check):
        run.append_metrics({"step": 1})
        run.sync()
        lost.append(True)
        run.append_metrics({"step": 2})
    assert [line["step"] for line in Workdir(run.path).read_metrics()] == [1]


@pytest.mark.heavy("urls")
def test_commands_take_urls(runs, command, tmp_path):
    results = []
    for path, report in ((RUN, "ram://remote/report"), (runs, tmp_path / "report")):
        arguments = (f"--model={path}", "--weights=ema", "--max_batches=2", "--json")
        done = command("evaluate", *arguments, f"--report={report}")
        results.append((json.loads(done.stdout)["loss"], storage.list_names(report)))
    assert results[0] == results[1] and "report.html" in results[0][1]
    image = tf.io.encode_png(np.full((9, 9, 3), 200, np.uint8)).numpy()
    storage.make_folders("ram://remote/images")
    storage.write_object("ram://remote/images/a.PNG", lambda file: file.write(image))
    result = command("predict", "--json", f"--model={RUN}", "ram://remote/images")
    assert json.loads(result.stdout)["path"] == "ram://remote/images/a.PNG", result.stderr
    arguments = ["--shots=1", "--seeds=1", "--l2=1", "--noknn", "--noprobe", "--json"]
    for said in ("", f"from {RUN}/fewshot/features-"):
        result = command("fewshot", f"--model={RUN}", *arguments)
        assert result.returncode == 0 and said in result.stderr, result.stderr
    assert {"fewshot.json", "fewshot.html"} <= set(storage.list_names(f"{RUN}/fewshot"))


@pytest.mark.heavy("urls")
def test_finetune_begins_with_a_url_and_writes_to_one(runs, command, uncompiled):
    tuned = "ram://remote/tuned"
    arguments = (f"--init_from={RUN}", f"--workdir={tuned}/", "--set=data.name=digits")
    short = ("train.steps=1", "data.eval_split=none", "train.batch_size=16")
    short += ("schedule.warmup_steps=0", "optimizer.learning_rate=0")
    result = command("finetune", *arguments, *(f"--set={text}" for text in short))
    assert result.returncode == 0, result.stderr
    key = "embedding/kernel"
    np.testing.assert_array_equal(weights(tuned, "final.npz")[key], weights(RUN, "final.npz")[key])


@pytest.mark.heavy("urls")
def test_an_export_behind_a_url_is_served(runs, command):
    output = "ram://remote/export"
    arguments = [f"--model={RUN}", f"--output={output}"]
    result = command("export", *arguments)
    assert result.returncode == 0, result.stderr
    loaded = tf.saved_model.load(f"{output}/portable")
    images = np.random.default_rng(0).integers(0, 256, (2, 12, 12, 3), np.uint8)
    logits = loaded.signatures["serving_uint8"](images=tf.constant(images))["logits"]
    model, preprocessing, _ = model_source.find(runs).open_model()
    expected = model(tf.stack([preprocessing(x) for x in images]), training=False)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert_user_error(command("export", *arguments), f"{output}/portable exists")
    assert exported_folder(output) == f"{output}/portable"
    fused = command("export", *arguments, "--format=fused", "--overwrite")
    assert_user_error(fused, "fused export")
    file = command("export", f"--model={RUN}", f"--output={RUN}/config.json")
    assert_user_error(file, "it is a file")
    storage.remove(f"{output}/portable/saved_model.pb")  # As if the copy had been cut.
    saved_model.check_output(output)
    with atomic_directory(f"{output}/portable", "saved_model.pb") as folder:
        (pathlib.Path(folder) / "saved_model.pb").write_bytes(b"new")
    assert storage.list_names(f"{output}/portable") == ["saved_model.pb"]
    storage.make_folders(f"{output}/other/portable/variables")
    storage.write_object(f"{output}/other/portable/photo.jpg", lambda file: file.write(b"x"))
    with pytest.raises(UserError, match="is not a SavedModel"):
        saved_model.check_output(f"{output}/other", overwrite=True)


def test_models_load_from_urls(runs, tmp_path):
    model = vit_tf.create_model("ViT-Ti/16", weights=None, image_size=32, layers=1, num_classes=3)
    images = tf.random.stateless_uniform([1, 32, 32, 3], [0, 1])
    expected = model(images)
    storage.make_folders("ram://remote/models/folder")
    vit_tf.save_npz(model, "ram://remote/models/a.npz")
    model.save(tmp_path / "a.keras")
    vit_tf.save_safetensors(model, tmp_path / "timm", "timm")
    storage.upload(tmp_path / "a.keras", "ram://remote/models/a.keras")
    storage.upload_folder(tmp_path / "timm", "ram://remote/models/timm")
    other = vit_tf.create_model("ViT-Ti/16", image_size=32, layers=1, num_classes=3)
    vit_tf.load_npz(other, "ram://remote/models/a.npz", head="keep")
    np.testing.assert_array_equal(other(images), expected)
    created = vit_tf.create_model("ViT-Ti/16", weights="ram://remote/models/a.npz", layers=1)
    np.testing.assert_array_equal(created(images), expected)
    for name in ("a.keras", "timm"):
        source = model_source.find(f"ram://remote/models/{name}")
        np.testing.assert_array_equal(source.open_model().model(images), expected)
    keras.utils.clear_session()

    for name in ("none.npz", "folder"):
        with pytest.raises((ValueError, FileNotFoundError), match=f"There is no .*{name}"):
            vit_tf.load_npz(other, f"ram://remote/models/{name}")
    with pytest.raises(ValueError, match="There is no file or folder ram://remote/none"):
        vit_tf.create_model("ViT-Ti/16", weights="ram://remote/none")
    with pytest.raises(UserError, match="There is no file or folder ram://remote/none"):
        model_source.find("ram://remote/none")
    with pytest.raises(UserError, match="ram://remote/models/folder holds no trained model"):
        model_source.find("ram://remote/models/folder")


def test_listings_of_data():
    root = "ram://remote/data"
    names = ("train/cat/1.jpg", "train/dog/deep/2.PNG", "test/cat/.hidden.jpg", "test/cat/3.gif")
    names += ("test/dog/4.gif",)
    for name in names:
        storage.make_folders(f"{root}/{name}".rpartition("/")[0])
        storage.write_object(f"{root}/{name}", lambda file: file.write(b"x"))
    assert folder_splits(f"{root}/") == ("test", "train")
    source = open_folder("data", "train", "ram://remote")
    assert source.num_examples == 2 and source.labels == ("cat", "dog")
    named = {source.describe(i) for i in range(2)}
    assert named == {f"{x} of folder:{root}" for x in ("train/cat/1.jpg", "train/dog/deep/2.PNG")}
    text = b"path,label,split\ntrain/cat/1.jpg,cat,a\ntest/cat/3.gif,dog,b\n"
    storage.write_object(f"{root}/list.csv", lambda file: file.write(text))
    assert list_splits("list.csv", root) == ("a", "b")
    info = {"labels": ["a"], "splits": {"train": {"x.tfrecord": 1}}}
    storage.write_object(f"{root}/dataset.json", lambda f: f.write(json.dumps(info).encode()))
    assert record_splits(root) == ("train",)
    for splits, path, text in (
        (folder_splits, f"{root}/none", f"There is no folder {root}/none"),
        (folder_splits, f"{root}/list.csv", "write list:<path>"),
        (folder_splits, "s3://bucket/a", "s3://bucket/a .*no file"),
        (list_splits, f"{root}/none.csv", "none.csv.*No such file"),
        (list_splits, "s3://bucket/a.csv", "no file system for s3"),
        (record_splits, f"{root}/none", f"{root}/none/dataset.json"),
        (record_splits, "s3://bucket/a", "no file system for s3"),
    ):
        with pytest.raises(DataError, match=text):
            splits(path)
