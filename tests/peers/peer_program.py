"""Runs in `.venv-peers`, with PyTorch: makes models of the peers, or loads this project's models.

    python peer_program.py make FOLDER    folders of models, each with `expected.npy`
    python peer_program.py load FOLDER    reads the folders in it, writes `received.npy` in each
    python peer_program.py architectures FOLDER    settings of timm models, in `architectures.json`
    python peer_program.py pixels FOLDER    for each folder of settings in it the processors' result
        for `photos.npz`, as `pixels.npz`

Every folder of a model holds `images.npy`, uint8 `[B, H, W, 3]`.
"""

import functools
import json
import pathlib
import sys

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_data_config
from timm.layers import HybridEmbed, StdConv2d, StdConv2dSame
from timm.models.resnetv2 import ResNetV2
from timm.models.vision_transformer import VisionTransformer
from transformers import (
    AutoImageProcessor,
    DeiTConfig,
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    DINOv3ViTConfig,
    DINOv3ViTModel,
    SiglipConfig,
    SiglipModel,
    SiglipVisionConfig,
    SiglipVisionModel,
    ViTConfig,
    ViTForImageClassification,
    ViTMAEConfig,
    ViTMAEForPreTraining,
    ViTModel,
)

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5,) * 3, (0.5,) * 3
# By the name in config.json: classifiers, and models whose result is `pooler_output`.
CLASSIFIERS = {
    kind.__name__: kind
    for kind in (
        ViTForImageClassification,
        DeiTForImageClassification,
        DeiTForImageClassificationWithTeacher,
    )
}
BACKBONES = {
    kind.__name__: kind
    for kind in (ViTModel, Dinov2Model, Dinov2WithRegistersModel, DINOv3ViTModel, SiglipVisionModel)
}


def make(folder):
    make_huggingface(folder)
    make_timm(folder)


def make_huggingface(folder):
    small = dict(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=80,
        image_size=(24, 41),
        patch_size=8,
        layer_norm_eps=1e-3,
    )
    labels = {0: "ant", 1: "bee", 2: "cat", 3: "dog", 4: "eel"}

    config = ViTConfig(**small, id2label=labels)
    model = randomized(ViTForImageClassification(config))
    model.save_pretrained(folder / "hf_classifier")
    keep(folder / "hf_classifier", model, config.image_size, lambda out: out.logits)

    # Parameter names as in memory, weights in bfloat16, and another range of pixels.
    config = ViTConfig(**small | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-12})
    model = randomized(ViTForImageClassification(config)).bfloat16()
    path = folder / "hf_bfloat16_imagenet"
    path.mkdir()
    save_file(model.state_dict(), path / "model.safetensors", {"format": "pt"})
    (path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    mean, std = IMAGENET
    processor = {"image_mean": mean, "image_std": std, "size": {"height": 24, "width": 41}}
    (path / "preprocessor_config.json").write_text(json.dumps(processor))
    keep(path, model.float(), config.image_size, lambda out: out.logits, IMAGENET)

    config = ViTConfig(**small | {"image_size": 32, "pooler_output_size": 20})
    model = randomized(ViTModel(config))
    model.save_pretrained(folder / "hf_pooler")
    keep(folder / "hf_pooler", model, (32, 32), lambda out: out.pooler_output)
    make_dinov2(folder)
    make_dinov3(folder)
    make_siglip(folder)

    for name, kind in [
        ("hf_deit", DeiTForImageClassification),
        ("hf_deit_teacher", DeiTForImageClassificationWithTeacher),
    ]:
        model = randomized(kind(DeiTConfig(**small, id2label=labels)))
        model.save_pretrained(folder / name)
        keep(folder / name, model, small["image_size"], lambda out: out.logits)

    # The class token does not depend on the order of the patches, which are shuffled.
    decoder = dict(decoder_hidden_size=32, decoder_num_hidden_layers=1)
    decoder |= dict(decoder_num_attention_heads=2, decoder_intermediate_size=16)
    config = ViTMAEConfig(**small | {"image_size": 32, "mask_ratio": 0.0}, **decoder)
    model = randomized(ViTMAEForPreTraining(config))
    model.save_pretrained(folder / "hf_mae")
    keep(folder / "hf_mae", model.vit, (32, 32), lambda out: out.last_hidden_state[:, 0])


def make_siglip(folder):
    """Image encoders with names as in files and in memory, and one beside a text encoder."""
    small = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3)
    images = small | {"image_size": 32, "patch_size": 8, "layer_norm_eps": 1e-3}
    for name in ("hf_siglip", "hf_siglip_memory"):
        model, path = randomized(SiglipVisionModel(SiglipVisionConfig(**images))), folder / name
        model.save_pretrained(path)
        if name == "hf_siglip_memory":
            save_file(model.state_dict(), path / "model.safetensors")
        keep(path, model, (32, 32), lambda out: out.pooler_output)

    # 4 x 4 positions for 3 x 6 patches.
    model = randomized(SiglipVisionModel(SiglipVisionConfig(**images)))
    path = folder / "hf_siglip_resized"
    model.save_pretrained(path)
    keep(path, Interpolating(model), (24, 48), lambda out: out.pooler_output)

    texts = small | {"vocab_size": 11, "max_position_embeddings": 5}
    model = randomized(SiglipModel(SiglipConfig(text_config=texts, vision_config=images)))
    model.save_pretrained(folder / "hf_siglip_whole")
    keep(folder / "hf_siglip_whole", model.vision_model, (32, 32), lambda out: out.pooler_output)


