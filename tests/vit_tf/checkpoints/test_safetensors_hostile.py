"""Damaged, hostile or unknown safetensors: one short error, and no model is built."""

import contextlib
import itertools
import json
import math
import shutil
import struct

import numpy as np
import pytest

import vit_tf
from tests.vit_tf import tiny
from tests.vit_tf.checkpoints import safetensors_models
from vit_tf.checkpoints.safetensors.safetensors_file import SafetensorsFile
from vit_tf.checkpoints.safetensors.timm.residual import EPSILONS
from vit_tf.weights import open_checkpoint

STEM = {"stage_depths": (1,), "width": 0.5, **EPSILONS}
MODELS = {
    "huggingface": ("huggingface", tiny.config()),
    "timm": ("timm", tiny.config()),
    "hybrid": ("timm", tiny.config(stem=STEM, image_size=(8, 12), patch_size=1)),
    "deit": ("deit", tiny.config(classifier="token_distilled", layers=1)),
    "dinov2_with_registers": (
        "dinov2_with_registers",
        tiny.config(**safetensors_models.DINOV2, register_tokens=2, layers=1),
    ),
    "dinov3": ("dinov3", tiny.config(**safetensors_models.DINOV3, register_tokens=2, layers=1)),
    "siglip": ("siglip", tiny.config(**safetensors_models.SIGLIP, layers=1)),
    "bit": ("timm", vit_tf.ResNetConfig(image_size=(32, 40), num_classes=5, **STEM)),
}

