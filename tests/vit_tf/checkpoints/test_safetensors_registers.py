"""Registers and DINOv2 in timm's files: forms of the table, resized positions, refusals."""

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models
from tests.vit_tf.checkpoints.safetensors_models import TIMM
from vit_tf.layers import resize_position_table
from vit_tf.weights import open_checkpoint

BACKBONE = TIMM | {"register_tokens": 2, "num_classes": 0, "layer_scale": 0.5, "image_size": 12}
DINOV2 = "vit_small_patch14_reg4_dinov2.lvd142m"


def test_a_table_of_patches_alone(tmp_path):
    """As in the published files with registers (`no_embed_class`)."""
    model = tiny.shared(register_tokens=2, **TIMM)
    safetensors_models.save(model, tmp_path, "timm")

    def without_slots(tensors):
        table = tensors["pos_embed"]
        assert table.shape == (1, 9, 12) and not table[:, 1:3].any()
        tensors["cls_token"] = tensors["cls_token"] + table[:, :1]
        return tensors | {"pos_embed": table[:, 3:]}

    safetensors_models.rewrite(tmp_path, without_slots)
    again, checkpoint = safetensors_models.load(tmp_path)
    assert checkpoint.config == model.config
    assert not np.array(again.position_embedding.table)[0].any()
    images = tiny.images()
    np.testing.assert_allclose(again(images), model(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("classifier", ["token", "gap"])
def test_positions_of_registers_become_part_of_them(classifier, tmp_path):
    model = tiny.shared(register_tokens=2, classifier=classifier, **TIMM)
    safetensors_models.save(model, tmp_path, "timm")
    first, shift = int(classifier == "token"), np.float32([[1, 2, 3] * 4, [4, 5, 6] * 4])

    def shifted(tensors):
        table = tensors["pos_embed"].copy()
        table[:, first : first + 2] = shift
        return tensors | {"pos_embed": table, "reg_token": tensors["reg_token"] - shift}

    safetensors_models.rewrite(tmp_path, shifted)
    again, _ = safetensors_models.load(tmp_path)
    images = tiny.images()
    np.testing.assert_allclose(again(images), model(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("architecture", "method"),
    [(DINOV2, "bicubic_antialias"), ("vit_small_patch16_224", "bilinear")],
)
def test_positions_of_dinov2_are_resized_as_in_timm(architecture, method, tmp_path):
    donor = tiny.shared(**BACKBONE)
    safetensors_models.save(donor, tmp_path, "timm")
    safetensors_models.change(tmp_path / "config.json", architecture=architecture)
    model = tiny.shared(seed=1, **BACKBONE | {"image_size": (24, 16)})
    report = vit_tf.load_safetensors(model, tmp_path, head="keep")
    assert (report.resized, report.position_resize) == (((3, 3), (6, 4)), method)
    patches = np.array(donor.position_embedding.table)[1:]
    expected = resize_position_table(patches, (3, 3), (6, 4), 0, method)
    np.testing.assert_allclose(model.position_embedding.table[1:], expected, rtol=1e-6)
    np.testing.assert_array_equal(model.register_tokens.tokens, donor.register_tokens.tokens)


def test_names_of_dinov2_have_timms_heads_and_activation(tmp_path):
    """A width of 48 and 6 heads, as of small models; nothing else states them."""
    fields = BACKBONE | {"hidden_size": 48, "heads": 6}
    safetensors_models.save(tiny.shared(**fields), tmp_path, "timm")
    path = tmp_path / "config.json"
    safetensors_models.change(path, architecture=DINOV2, model_args={"init_values": 0.5})
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.config == tiny.config(**fields)


def test_weights_alone(tmp_path):
    """A table of 3 x 3 rows is one of patches."""
    model = tiny.shared(**BACKBONE | {"heads": 1})
    safetensors_models.save(model, tmp_path, "timm")
    safetensors_models.rewrite(
        tmp_path, lambda tensors: tensors | {"pos_embed": tensors["pos_embed"][:, 3:]}
    )
    (tmp_path / "config.json").unlink()
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.config == model.config.replace(layer_scale=1.0)
        assert "assumed to have no position" in " ".join(checkpoint.notes)


def refused(tmp_path, words, fields, change, **settings):
    safetensors_models.save(tiny.shared(**BACKBONE | fields), tmp_path, "timm")
    safetensors_models.rewrite(tmp_path, change)
    safetensors_models.change(tmp_path / "config.json", **settings)
    with pytest.raises(ValueError, match=words):
        open_checkpoint(tmp_path)


def test_a_head_that_reads_registers(tmp_path):
    settings = {"model_args": {"global_pool": ""}, "global_pool": ""}
    words, fields = "its head reads the registers too", {"classifier": "gap"}
    refused(tmp_path, words, fields, lambda tensors: tensors, **settings)


def test_a_gated_mlp(tmp_path):
    """As in vit_giant_patch14_dinov2: two halves of the first layer are multiplied."""
    second = {f"blocks.{i}.mlp.fc2.weight": np.ones([12, 10], np.float32) for i in range(2)}
    settings = {"architecture": "vit_giant_patch14_dinov2"}
    refused(tmp_path, "gated .SwiGLU.", {}, lambda tensors: tensors | second, **settings)
