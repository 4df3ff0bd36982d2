"""Published weights beside timm, which has a copy of them of its own, or the paper's code.

`VIT_VERIFY="NAME ..."` names files for the first test: they are downloaded, as timm's copies are.
"""

import os

import numpy as np
import pytest

import vit_tf
from pipelines.research.verification.verify import verify
from tests.peers import comparison, photos
from tests.peers.environment import missing
from tests.vit_tf import tiny
from vit_tf.pretrained.class_names import class_names
from vit_tf.pretrained.records import find_record
from vit_tf.weights import download_weights

pytestmark = [pytest.mark.peers, pytest.mark.process]

NAME = "augreg/Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
RECORD = find_record(f"{NAME}--imagenet2012-steps_20k-lr_0.03-res_224")
COPY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


@pytest.mark.parametrize("name", os.environ.get("VIT_VERIFY", "").split())
def test_published_weights(name):
    """They see what is on two photos, and compute what the same weights compute elsewhere."""
    record = find_record(name)
    assert verify(record).problems == []
    path = download_weights(record)
    loaded = vit_tf.load(path, dtype="float32")
    top = photos.classify(loaded)
    assert top is None or photos.problems(top, record.num_classes) == []
    other, part, outputs = comparison.ask(record, path)
    found = comparison.difference(loaded.model, part, outputs)
    print(f"{name}: {part} of {other} differ by {found:.1e} of the largest; photos: {top}")
    assert found <= comparison.tolerance(loaded.model.config)


def test_stated_classes_are_classes():
    for stated in photos.STATED.values():
        for classes, names in stated.items():
            assert set(names) <= set(class_names(classes)) and len(names) == len(set(names))


@pytest.fixture(scope="module")
def model():
    """Random weights in place of the published ones, which timm then has too."""
    created = vit_tf.create_model("ViT-Ti/16", num_classes=1000, image_size=224)
    tiny.randomize(created)
    for variable in created.trainable_variables:
        if variable.name == "kernel":
            variable.assign(0.3 * variable)
    return created


@pytest.fixture
def offline(monkeypatch, tmp_path):
    if missing():
        pytest.skip(missing())
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def keep_copy(model, folder, name):
    """Writes the model where timm looks for its copies."""
    folder = folder / "hub" / f"models--timm--{name}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots").mkdir()
    vit_tf.save_safetensors(model, folder / "snapshots" / ("0" * 40), "timm")


@pytest.mark.usefixtures("offline")
def test_timm_computes_hybrids_as_published(tmp_path):
    """Its own epsilons of convolutions and GroupNorm are other ones."""
    record = find_record(RECORD.name.replace("Ti_16", "R_Ti_16"))
    hybrid = vit_tf.create_model(record.model, num_classes=1000, image_size=224)
    tiny.randomize(hybrid)
    for variable in hybrid.trainable_variables:
        if variable.name == "kernel":
            variable.assign(0.1 * variable)
    stem = hybrid.config.stem.replace(
        group_norm_epsilon=1e-5, variance_epsilon=1e-8, deviation_epsilon=0.0
    )
    as_timm = vit_tf.create_model(hybrid.config.replace(stem=stem))
    as_timm.set_weights(hybrid.get_weights())
    keep_copy(as_timm, tmp_path, "vit_tiny_r_s16_p8_224.augreg_in21k_ft_in1k")
    _, part, outputs = comparison.ask(record, "no file")
    assert comparison.difference(hybrid, part, outputs) < 1e-5


@pytest.mark.usefixtures("offline")
def test_timm_has_its_own_copy(model, tmp_path):
    keep_copy(model, tmp_path, COPY)
    name, part, outputs = comparison.ask(RECORD, "no file")
    assert name.endswith(COPY) and part == "logits"

    def difference(**fields):
        other = vit_tf.create_model(model.config.replace(**fields))
        other.set_weights(model.get_weights())
        return comparison.difference(other, part, outputs)

    assert 0 < difference() <= comparison.TOLERANCE
    assert difference(activation="gelu_erf") > comparison.TOLERANCE
    heads = model.blocks[3].attention.qkv.kernel
    weights = np.array(heads)
    heads.assign(np.concatenate([np.roll(weights[:, :192], 64, axis=1), weights[:, 192:]], axis=1))
    assert difference() > comparison.TOLERANCE
    heads.assign(weights)


@pytest.mark.usefixtures("offline")
def test_without_a_network_or_a_copy_nothing_is_compared():
    sam = find_record("sam/ViT-L_32")
    for record, reason in ((RECORD, f"cannot load its copy {COPY}: "), (sam, "has no copy of th")):
        with pytest.raises(comparison.NotComparedError, match=reason):
            comparison.ask(record, "no file")
