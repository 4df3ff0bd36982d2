"""One model and its exports, made once for all tests of serving."""

import json
import os
import pathlib
from typing import NamedTuple

import pytest

import vit_tf
from pipelines.runs.workdir import Workdir
from pipelines.serving import clean_process, saved_model
from tests.pipelines import encoded
from tests.pipelines.serving.exports import CLASSES, call_here, make
from tests.pipelines.tiny import tiny_experiment
from tests.shared_folder import shared_folder
from vit_tf.models import VisionTransformer
from vit_tf.preprocessing import Preprocessing


class Exported(NamedTuple):
    """A model with its SavedModels.

    The folder holds `portable`, `fused`, and for each a text file with the report of its export,
    and the loader that the process of its check would have run.
    """

    model: VisionTransformer
    preprocessing: Preprocessing
    folder: pathlib.Path


def write_exports(folder):
    """The form decides which ops are inside; the environment has no influence."""
    model, preprocessing = make()
    for form, other in (("portable", "compiled"), ("fused", "reference")):
        loaders = []

        def call(directory, calls, loader=None, loaders=loaders):
            loaders.append(loader and os.path.relpath(loader, directory))
            return call_here(directory, calls)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(clean_process, "call_signatures", call)
            patch.setenv("VIT_OPS", other)
            report = saved_model.export(model, preprocessing, folder, form=form, classes=CLASSES)
        (folder / f"{form}.txt").write_text(f"{report}\nloader: {report.loader} {loaders}\n")


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    """`Exported`; tests must not change its folder."""
    folder = shared_folder(tmp_path_factory, "exports", write_exports)
    return Exported(*make(), folder)


@pytest.fixture(scope="session")
def models(exported, tmp_path_factory):
    """One model in every form: the model, its preprocessing, form -> path."""
    model, preprocessing, exports = exported
    root = tmp_path_factory.mktemp("models")
    paths = {"npz": root / "model.npz", "keras": root / "model.keras", "workdir": root / "run"}
    vit_tf.save_npz(model, paths["npz"], preprocessing, CLASSES)
    model.save(paths["keras"])
    sidecar = {"preprocessing": preprocessing.to_dict() | CLASSES.to_dict()}
    (root / "model.keras.json").write_text(json.dumps(sidecar))
    run = Workdir(paths["workdir"])
    run.create(tiny_experiment())
    vit_tf.save_npz(model, run.final, preprocessing, CLASSES)
    (root / "export").mkdir()
    (root / "export" / "portable").symlink_to(exports / "portable")
    paths |= {"saved_model": exports / "portable", "export": root / "export"}
    return model, preprocessing, paths


@pytest.fixture
def folder(tmp_path):
    """A folder with other files and images of each format in subfolders, in any letter case."""
    names = ("a.png", "b.PNG", "sub/c.PnG", "sub/deep/d.bmp", "e.gif", "sub/f.JPEG", "g.WebP")
    images = {}
    for name, (data, pixels) in zip(names, encoded.every_format(), strict=True):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        images[str(path)] = pixels
    (tmp_path / "images" / "notes.txt").write_text("not an image")
    return tmp_path / "images", images


@pytest.fixture
def predict(command):
    """`predict(*arguments)`: exit code, stdout, stderr."""

    def run(*arguments):
        result = command("predict", *arguments)
        return result.returncode, result.stdout, result.stderr

    return run


@pytest.fixture
def no_model(monkeypatch):
    """Fails the test if a model is built: images must be checked first."""

    def built(*_, **__):
        raise AssertionError("a model was built")

    monkeypatch.setattr(vit_tf, "create_model", built)


# `tests/vit_tf/images/test_decoding.py` has all kinds of broken files.