class Interpolating(torch.nn.Module):
    """A model of Hugging Face that resizes its positions to those of the images."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, pixels):
        return self.model(pixels, interpolate_pos_encoding=True)


def make_dinov2(folder):
    """Backbones with names as in files and in memory; 6 x 6 positions for 3 x 4 patches."""
    fields = dict(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=3,
        mlp_ratio=2,
        image_size=48,
        patch_size=8,
        layer_norm_eps=1e-3,
    )
    processor = {
        "size": {"shortest_edge": 40},
        "do_center_crop": True,
        "crop_size": {"height": 25, "width": 33},
        "resample": 3,
        "image_mean": HALF[0],
        "image_std": HALF[1],
    }
    registers = Dinov2WithRegistersConfig(**fields, num_register_tokens=3)
    gated = Dinov2Config(**fields | {"mlp_ratio": 4}, use_swiglu_ffn=True)
    for name, kind, config in [
        ("hf_dinov2_gated", Dinov2Model, gated),
        ("hf_dinov2", Dinov2Model, Dinov2Config(**fields)),
        ("hf_dinov2_memory", Dinov2Model, Dinov2Config(**fields)),
        ("hf_registers", Dinov2WithRegistersModel, registers),
        ("hf_registers_memory", Dinov2WithRegistersModel, registers),
    ]:
        model, path = randomized(kind(config)), folder / name
        model.save_pretrained(path)
        if name.endswith("_memory"):
            save_file(model.state_dict(), path / "model.safetensors")
        (path / "preprocessor_config.json").write_text(json.dumps(processor))
        keep(path, model, (25, 33), lambda out: out.pooler_output)


def make_dinov3(folder):
    """Backbones with either kind of MLP, with names as in files and in memory; 3 x 4 patches."""
    fields = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=3)
    fields |= dict(image_size=32, patch_size=8, layer_norm_eps=1e-3)
    gated = dict(use_gated_mlp=True, hidden_act="silu", rope_theta=50.0)
    processor = {"size": {"height": 25, "width": 33}, "image_mean": HALF[0], "image_std": HALF[1]}
    for name, own in [
        ("hf_dinov3", {"num_register_tokens": 4}),
        ("hf_dinov3_memory", {"num_register_tokens": 4}),
        ("hf_dinov3_gated", gated),
        # The switches of the published 7B model.
        ("hf_dinov3_no_bias", gated | {"query_bias": False, "value_bias": False}),
    ]:
        model, path = randomized(DINOv3ViTModel(DINOv3ViTConfig(**fields, **own))), folder / name
        model.save_pretrained(path)
        if name.endswith("_memory"):
            save_file(model.state_dict(), path / "model.safetensors")
        (path / "preprocessor_config.json").write_text(json.dumps(processor))
        keep(path, model, (25, 33), lambda out: out.pooler_output)


def make_timm(folder):
    model = VisionTransformer(32, 8, embed_dim=128, depth=2, num_heads=2, num_classes=5)
    keep_timm(folder / "timm_shapes_alone", randomized(model), (32, 32))

    small = dict(embed_dim=48, depth=2, num_heads=3, patch_size=8, mlp_ratio=1.7, num_classes=5)
    for name, architecture, size, fields in [
        ("timm_token", "vit_base_patch16_224", (24, 41), {"act_layer": "gelu_tanh"}),
        ("timm_layer_scale", "vit_base_patch16_224", (24, 41), {"init_values": 0.5}),
        ("timm_no_bias", "vit_base_patch16_224", (24, 41), {"qkv_bias": False}),
        ("timm_gap", "vit_base_patch16_siglip_gap_224", (24, 40), {}),
        ("timm_map", "vit_base_patch16_siglip_224", (24, 40), {}),
        ("timm_map_tanh", "vit_base_patch32_siglip_256", (24, 40), {}),
        ("timm_no_slot", "flexivit_small", (24, 40), {}),
        ("timm_deit", "deit_tiny_patch16_224", (32, 32), {}),
        ("timm_deit_distilled", "deit_small_distilled_patch16_224", (32, 48), {}),
        ("timm_dinov2", "vit_small_patch14_dinov2", (24, 40), {}),
        ("timm_reg4_dinov2", "vit_small_patch14_reg4_dinov2", (24, 40), {}),
        ("timm_registers", "vit_base_patch16_224", (24, 41), {"reg_tokens": 2}),
        (
            "timm_registers_gap",
            "vit_base_patch16_siglip_gap_224",
            (24, 40),
            {"reg_tokens": 2, "no_embed_class": True},
        ),
        (
            "timm_registers_map",
            "vit_base_patch16_siglip_224",
            (24, 40),
            {"reg_tokens": 2, "no_embed_class": True},
        ),
        ("timm_hybrid_root", "vit_tiny_r_s16_p8_224", (64, 96), {}),
    ]:
        model = timm.create_model(architecture, img_size=size, **small, **fields)
        save_timm(folder / name, randomized(model), size)

    # 5 x 5 positions for 3 x 6 patches.
    for name, architecture in [
        ("timm_dinov2_resized", "vit_small_patch14_dinov2"),
        ("timm_reg4_dinov2_resized", "vit_small_patch14_reg4_dinov2"),
    ]:
        model = timm.create_model(architecture, img_size=40, dynamic_img_size=True, **small)
        save_timm(folder / name, randomized(model), (24, 48))

    model = hybrid((50, 34), (1, 2), embed_dim=48, depth=1, num_heads=3, num_classes=5)
    keep_timm(folder / "timm_hybrid", randomized(model), (50, 34))
    settings = {
        "architecture": "vit_custom_hybrid",
        "model_args": {"num_heads": 3},
        "pretrained_cfg": {"input_size": [3, 50, 34], "mean": [0.5] * 3, "std": [0.5] * 3},
    }
    (folder / "timm_hybrid" / "config.json").write_text(json.dumps(settings))

    keep_timm(folder / "timm_bit", randomized(bit((1, 2), num_classes=5)), (50, 34))
    settings = {"architecture": "resnetv2_custom_bit", "input_size": [3, 50, 34]}
    (folder / "timm_bit" / "config.json").write_text(json.dumps(settings))


def hybrid(image_size, units, **fields):
    backbone = ResNetV2(
        layers=units,
        num_classes=0,
        global_pool="",
        preact=False,
        stem_type="same",
        conv_layer=functools.partial(StdConv2dSame, eps=1e-8),
    )
    embed = functools.partial(HybridEmbed, backbone=backbone)
    return VisionTransformer(image_size, embed_layer=embed, **{"patch_size": 1} | fields)


def bit(units, **fields):
    conv = functools.partial(StdConv2d, eps=1e-8)
    return ResNetV2(layers=units, stem_type="fixed", conv_layer=conv, **fields)


def keep_timm(path, model, size, pixels=HALF):
    path.mkdir()
    save_file(model.state_dict(), path / "model.safetensors")
    keep(path, model, size, pixels=pixels)


def save_timm(path, model, size):
    """Saves a model in the format of timm."""
    timm.models.save_for_hf(model, path, safe_serialization=True)
    settings = json.loads((path / "config.json").read_text())
    pixels = settings["pretrained_cfg"]["mean"], settings["pretrained_cfg"]["std"]
    keep(path, model, size, pixels=pixels)


def keep(path, model, size, output=lambda out: out, pixels=HALF):
    images = np.random.default_rng(7).integers(0, 256, (3, *size, 3), dtype=np.uint8)
    np.save(path / "images.npy", images)
    np.save(path / "expected.npy", run(model, images, output, pixels))


def run(model, images, output=lambda out: out, pixels=HALF):
    mean, std = (np.asarray(values) for values in pixels)
    normalized = (images / 255 - mean) / std
    with torch.no_grad():
        given = torch.from_numpy(normalized.transpose(0, 3, 1, 2).astype(np.float32))
        return output(model.eval()(given)).numpy()


def randomized(model):
    """Gives every parameter a size at which every term of the model affects the output."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(center + 0.2 * noise)
    return model.eval()


