"""`verify_weights` asks timm, which has a copy of the weights of its own."""

import numpy as np
import pytest

import vit_tf
from pipelines.research.verification import comparison
from pipelines.stored_models.parity import fixed_images
from tests.peers.environment import PYTHON, missing
from tests.vit_tf import tiny
from vit_tf.pretrained.records import find_record

pytestmark = [pytest.mark.peers, pytest.mark.process]

NAME = "augreg/Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0"
RECORD = find_record(f"{NAME}--imagenet2012-steps_20k-lr_0.03-res_224")
COPY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


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
def python(monkeypatch, tmp_path):
    if missing():
        pytest.skip(missing())
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return str(PYTHON)


def keep_copy(model, folder, name):
    """Writes the model where timm looks for its copies."""
    folder = folder / "hub" / f"models--timm--{name}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    (folder / "snapshots").mkdir()
    vit_tf.save_safetensors(model, folder / "snapshots" / ("0" * 40), "timm")


def test_timm_computes_hybrids_as_published(python, tmp_path):
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
    assert comparison.compare(record, "no file", hybrid, python).difference < 1e-5


def test_timm_has_its_own_copy(model, python, tmp_path, monkeypatch):
    keep_copy(model, tmp_path, COPY)
    timm, _ = comparison.IMPLEMENTATIONS
    images = fixed_images((224, 224))
    answer = timm.answer(comparison.Question(RECORD, "no file", images, python))
    assert answer.name.endswith(COPY) and answer.part == "logits"
    known = comparison.Implementation("timm", True, lambda question: answer)
    monkeypatch.setattr(comparison, "IMPLEMENTATIONS", (known,))

    def compared(**fields):
        other = vit_tf.create_model(model.config.replace(**fields))
        other.set_weights(model.get_weights())
        return comparison.compare(RECORD, "no file", other, python)

    assert compared().agrees and compared().difference > 0
    assert not compared(activation="gelu_erf").agrees
    heads = model.blocks[3].attention.qkv.kernel
    weights = np.array(heads)
    heads.assign(np.concatenate([np.roll(weights[:, :192], 64, axis=1), weights[:, 192:]], axis=1))
    assert not compared().agrees
    heads.assign(weights)


def test_without_a_network_or_a_copy_nothing_is_compared(model, python):
    sam = find_record("sam/ViT-L_32")
    for record, reason in ((RECORD, f"cannot load its copy {COPY}: "), (sam, "has no copy of th")):
        with pytest.raises(comparison.NotComparedError, match=reason):
            comparison.compare(record, "no file", model, python)