# A tensor that is dropped when it is read.
UNUSED = "embeddings.mask_token"


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A folder with a folder of each kind."""
    folder = tmp_path_factory.mktemp("originals")
    for kind, (layout, config) in MODELS.items():
        safetensors_models.save(vit_tf.create_model(config), folder / kind, layout)
    return folder


@pytest.fixture
def saved(originals, tmp_path):
    """`saved(kind)`: a folder with a small model of that kind."""

    def save(kind):
        return shutil.copytree(originals / kind, tmp_path, dirs_exist_ok=True)

    return save


def check_refused(path, *words):
    """The error names the file or its settings, holds all `words`, and has one paragraph."""
    with pytest.raises(ValueError) as caught:
        open_checkpoint(path)
    message = str(caught.value)
    folder = path if path.is_dir() else path.parent
    assert str(folder) in message
    assert "\n" not in message and len(message) < 700
    message = message.replace(str(folder), "")  # its name holds the name of the test
    for word in words:
        assert word in message, message


# Files that are not valid safetensors.


def entry(shape=(2,), begin=0, dtype="F32", size=4, **changes):
    end = begin + size * math.prod(shape)
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]} | changes


def pack(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


EIGHT = b"\0" * 8
DAMAGED = {
    "empty": (b"", "a header of 0 bytes in a file of 0"),
    "no header": (b"\x01", "in a file of 1"),
    "length beyond the file": (pack({}, length=2**63), "a header of"),
    "length beyond the limit": (
        struct.pack("<Q", 9 * 2**20) + b" " * 9 * 2**20,
        "more than 8388608",
    ),
    "no JSON": (pack(b"\x80\x04pickle"), "header"),
    "not UTF-8": (pack(b'{"\xff": 1}'), "header"),
    "a list": (pack(b"[]"), "not a JSON object"),
    "nested": (pack(b'{"a":' * 100_000), "header"),
    "a name twice": (pack(b'{"a": 1, "a": 2}'), "a name occurs twice"),
    "a number": (pack({"a": 1}), "'a'"),
    "no dtype": (pack({"a": {"shape": [1], "data_offsets": [0, 4]}}), "dtype"),
    "unknown dtype": (pack({"a": entry(dtype="X9")}, EIGHT), "X9"),
    "dtype of a wrong type": (pack({"a": entry(dtype=["F32"])}, EIGHT), "'a'"),
    "shape of a wrong type": (pack({"a": entry(shape=(2,)) | {"shape": "22"}}, EIGHT), "'a'"),
    "negative shape": (pack({"a": entry() | {"shape": [-2, -1]}}, EIGHT), "'a'"),
    "true as a size": (pack({"a": entry() | {"shape": [True, 2]}}, EIGHT), "'a'"),
    "fractions": (pack({"a": entry() | {"shape": [2.0]}}, EIGHT), "'a'"),
    "many axes": (pack({"a": entry(shape=(1,) * 9, size=8)}, EIGHT), "'a'"),
    "three offsets": (pack({"a": entry(data_offsets=[0, 4, 8])}, EIGHT), "'a'"),
    "terabytes": (pack({"a": entry() | {"shape": [2**40]}}, EIGHT), "8 bytes"),
    "beyond the file": (pack({"a": entry(shape=(4,))}, EIGHT), "it has"),
    "more data": (pack({"a": entry()}, EIGHT + EIGHT), "it has"),
    "an overlap": (pack({"a": entry(), "b": entry(begin=4)}, EIGHT + b"\0" * 4), "overlap"),
    "a gap": (pack({"a": entry(), "b": entry(begin=12)}, EIGHT * 2 + b"\0" * 4), "gap"),
    "negative offsets": (pack({"a": entry(data_offsets=[-8, 0])}, EIGHT), "'a'"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files(tmp_path, name):
    data, words = DAMAGED[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    check_refused(path, "not a readable .safetensors file", words)


LIMITS_OF_OURS = {"length beyond the limit", "many axes"}


@pytest.mark.parametrize("name", sorted(DAMAGED.keys() - LIMITS_OF_OURS))
def test_the_library_refuses_them_too(tmp_path, name):
    """Except for sizes beyond all models, other programs reject the same files."""
    safetensors = pytest.importorskip("safetensors")
    path = tmp_path / "model.safetensors"
    path.write_bytes(DAMAGED[name][0])
    with pytest.raises(safetensors.SafetensorError):
        safetensors.safe_open(path, framework="np")


def test_every_truncation_is_found(saved):
    path = saved("timm") / "model.safetensors"
    data = path.read_bytes()
    for length in (*range(0, 64), len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        check_refused(path, "not a readable .safetensors file")


def test_a_file_that_shrinks_while_it_is_open(saved):
    path = saved("timm") / "model.safetensors"
    with contextlib.closing(SafetensorsFile(path)) as file:
        last = list(file.shapes)[-1]
        with open(path, "r+b") as shrunk:
            shrunk.truncate(path.stat().st_size - 1)
        with pytest.raises(ValueError, match="ends after"):
            file.read(last)


@pytest.mark.parametrize("dtype", ["I32", "C64", "BOOL", "F8_E4M3"])
def test_numbers_that_are_no_floats(saved, dtype):
    """A whole model with one tensor of a dtype that is not float."""
    path = saved("timm") / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    size = {"I32": 4, "C64": 8, "BOOL": 1, "F8_E4M3": 1}[dtype]
    (width,) = header["norm.weight"]["shape"]
    start, shift = header["norm.weight"]["data_offsets"][0], (size - 4) * width
    for name, value in header.items():
        if name != "__metadata__":
            begin, end = value["data_offsets"]
            moved = [begin + shift * (begin > start), end + shift * (begin >= start)]
            value["data_offsets"] = moved
    header["norm.weight"]["dtype"] = dtype
    body = data[8 + length :] + b"\0" * max(shift, 0)
    path.write_bytes(pack(header, body[: len(data) - 8 - length + shift]))
    check_refused(path, f"norm.weight has dtype {dtype}", "F16")


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no checkpoint file"):
        open_checkpoint(tmp_path / "no.safetensors")
    with pytest.raises(FileNotFoundError, match="There is no checkpoint file"):
        open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    check_refused(tmp_path, "several files", "max_shard_size")


# The JSON files beside the weights.


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[1, 2]",
        b"null",
        b'{"a":' * 100_000,
        b'{"image_size": ' + b"9" * 5000 + b"}",
        b" " * (33 * 2**20),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json"])
def test_settings_that_are_no_object(saved, name, text):
    folder = saved("huggingface")
    (folder / name).write_bytes(text)
    check_refused(folder, name)


WRONG = [
    ("huggingface", "config.json", {"model_type": "deit"}, "'deit'", "facebook/deit-base"),
    ("huggingface", "config.json", {"model_type": "swin"}, "model_type is 'swin'"),
    ("huggingface", "config.json", {"model_type": 7}, "a string"),
    ("huggingface", "config.json", {"hidden_act": "quick_gelu"}, "gelu_pytorch_tanh"),
    ("huggingface", "config.json", {"hidden_act": ["gelu"]}, "a string"),
    ("huggingface", "config.json", {"qkv_bias": False}, "biases"),
    ("huggingface", "config.json", {"num_channels": 4}, "num_channels is 4"),
    ("huggingface", "config.json", {"num_attention_heads": 5}, "a divisor of the width 12"),
    ("huggingface", "config.json", {"num_attention_heads": 0}, "a divisor of the width 12"),
    ("huggingface", "config.json", {"num_attention_heads": 3.0}, "an integer"),
    ("huggingface", "config.json", {"num_attention_heads": True}, "an integer"),
    ("huggingface", "config.json", {"head_dim": 8}, "head_dim is 8"),
    ("huggingface", "config.json", {"hidden_size": 16}, "hidden_size is 16. Expected 12"),
    ("huggingface", "config.json", {"num_hidden_layers": 3}, "Expected 2"),
    ("huggingface", "config.json", {"intermediate_size": 24}, "Expected 20"),
    ("huggingface", "config.json", {"layer_norm_eps": "1e-12"}, "a finite number"),
    ("huggingface", "config.json", {"layer_norm_eps": float("nan")}, "a finite number"),
    ("huggingface", "config.json", {"layer_norm_eps": 10**400}, "a finite number"),
    ("huggingface", "config.json", {"layer_norm_eps": 0}, "above 0"),
    ("huggingface", "config.json", {"image_size": 12}, "6 patch positions", "3 x 3"),
    ("huggingface", "config.json", {"image_size": [11]}, "height and width"),
    ("huggingface", "config.json", {"image_size": 10**9}, "from 1 to 16384"),
    ("huggingface", "config.json", {"image_size": -1}, "height and width"),
    ("huggingface", "config.json", {"id2label": {str(k): k for k in range(5)}}, "a string"),
    ("huggingface", "preprocessor_config.json", {"image_std": [1, 0, 1]}, "std=[1.0, 0.0"),
    ("huggingface", "preprocessor_config.json", {"image_mean": [0.5]}, "3 finite numbers"),
    ("huggingface", "preprocessor_config.json", {"image_mean": ["a"] * 3}, "3 finite numbers"),
    ("huggingface", "preprocessor_config.json", {"size": {"longest_edge": 7}}, "size is"),
    ("huggingface", "preprocessor_config.json", {"size": {"height": "7"}}, "size.height is '7'"),
    ("huggingface", "preprocessor_config.json", {"do_normalize": 1}, "true or false"),
    ("timm", "config.json", {"model_args": {"qkv_bias": False}}, "Expected true, as in the"),
    ("deit", "config.json", {"model_type": "vit"}, "model_type is 'vit'. Expected 'deit'"),
    ("dinov2_with_registers", "config.json", {"num_register_tokens": 4}, "Expected 2"),
    ("dinov2_with_registers", "config.json", {"model_type": "dinov2"}, "'dinov2_with_registers'"),
    ("dinov3", "config.json", {"model_type": "dinov2"}, "'dinov3_vit'"),
    (
        "dinov3",
        "config.json",
        {"key_bias": True},
        "key_bias is True. Expected false",
        "vit_tf does not have",
    ),
    ("dinov3", "config.json", {"value_bias": False}, "value_bias is False. Expected true"),
    ("dinov3", "config.json", {"query_bias": False}, "value_bias is True. Expected false"),
    ("dinov3", "config.json", {"mlp_bias": False}, "mlp_bias is False", "true"),
    ("dinov3", "config.json", {"use_gated_mlp": True}, "Expected false, as in the tensors"),
    ("dinov3", "config.json", {"rope_theta": 1}, "a number above 1"),
    ("dinov3", "config.json", {"layerscale_value": 0}, "a number above 0"),
    ("dinov3", "config.json", {"num_attention_heads": 4}, "multiple of 4 channels"),
    ("dinov3", "config.json", {"num_register_tokens": 5}, "Expected 2"),
    ("dinov3", "preprocessor_config.json", {"size": {"height": 10**9, "width": 4}}, "16384"),
    ("siglip", "config.json", {"model_type": "clip"}, "'siglip' or 'siglip_vision_model'"),
    ("siglip", "config.json", {"model_type": "siglip2_vision_model"}, "any size (NaFlex)"),
    ("siglip", "config.json", {"hidden_act": "relu"}, "gelu_pytorch_tanh"),
    ("siglip", "config.json", {"patch_size": 16}, "patch_size is 16. Expected 4"),
    ("siglip", "config.json", {"image_size": 24}, "9 patch positions", "6 x 6"),
    ("siglip", "config.json", {"vision_config": 3}, "a JSON object"),
    ("timm", "config.json", {"architecture": "vit_relpos_base_patch16_224"}, "known here"),
    ("timm", "config.json", {"architecture": ["vit"]}, "a string"),
    ("bit", "config.json", {"architecture": "resnetv2_50d_gn"}, "resnetv2_50x1_bit"),
    ("hybrid", "config.json", {"architecture": "vit_small_resnet26d_224"}, "known here"),
    ("timm", "config.json", {"num_classes": 6}, "num_classes is 6. Expected 5"),
    ("timm", "config.json", {"pretrained_cfg": []}, "a JSON object"),
    ("timm", "config.json", {"model_args": {"norm_layer": "rmsnorm"}}, "norm_layer"),
    ("timm", "config.json", {"model_args": {"padding_same": False}}, "padding_same is False"),
    ("bit", "config.json", {"global_pool": "max"}, "global_pool is 'max'"),
    ("bit", "config.json", {"model_args": {"act_layer": "silu"}}, "ReLU"),
    ("timm", "config.json", {"model_args": {"act_layer": "quick_gelu"}}, "gelu_tanh"),
    ("timm", "config.json", {"model_args": {"num_heads": 5}}, "heads=5"),
    ("timm", "config.json", {"model_args": {}, "global_pool": "avg"}, "global_pool 'avg'"),
    ("timm", "config.json", {"model_args": {"img_size": [20, 20]}}, "5 x 5 patches"),
    ("bit", "config.json", {"pretrained_cfg": {"input_size": [1, 8, 8]}}, "[3, height, width]"),
    ("bit", "config.json", {"pretrained_cfg": {"input_size": [3, 8.5, 8]}}, "[3, height, width]"),
    ("bit", "config.json", {"pretrained_cfg": {"input_size": [3, 0, 8]}}, "from 1 to 16384"),
    ("bit", "config.json", {"pretrained_cfg": {"mean": [1e9] * 3}}, "mean="),
    ("hybrid", "config.json", {"pretrained_cfg": {"std": [0.4, 0, 1]}}, "std="),
    ("bit", "config.json", {"pretrained_cfg": {"crop_pct": 0}}, "a fraction"),
    ("bit", "config.json", {"pretrained_cfg": {"crop_pct": 1.5}}, "a fraction"),
]


@pytest.mark.parametrize(
    ("kind", "name", "values", "words"), [(*row[:3], row[3:]) for row in WRONG]
)
def test_wrong_settings(saved, kind, name, values, words):
    folder = saved(kind)
    safetensors_models.change(folder / name, **values)
    check_refused(folder, *words)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("huggingface", {"model_type": "deit"}),
        ("huggingface", {"model_type": "dinov2"}),
        ("huggingface", {"hidden_act": "relu"}),
        ("huggingface", {"qkv_bias": False}),
        ("timm", {"architecture": "vit_relpos_base_patch16_224"}),
        ("timm", {"model_args": {"act_layer": "quick_gelu"}}),
        ("timm", {"model_args": {"norm_layer": "rmsnorm"}}),
    ],
)
def test_advice_on_models_that_vit_tf_does_not_have(saved, kind, values):
    folder = saved(kind)
    safetensors_models.change(folder / "config.json", **values)
    with pytest.raises(ValueError, match="file is right.*this model") as caught:
        open_checkpoint(folder)
    assert "again" not in str(caught.value) and "Correct" not in str(caught.value)


# Tensors of unknown models.


def ones(*shape):
    return np.ones(shape, np.float32)


REASONS = [
    ("timm", "blocks.0.ls1.gamma", "lacks blocks.0.ls2.gamma"),
    ("timm", "blocks.0.gamma_1", "layer scale of another kind"),
    ("timm", "blocks.1.attn.q_norm.weight", "normalizes queries and keys"),
    ("timm", "reg_token", "reg_token has shape (3,). Expected 3 axes"),
    ("timm", "dist_token", "5 patch positions"),
    ("timm", "head_dist.weight", "do not have"),
    ("timm", "fc_norm.weight", "averages normalized tokens"),
    ("timm", "norm_pre.weight", "CLIP"),
    ("timm", "patch_embed.norm.weight", "patch embeddings"),
    ("timm", "blocks.0.mlp.norm.weight", "norms inside"),
    ("timm", "blocks.0.mlp.fc1_g.weight", "SwiGLU"),
    ("timm", "blocks.0.attn.q_bias", "not one qkv"),
    ("timm", "rel_pos.mlp.fc1.weight", "relative"),
    ("timm", "patch_embed.backbone.0.conv.weight", "without residuals"),
    ("timm", "patch_embed.backbone.layer1.weight", "ResNet of another kind"),
    ("hybrid", "patch_embed.backbone.stem.norm.running_mean", "BatchNorm"),
    ("bit", "stem.conv1.weight", "several convolutions"),
    ("timm", "blocks.0.unknown", "blocks.0.unknown, which vit_tf's models do not have"),
    ("bit", "stages.0.blocks.0.se.weight", "do not have"),
    ("huggingface", "vit.encoder.layer.0.layer_scale1.lambda1", "layer scale"),
    ("huggingface", "vit.embeddings.distillation_token", "model_type is 'vit'. Expected 'deit'"),
    ("huggingface", "cls_classifier.weight", "but it has no distillation token"),
    ("deit", "classifier.weight", "Expected 2 axes"),
    ("huggingface", "vit.embeddings.patch_embeddings.backbone.bit.weight", "hybrid"),
    ("huggingface", "vit.encoder.layer.0.unknown", "do not have"),
    ("huggingface", "embeddings.cls_token", "two names of one tensor"),
    ("siglip", "vision_model.head.probe", "two names of one tensor"),
    ("siglip", "embeddings.class_embedding", "CLIP"),
    ("siglip", "classifier.weight", "mean of the patches"),
    ("siglip", "encoder.layers.0.unknown", "do not have"),
]


@pytest.mark.parametrize(("kind", "name", "words"), REASONS)
def test_tensors_too_many(saved, kind, name, words):
    folder = saved(kind)
    safetensors_models.rewrite(folder, lambda tensors: tensors | {name: ones(3)})
    check_refused(folder, words)


@pytest.mark.parametrize("kind", MODELS)
def test_each_missing_tensor_is_found(saved, kind):
    """Without some names a layer seems not to exist, so that the model only has fewer layers."""
    folder = saved(kind)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    with contextlib.closing(SafetensorsFile(file)) as opened:
        names = [name for name in opened.shapes if name != UNUSED]
    for missing in names:
        safetensors_models.rewrite(
            folder, lambda tensors, out=missing: {k: v for k, v in tensors.items() if k != out}
        )
        if missing == "pos_embed":
            assert safetensors_models.load(folder)[0].position_embedding.table is None
        else:
            check_refused(folder)
        file.write_bytes(whole)


@pytest.mark.parametrize("kind", MODELS)
def test_each_misshapen_tensor_is_found(saved, kind):
    folder = saved(kind)
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    with contextlib.closing(SafetensorsFile(file)) as opened:
        shapes = {name: shape for name, shape in opened.shapes.items() if name != UNUSED}
    mistakes = (
        lambda shape: (),
        lambda shape: (0, *shape[1:]),
        lambda shape: (*shape[:-1], shape[-1] + 1),
        lambda shape: (*shape, 1),
    )
    for (name, shape), mistake in zip(shapes.items(), itertools.cycle(mistakes)):
        other = {name: ones(*mistake(shape))}
        safetensors_models.rewrite(folder, lambda tensors, other=other: tensors | other)
        check_refused(folder)
        file.write_bytes(whole)


@pytest.mark.parametrize(
    ("missing", "words"),
    [("1.attn.qkv.bias", "lacks blocks.1.attn.qkv.bias"), ("0.attn.qkv.bias", "do not have")],
)
def test_a_bias_is_in_all_blocks_or_in_none(saved, missing, words):
    folder = saved("timm")
    safetensors_models.rewrite(
        folder, lambda tensors: {k: v for k, v in tensors.items() if missing not in k}
    )
    check_refused(folder, words)


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("patch_embed.proj.weight", (12, 3, 4, 5), "square patches"),
        ("patch_embed.proj.weight", (12, 4, 4, 4), "3 channels of an image"),
        ("pos_embed", (1, 8, 12), "7 patch positions, and images of 11 x 14 have 2 x 3"),
    ],
)
def test_structures_that_do_not_fit(saved, name, shape, words):
    folder = saved("timm")
    safetensors_models.rewrite(folder, lambda tensors: tensors | {name: ones(*shape)})
    check_refused(folder, words)


@pytest.mark.parametrize("kind", ["huggingface", "timm"])
def test_rectangles_need_a_stated_size(saved, kind):
    folder = saved(kind)
    for path in folder.glob("*.json"):
        path.unlink()
    check_refused(folder, "6 patch positions, which are not a square", "config.json")


def test_numbers_in_names_do_not_allocate(saved):
    """A block number of a billion allocates nothing: the error names a missing block."""
    folder = saved("timm")
    extra = {"blocks.1000000000.norm1.weight": ones(12)}
    safetensors_models.rewrite(folder, lambda tensors: tensors | extra)
    check_refused(folder, "blocks.2.norm1.weight")


def test_neither_layout(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(pack({"a": entry()}, EIGHT))
    check_refused(tmp_path, "neither", "It holds a.")
    (tmp_path / "model.safetensors").write_bytes(pack({}))
    check_refused(tmp_path, "It holds no tensors.")


def test_refused_files_are_closed(saved):
    """Rejected files must be closed too: warnings of unclosed files are errors in the tests."""
    folder = saved("timm")
    safetensors_models.change(folder / "config.json", num_classes=6)
    for _ in range(50):
        check_refused(folder, "num_classes")
