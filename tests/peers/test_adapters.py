"""PEFT reads our files of adapters over models of timm and transformers: the same logits."""

import numpy as np
import pytest
from safetensors.numpy import load_file

import vit_tf
from tests.peers.environment import NEEDED, run
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models
from vit_tf.adapters import save_adapters
from vit_tf.config.lora import TARGETS, Lora
from vit_tf.models.lora import adapted, add_adapters

pytestmark = [pytest.mark.peers, pytest.mark.process]

# Relative to the largest logit.
TOLERANCE = 1e-5
VIT = dict(hidden_size=48, mlp_size=82, layers=2, heads=3, patch_size=8, image_size=(24, 41))
VIT |= {"num_classes": 5, "activation": "gelu_erf"}
LORA = Lora(rank=3, alpha=5.0, targets=TARGETS, blocks=(1,))
PREPROCESSING = vit_tf.Preprocessing(image_size=VIT["image_size"])


def check_close(received, expected):
    assert received.shape == expected.shape
    assert np.abs(received - expected).max() <= TOLERANCE * np.abs(expected).max()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Our files, what PEFT makes of them, and our merged logits."""
    folder = tmp_path_factory.mktemp("adapters")
    model = vit_tf.create_model(vit_tf.ViTConfig(**VIT))
    tiny.randomize(model, seed=3)
    for layout in ("timm", "huggingface"):
        safetensors_models.save(model, folder / layout, layout, PREPROCESSING)
    vit_tf.save_npz(model, folder / "backbone.npz", PREPROCESSING)
    add_adapters(model, LORA)
    rng = np.random.default_rng(5)
    for layer in adapted(model):
        for variable in (layer.lora_kernel_a, layer.lora_kernel_b):
            variable.assign(0.2 * rng.normal(size=variable.shape))
    model.head.kernel.assign(rng.normal(size=model.head.kernel.shape))
    save_adapters(model, folder / "adapters.safetensors", PREPROCESSING, vit_tf.Classes())
    images = tiny.images(size=VIT["image_size"])
    np.save(folder / "images.npy", images)
    backbone = vit_tf.load(folder / "backbone.npz")
    merged = vit_tf.load_adapters(backbone, folder / "adapters.safetensors").model
    np.save(folder / "expected.npy", merged(images))
    check_close(merged(images).numpy(), model(images).numpy())
    assert np.abs(merged(images) - backbone.model(images)).max() > 0.1
    run(folder, program="adapter_program.py", packages=(*NEEDED, "peft"))
    return folder


@pytest.mark.parametrize("peer", ["timm", "huggingface"])
def test_peft_gives_the_logits_of_merged_weights(folder, peer):
    check_close(np.load(folder / f"{peer}.npy"), np.load(folder / "expected.npy"))


def test_peft_writes_the_same_tensors(folder):
    """Names, shapes and bits of the adapters, for the model of timm."""
    ours, theirs = (
        load_file(folder / name)
        for name in ("adapters.safetensors", "peft/adapter_model.safetensors")
    )
    assert theirs.keys() == {name for name in ours if ".lora_" in name} and len(theirs) == 8
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)
