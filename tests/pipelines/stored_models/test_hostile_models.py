"""Damaged and malicious models: one error line, bounded memory, no files left behind."""

import json
import os
import shutil
import zipfile

import numpy as np
import pytest

import vit_tf
from pipelines.errors import UserError
from pipelines.stored_models import model_source
from pipelines.stored_models.stored_model import Opening
from tests.pipelines.process import assert_user_error, run_command, run_module
from tests.pipelines.stored_models import hostile_models
from tests.vit_tf import tiny

# Memory that one of them may add to a process that has already run the command. Each needs far
# more.
MOST_MEMORY = 150  # MB


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The results of commands for every kind, from a separate process."""
    folder = tmp_path_factory.mktemp("hostile")
    hostile_models.write_all(folder)
    temporary = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        before = sorted(os.listdir(folder))
        result = run_module("tests.pipelines.stored_models.hostile_models", folder, cwd=folder)
        assert result.returncode == 0, result.stderr
        # No export, and no unpacked weights.
        assert sorted(os.listdir(folder)) == before
        assert list(temporary.rglob("*.h5")) == []
    return json.loads(result.stdout)


@pytest.mark.process
@pytest.mark.heavy("serving")
@pytest.mark.parametrize("kind", hostile_models.KINDS)
def test_one_sentence_within_bounds(results, kind):
    _, text = hostile_models.KINDS[kind]
    for command, (code, said, grown) in results[kind].items():
        assert code == 2, (command, said)
        lines = said.splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), (command, said)
        if kind != "saved_model/":  # `predict` accepts them: see below
            assert kind.rstrip("/") in lines[0] and text in lines[0], (command, said)
        assert len(said) < 1000, (command, said)
        assert grown < MOST_MEMORY, (command, grown)


@pytest.mark.process
@pytest.mark.heavy("serving")
def test_a_saved_model_of_something_else(results):
    for command in ("evaluate", "export"):
        assert "is a SavedModel, which is for serving only" in results["saved_model/"][command][1]
    said = results["saved_model/"]["predict"][1]
    assert "is not a SavedModel written by pipelines.export" in said


@pytest.mark.parametrize("kind", ["wide", "weights bomb", "array never written", "lambda", "text"])
def test_fine_tuning_refuses_them_too(tmp_path_factory, tmp_path, command, kind):
    path = hostile_models.write(tmp_path_factory.mktemp("hostile"), kind)
    result = command("finetune", f"--init_from={path}", "--workdir=run")
    assert_user_error(result, hostile_models.KINDS[kind][1])
    assert os.listdir(tmp_path) == []


@pytest.mark.process
def test_as_a_process(tmp_path_factory, tmp_path):
    path = hostile_models.write(tmp_path_factory.mktemp("hostile"), "wide")
    result = run_command("export", f"--model={path}", "--output=out", cwd=tmp_path)
    assert_user_error(result, "wide.keras", hostile_models.LARGER)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("dtype", "fields"),
    [
        ("float32", {}),
        ("mixed_bfloat16", {"classifier": "gap", "representation_size": 5}),
        ("bfloat16", {}),
        ("float64", {"classifier": "gap", "representation_size": 5}),
    ],
)
def test_genuine_files_open(tmp_path, fields, dtype):
    """Files as Keras writes them, and as other archivers would write them."""
    model = tiny.model(dtype=dtype, **fields)
    model.save(tmp_path / "model.keras")
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        content = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(tmp_path / "again.keras", "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in content.items():
            file.writestr(name, data)
    for name in ("model.keras", "again.keras"):
        opened, preprocessing, _ = model_source.find(tmp_path / name).open_model()
        assert opened.config == model.config
        assert opened.dtype_policy.name == dtype
        assert preprocessing.image_size == model.config.image_size
        for received, expected in zip(opened.weights, model.weights, strict=True):
            assert received.dtype == expected.dtype
            np.testing.assert_array_equal(np.asarray(received), np.asarray(expected))
    other = model_source.find(tmp_path / "model.keras").open_model(Opening("float32")).model
    assert other.dtype_policy.name == "float32"


def test_every_cut_of_a_file_is_refused(tmp_path):
    """Truncated at any position: the directory is at the end of the file."""
    tiny.model().save(tmp_path / "model.keras")
    data = (tmp_path / "model.keras").read_bytes()
    for length in [*range(0, len(data), len(data) // 40), *range(len(data) - 40, len(data))]:
        (tmp_path / "cut.keras").write_bytes(data[:length])
        with pytest.raises(UserError, match="cut.keras.*Keras"):
            model_source.find(tmp_path / "cut.keras").open_model()


def test_changed_bytes_never_end_in_anything_but_a_sentence(tmp_path):
    tiny.model().save(tmp_path / "model.keras")
    data = (tmp_path / "model.keras").read_bytes()
    with zipfile.ZipFile(tmp_path / "model.keras") as file:
        directory = file.start_dir
    random = np.random.default_rng(0)
    refused = 0
    for _ in range(60):
        changed = bytearray(data)
        # Half of the changes are in the directory of the archive, where most checks are.
        begin = directory if random.integers(2) else 0
        for place in random.integers(begin, len(data), 3):
            changed[place] = random.integers(256)
        (tmp_path / "changed.keras").write_bytes(changed)
        try:
            model_source.find(tmp_path / "changed.keras").open_model()
        except UserError as error:
            assert "changed.keras" in str(error) and "\n" not in str(error)
            refused += 1
    assert refused > 40


@pytest.mark.parametrize(
    ("section", "field", "value", "message"),
    [
        ("config", "hidden_size", 3 << 15, "has hidden_size=98304"),
        ("config", "layers", 400, "has layers=400"),
        ("config", "image_size", [1 << 14, 1 << 14], "has grid="),
        ("preprocessing", "image_size", [8, 8], r"images of \(8, 8\)"),
        ("preprocessing", "labels", 3, "labels"),
    ],
)
def test_a_sidecar_that_does_not_fit_its_file(tmp_path, section, field, value, message):
    model = tiny.model()
    preprocessing = vit_tf.Preprocessing(image_size=model.config.image_size)
    vit_tf.save_npz(model, tmp_path / "model.npz", preprocessing)
    sidecar = json.loads((tmp_path / "model.npz.json").read_text())
    sidecar[section][field] = value
    (tmp_path / "model.npz.json").write_text(json.dumps(sidecar))
    with pytest.raises(UserError, match=message):
        model_source.find(tmp_path / "model.npz").open_model()


@pytest.mark.parametrize("dtype", ["int4", "float32 ", 3, ["float32"], {"module": "os"}])
def test_a_sidecar_with_another_dtype(tmp_path, dtype):
    vit_tf.save_npz(tiny.model(), tmp_path / "model.npz")
    sidecar = json.loads((tmp_path / "model.npz.json").read_text())
    (tmp_path / "model.npz.json").write_text(json.dumps(sidecar | {"dtype": dtype}))
    with pytest.raises(UserError, match="npz.json .*dtype=.*float32"):
        model_source.find(tmp_path / "model.npz").open_model()


def test_a_folder_that_is_no_workdir(tmp_path):
    (tmp_path / "thing").mkdir()
    (tmp_path / "thing.txt").write_text("hello")
    for name, text in (("thing", "no trained model"), ("thing.txt", "Cannot tell what")):
        with pytest.raises(UserError, match=text):
            model_source.find(tmp_path / name)
    shutil.copy(tmp_path / "thing.txt", tmp_path / "thing" / "config.json")
    with pytest.raises(UserError, match="no trained model"):
        model_source.find(tmp_path / "thing")


def test_pickles_are_refused_with_their_conversion(tmp_path):
    for name in ("model.pth", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(b"PK")
    for path in (tmp_path / "model.pth", tmp_path / "pytorch_model.bin", tmp_path):
        with pytest.raises(UserError, match=r"pickles.*\.safetensors'\)"):
            model_source.find(path)
