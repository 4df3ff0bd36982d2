"""Models that a safetensors layout cannot store; failed writes keep the old files."""

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models
from tests.vit_tf.checkpoints.safetensors_models import BIT
from vit_tf.checkpoints.safetensors.timm.residual import EPSILONS


def dinov2(**fields):
    return tiny.config(**safetensors_models.DINOV2 | fields)


def dinov3(**fields):
    return tiny.config(**safetensors_models.DINOV3 | fields)


def siglip(**fields):
    return tiny.config(**safetensors_models.SIGLIP | fields)


CUSTOM_STEM = {"stage_depths": (1,), **EPSILONS}


@pytest.mark.parametrize(
    ("layout", "config", "reason"),
    [
        ("huggingface", BIT, "Write the timm layout"),
        ("huggingface", tiny.config(stem=(), image_size=32), "write the timm layout"),
        ("huggingface", tiny.config(classifier="gap"), "class token"),
        ("huggingface", tiny.config(representation_size=7), "either a tanh layer"),
        ("timm", tiny.config(representation_size=7), "no tanh layer"),
        ("timm", tiny.config(layer_norm_epsilon=1e-5), "layer_norm_eps.*1e-06"),
        ("timm", tiny.config(stem=(), image_size=32), "group_norm_epsilon.*1e-05"),
        (
            "timm",
            tiny.config(stem=CUSTOM_STEM | {"variance_epsilon": 0.0}, image_size=16),
            "this model without",
        ),
        ("timm", tiny.config(stem=CUSTOM_STEM, image_size=20), "fill the feature map"),
        ("timm", BIT.replace(stage_depths=(1,) * 5), "at most 4 stages"),
        ("timm", tiny.config(position_embedding="learned_2d"), "is 'learned_2d'"),
        ("huggingface", tiny.config(position_embedding="learned_2d"), "is 'learned_2d'"),
        ("timm", tiny.config(axial=True), "has no axial models"),
        ("huggingface", tiny.config(axial=True), "has no axial models"),
        ("timm", tiny.config(position_embedding="relative"), "is 'relative'"),
        ("huggingface", tiny.config(position_injection="every_layer"), "is 'every_layer'"),
        ("timm", tiny.config(position_injection="every_layer_shared"), "is 'every_layer_shared'"),
        ("huggingface", tiny.config(position_embedding="rotary_2d"), "no rotary positions"),
        ("timm", tiny.config(qk_norm=True), "qk_norm is True"),
        ("huggingface", tiny.config(key_bias=False), "key_bias is False"),
        ("timm", tiny.config(activation="swiglu"), "MLP has no gate"),
        ("huggingface", tiny.config(layer_scale=0.1), "write the layout dinov2"),
        ("dinov2", dinov2(layer_scale=0.0), "write the layout huggingface"),
        ("dinov2", dinov2(num_classes=5), "num_classes=0"),
        ("dinov2", dinov2(classifier="gap"), "classifier='token'"),
        ("dinov2", dinov2(representation_size=7), "tanh layer"),
        ("dinov2", dinov2(stem=(), image_size=32), "neither a stem"),
        ("dinov2", dinov2(image_size=(12, 16)), "squares, but image_size is .12, 16."),
        ("dinov2", dinov2(mlp_size=20), "no whole mlp_ratio .*: with 2 it is 24"),
        ("dinov2", dinov2(mlp_size=30, activation="swiglu"), "with 4 it is 32"),
        ("dinov3", dinov2(), "positions are rotary_2d"),
        ("dinov2", dinov2(key_bias=False, qkv_bias=False), "key_bias is False"),
        ("timm", tiny.config(key_bias=False), "key_bias is False"),
        ("dinov3", dinov3(key_bias=True), "key_bias is True"),
        ("dinov3", dinov3(num_classes=5), "num_classes=0"),
        ("dinov3", dinov3(layer_scale=0.0), "layer_scale is 0"),
        ("dinov3", dinov3(image_size=(12, 16)), "squares, but image_size is .12, 16."),
        ("dinov2", dinov2(position_embedding="relative"), "is 'relative'"),
        ("dinov2", dinov2(register_tokens=2), "write the layout dinov2_with_registers"),
        ("dinov2_with_registers", dinov2(), "0 register tokens; write the layout dinov2"),
        ("huggingface", tiny.config(register_tokens=2), "dinov2_with_registers or timm"),
        ("huggingface", tiny.config(classifier="token_distilled"), "write the layout deit"),
        ("deit", tiny.config(), "register_tokens is 0"),
        ("deit", tiny.config(classifier="token_distilled", num_classes=0), "with its heads"),
        ("deit", tiny.config(register_tokens=1, representation_size=7), "drop one of them"),
        ("deit", tiny.config(register_tokens=1, layer_scale=0.1), "write the timm layout"),
        ("deit", tiny.config(register_tokens=1, key_bias=False), "key_bias is False"),
        ("timm", tiny.config(classifier="token_distilled", num_classes=0), "two heads and no stem"),
        ("siglip", siglip(classifier="gap"), "classifier='map'"),
        ("siglip", siglip(num_classes=5), "num_classes=0"),
        ("siglip", siglip(representation_size=7), "representation_size=None"),
        ("siglip", siglip(register_tokens=1), "nor register tokens"),
        ("siglip", siglip(layer_scale=0.1), "nor layer scale"),
        ("siglip", siglip(image_size=(12, 16)), "squares, but image_size is .12, 16."),
        ("siglip", siglip(position_embedding="learned_2d"), "is 'learned_2d'"),
        ("timm", tiny.config(register_tokens=2, classifier="unpooled"), "read the registers"),
        ("torch", tiny.config(), "layout='torch' is unknown"),
    ],
)
def test_what_cannot_be_written(tmp_path, layout, config, reason):
    preprocessing = vit_tf.Preprocessing(image_size=config.image_size)
    with pytest.raises(ValueError, match=reason):
        safetensors_models.write(tmp_path / "new", layout, config, preprocessing, None, {})
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("config", "field", "wanted", "module"),
    [
        (tiny.config(layer_norm_epsilon=1e-5), "layer_norm_epsilon", 1e-6, "LayerNorm"),
        (tiny.config(stem=(), image_size=32), "stem.group_norm_epsilon", 1e-5, "GroupNorm"),
        (BIT.replace(group_norm_epsilon=1e-6), "group_norm_epsilon", 1e-5, "GroupNorm"),
    ],
    ids=("ViT", "hybrid", "BiT"),
)
def test_an_epsilon_that_timm_cannot_read_is_set_there(tmp_path, config, field, wanted, module):
    """The error says how, and the copy of which it speaks is written."""
    model = tiny.shared_of(config)
    *path, name = field.split(".")
    value = getattr(config.stem if path else config, name)
    with pytest.raises(ValueError, match=f"timm's {field} is {wanted}, here {value}") as raised:
        safetensors_models.save(model, tmp_path, "timm")
    for part in (
        f"create_model with {field}={wanted}",
        "copy.set_weights(model.get_weights())",
        "timm.create_model('local-dir:FOLDER', pretrained=True)",
        f"set eps = {value} in every torch.nn.{module} ",
    ):
        assert part in str(raised.value)

    changed = {"stem": config.stem.to_dict() | {name: wanted}} if path else {name: wanted}
    copy = vit_tf.create_model(config.replace(**changed))
    copy.set_weights(model.get_weights())
    safetensors_models.save(copy, tmp_path, "timm")
    written = safetensors_models.load(tmp_path)[0]
    assert getattr(written.config.stem if path else written.config, name) == wanted
    images = tiny.images(size=config.image_size)
    outputs, expected = written(images), copy(images)
    assert np.abs(expected - model(images)).max() > 0
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(
    ("size", "labels", "shapes", "reason"),
    [
        ((11, 15), (), {}, "the model reads"),
        ((11, 14), ("a", "b"), {}, "2 labels for 5 classes"),
        ((11, 14), (), {"cls": (1, 1, 13)}, r"cls .*1, 13\).*1, 12\)"),
        ((11, 14), (), {"more": (3,)}, "more"),
    ],
)
@pytest.mark.parametrize("layout", ["huggingface", "timm"])
def test_arguments_that_do_not_fit(tmp_path, layout, size, labels, shapes, reason):
    model, classes = tiny.shared(), vit_tf.Classes(labels=labels)
    values = safetensors_models.arrays(model)
    preprocessing = vit_tf.Preprocessing(image_size=size)
    shapes = {key: value.shape for key, value in values.items()} | shapes
    with pytest.raises(ValueError, match=reason):
        safetensors_models.write(
            tmp_path / "new", layout, model.config, preprocessing, values.get, shapes, classes
        )
    assert not (tmp_path / "new").exists()


def test_a_failure_leaves_the_old_file(tmp_path):
    model = tiny.shared()
    safetensors_models.save(model, tmp_path, "timm")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    values = safetensors_models.arrays(model)

    def read(key):
        if key.startswith("head"):
            raise OSError("disk on fire")
        return values[key]

    shapes = {key: value.shape for key, value in values.items()}
    preprocessing = vit_tf.Preprocessing(image_size=(11, 14))
    with pytest.raises(OSError, match="fire"):
        safetensors_models.write(tmp_path, "timm", model.config, preprocessing, read, shapes)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        safetensors_models.write(
            tmp_path / "file", "timm", model.config, preprocessing, values.get, shapes
        )