def load(folder):
    for path in sorted(folder.iterdir()):
        images = np.load(path / "images.npy")
        settings = json.loads((path / "config.json").read_text())
        output = lambda out: out  # noqa: E731
        if "model_type" in settings:
            name = settings["architectures"][0]
            kind = (CLASSIFIERS | BACKBONES)[name]
            model, report = kind.from_pretrained(path, output_loading_info=True)
            check_report(path, report)
            is_backbone = name in BACKBONES
            output = (lambda out: out.pooler_output) if is_backbone else (lambda out: out.logits)
            photo = np.zeros([91, 57, 3], np.uint8)
            pixels = AutoImageProcessor.from_pretrained(path)(photo, return_tensors="pt")
            if tuple(pixels["pixel_values"].shape[2:]) != images.shape[1:3]:
                raise SystemExit(f"{path}: the processor gives {pixels['pixel_values'].shape}")
        elif "custom" in settings["architecture"]:
            extra = json.loads((path / "peer.json").read_text())
            units, arguments = extra["stage_depths"], settings.get("model_args", {})
            if "hybrid" in settings["architecture"]:
                size = arguments.pop("img_size")
                model = hybrid(size, units, **arguments, num_classes=settings["num_classes"])
            else:
                model = bit(units, width_factor=extra["width"], num_classes=settings["num_classes"])
            model.load_state_dict(timm.models.load_state_dict(str(path / "model.safetensors")))
        else:
            model = timm.create_model(f"local-dir:{path}", pretrained=True)
        np.save(path / "received.npy", run(model, images, output))


