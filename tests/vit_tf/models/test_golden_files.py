"""Where the golden files come from; files of earlier versions give the logits of that time."""

import re

import keras
import numpy as np
import pytest

import vit_tf
from tests.conftest import GOLDEN
from tests.tolerances import assert_close

OLD = GOLDEN / "old"
FILES = [path for path in GOLDEN.rglob("*") if path.is_file() and path.name != "README.md"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(GOLDEN).as_posix())
def test_every_file_is_described_with_its_commit(path):
    """A section of the README names the file, or a folder above it, and a commit."""
    sections = (GOLDEN / "README.md").read_text().split("\n## ")
    place = path.relative_to(GOLDEN)
    names = [f"`{part.as_posix()}`" for part in (place, *place.parents)]
    (section,) = [text for text in sections if any(name in text for name in names)]
    assert re.search(r"\bcommit [0-9a-f]{7}\b", section)


@pytest.mark.parametrize("name", ["vit.keras", "vit.npz"])
def test_old_models_give_their_logits(name):
    if name == "vit.keras":
        model = keras.models.load_model(OLD / name)
    else:
        with vit_tf.weights.open_checkpoint(OLD / name) as checkpoint:
            config, classes = checkpoint.config, checkpoint.classes
        assert classes.labels == ("a", "b", "c", "d", "e")
        model = vit_tf.create_model(config, weights=OLD / name)
    with np.load(OLD / "vit_logits.npz") as file:
        images, logits = file["images"], file["logits"]
    assert_close(model(images), logits, "float32", "model")
