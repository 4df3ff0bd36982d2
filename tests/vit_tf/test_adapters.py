"""Files of adapters: another reader finds PEFT's names, and they fit their own backbone only."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, safe_open, save_file

import vit_tf
from tests.vit_tf import numpy_vit, tiny
from vit_tf.adapters import load_adapters, save_adapters
from vit_tf.config.lora import Lora
from vit_tf.models.lora import adapted, add_adapters

SIZE = tiny.FIELDS["image_size"]
LORA = Lora(rank=2, alpha=3.0, blocks=(1,))
CLASSES = vit_tf.Classes(labels=tuple("abcd"))


def backbone():
    return vit_tf.LoadedModel(
        tiny.shared(), vit_tf.Preprocessing(image_size=SIZE), vit_tf.Classes()
    )


def trained():
    """A model of 4 classes over the backbone, with trained adapters and head."""
    model = tiny.model(num_classes=4)
    weights = vit_tf.weights.model_weights(tiny.shared())
    vit_tf.weights.load_checkpoint(model, weights, "reset")
    add_adapters(model, LORA)
    rng = np.random.default_rng(3)
    for layer in adapted(model):
        for variable in (layer.lora_kernel_a, layer.lora_kernel_b):
            variable.assign(0.3 * rng.normal(size=variable.shape))
    model.head.kernel.assign(rng.normal(size=model.head.kernel.shape))
    for variable in model.trainable_variables:
        variable.trainable = "lora" in variable.path or "head" in variable.path
    return model


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapters") / "a.safetensors"
    preprocessing = vit_tf.Preprocessing(image_size=SIZE, exif="ignore")
    save_adapters(trained(), path, preprocessing, CLASSES)
    return path


def test_the_safetensors_package_reads_them(file):
    model, tensors = trained(), load_file(file)
    start = "base_model.model.blocks.1.attn"
    layers = {"qkv": model.blocks[1].attention.qkv, "proj": model.blocks[1].attention.out}
    expected = {"head/kernel": model.head.kernel, "head/bias": model.head.bias}
    expected[numpy_vit.POSITIONS] = np.array(model.position_embedding.table)[None]
    for name, layer in layers.items():
        expected[f"{start}.{name}.lora_A.weight"] = np.transpose(layer.lora_kernel_a)
        expected[f"{start}.{name}.lora_B.weight"] = np.transpose(layer.lora_kernel_b)
    assert tensors.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(tensors[name], value, err_msg=name)
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
    assert metadata["lora_rank"] == "2" and float(metadata["lora_alpha"]) == 3


def test_the_model_is_the_trained_one(file, tmp_path):
    """Bit for bit the model in the run's own file of merged weights."""
    vit_tf.save_npz(trained(), tmp_path / "merged.npz")
    expected = vit_tf.load(tmp_path / "merged.npz").model(tiny.images())
    model, preprocessing, classes = load_adapters(backbone(), file)
    np.testing.assert_array_equal(model(tiny.images()), expected)
    assert classes == CLASSES and preprocessing.exif == "ignore"
    assert np.abs(expected - np.array(trained()(tiny.images()))).max() < 1e-5


def test_a_head_and_positions_of_the_run_are_in_the_file(file, tmp_path):
    """Also if they are frozen: positions for other images, and a head that was reset."""
    model = trained()
    model.position_embedding.table.assign(2 * model.position_embedding.table.value)
    model.head.trainable = False
    path = tmp_path / "a.safetensors"
    save_adapters(model, path, vit_tf.Preprocessing(image_size=SIZE), CLASSES)
    received = load_adapters(backbone(), path).model(tiny.images())
    np.testing.assert_allclose(received, model(tiny.images()), atol=1e-5)


def changed(file, folder, tensors=(), metadata=(), sidecar=()):
    """A copy of a file with other tensors, header or configuration."""
    path = folder / "changed.safetensors"
    with safe_open(file, "np") as opened:
        texts = opened.metadata()
    save_file({**load_file(file), **dict(tensors)}, path, {**texts, **dict(metadata)})
    values = json.loads((file.parent / "a.safetensors.json").read_text())
    values["config"] |= dict(sidecar)
    path.with_name("changed.safetensors.json").write_text(json.dumps(values))
    return path


A = "base_model.model.blocks.1.attn.qkv.lora_A.weight"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tensors": {A: np.zeros([3, 12], np.float32)}}, f"damaged.*{A}"),
        ({"tensors": {A: np.zeros([2, 12], np.int32)}}, "has dtype I32"),
        ({"tensors": {"head/kernel": np.zeros([12, 9], np.float32)}}, "damaged.*head/kernel"),
        ({"tensors": {"other": np.zeros(1, np.float32)}}, "damaged.*other"),
        ({"metadata": {"lora_alpha": "nan"}}, "holds no adapters"),
        ({"metadata": {"lora_rank": "0"}}, "holds no adapters"),
        ({"sidecar": {"layers": 3}}, "does not fit the model"),
    ],
)
def test_damaged_files(file, tmp_path, change, text):
    with pytest.raises(ValueError, match=text):
        load_adapters(backbone(), changed(file, tmp_path, **change))


def test_other_files(file, tmp_path):
    alone = tmp_path / "alone.safetensors"
    shutil.copy(file, alone)
    with pytest.raises(ValueError, match=r"alone.safetensors.json.*is missing.*Copy both"):
        load_adapters(backbone(), alone)
    vit_tf.save_safetensors(tiny.shared(), tmp_path / "model", "timm")
    with pytest.raises(ValueError, match="holds no adapters"):
        load_adapters(backbone(), tmp_path / "model" / "model.safetensors")
    # One number that no adapter is beside.
    other = tiny.model()
    other.blocks[0].norm_mlp.beta.assign(other.blocks[0].norm_mlp.beta.value + 1e-3)
    with pytest.raises(ValueError, match="another backbone of the same sizes.*init_from"):
        load_adapters(backbone()._replace(model=other), file)
    with pytest.raises(ValueError, match="does not fit the model"):
        load_adapters(backbone()._replace(model=tiny.shared(hidden_size=24)), file)