def architectures(folder):
    """Pooling, heads, activation and epsilon of all Vision Transformers that timm registers."""
    found = {}
    for name in timm.list_models(["vit_*", "deit_*", "flexivit_*", "test_vit*"]):
        with torch.device("meta"):
            try:
                model = timm.create_model(name)
            except (NotImplementedError, RuntimeError):  # hybrids run their stem to get its size
                continue
        if isinstance(model, VisionTransformer) and hasattr(model.blocks[0], "attn"):
            block = model.blocks[0]
            activation = getattr(block.mlp, "act", None)
            found[name] = {
                "pool": model.global_pool,
                "width": model.embed_dim,
                "heads": getattr(block.attn, "num_heads", None),
                "activation": type(activation).__name__,
                "epsilon": getattr(block.norm1, "eps", None),
                "names": list(model.state_dict()),
            }
    (folder / "architectures.json").write_text(json.dumps(found))


def pixels(folder):
    """The input of the models for photos: arrays `[H, W, 3]` by the same names."""
    photos = np.load(folder / "photos.npz")
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        prepare = processor_of(path)
        found = {name: prepare(photo).transpose(1, 2, 0) for name, photo in photos.items()}
        np.savez(path / "pixels.npz", **found)


def processor_of(path):
    """A function from a photo `[H, W, 3]` to the model's input `[3, H, W]`."""
    if (path / "preprocessor_config.json").exists():
        processor = AutoImageProcessor.from_pretrained(path, use_fast=False)
        return lambda photo: np.asarray(processor(photo, return_tensors="pt").pixel_values[0])
    stated = json.loads((path / "config.json").read_text())["pretrained_cfg"]
    transform = create_transform(**resolve_data_config({}, pretrained_cfg=stated))
    return lambda photo: transform(Image.fromarray(photo)).numpy()


def check_report(path, report):
    wrong = {kind: names for kind, names in report.items() if names}
    if wrong:
        raise SystemExit(f"{path}: {wrong}")


if __name__ == "__main__":
    functions = {"make": make, "load": load, "architectures": architectures, "pixels": pixels}
    functions[sys.argv[1]](pathlib.Path(sys.argv[2]))
