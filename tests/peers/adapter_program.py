"""Runs in `.venv-peers`: PEFT loads adapters of this project over models of timm and transformers.

    python adapter_program.py FOLDER

The folder has `adapters.safetensors`, the backbone as `timm` and `huggingface`, and `images.npy`,
float32 `[B, H, W, 3]`. The logits become `timm.npy` and `huggingface.npy`; what PEFT itself writes
for the model of timm, `peft/adapter_model.safetensors`.
"""

import pathlib
import sys

import numpy as np
import timm
import torch
from peft import LoraConfig, PeftModel
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import ViTForImageClassification

_START, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
# Names of the layers of a block, from timm's to those of transformers in memory.
_LAYERS = {
    "attn.proj": "attention.o_proj",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


def main(folder):
    with safe_open(folder / "adapters.safetensors", "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        scaling = {name: float(file.metadata()[f"lora_{name}"]) for name in ("rank", "alpha")}
    adapters = {name: x for name, x in tensors.items() if name.startswith(_START)}
    images = torch.from_numpy(np.load(folder / "images.npy").transpose(0, 3, 1, 2).copy())
    head = tensors["head/kernel"].T, tensors["head/bias"]

    model = timm.create_model(f"local-dir:{folder / 'timm'}", pretrained=True)
    # The file as it is: PEFT ignores the head.
    adapted = peft_model(model, model.head, head, tensors, scaling, folder / "given")
    adapted.save_pretrained(folder / "peft")
    save_logits(folder / "timm.npy", adapted(images))

    model = ViTForImageClassification.from_pretrained(folder / "huggingface")
    renamed = {}
    for name in {name.rpartition(".lora_")[0] for name in adapters}:
        renamed |= of_transformers(name, adapters[name + _A], adapters[name + _B])
    adapted = peft_model(model, model.classifier, head, renamed, scaling, folder / "renamed")
    save_logits(folder / "huggingface.npy", adapted(images).logits)


def peft_model(model, head, values, tensors, scaling, folder):
    """The model with its head and with adapters that PEFT loads from a folder of its own format."""
    with torch.no_grad():
        head.weight.copy_(values[0])
        head.bias.copy_(values[1])
    matrices = [name for name in tensors if name.startswith(_START)]
    layers = {name.removeprefix(_START).rpartition(".lora_")[0] for name in matrices}
    config = LoraConfig(
        r=int(scaling["rank"]), lora_alpha=scaling["alpha"], target_modules=sorted(layers)
    )
    folder.mkdir()
    config.save_pretrained(folder)
    save_file(tensors, folder / "adapter_model.safetensors")
    adapted = PeftModel.from_pretrained(model.eval(), folder)
    loaded = [name for name, _ in adapted.named_parameters() if ".lora_" in name]
    if len(loaded) != len(matrices):
        raise SystemExit(f"PEFT made {len(loaded)} matrices of {len(matrices)}")
    return adapted


def of_transformers(name, a, b):
    """The adapters of a layer for transformers, where q, k and v are layers of their own."""
    _, _, _, block, layer = name.split(".", 4)
    start = f"{_START}vit.layers.{block}."
    if layer != "attn.qkv":
        return {start + _LAYERS[layer] + _A: a, start + _LAYERS[layer] + _B: b}
    found = {}
    for part, own in zip("qkv", b.chunk(3), strict=True):
        layer = f"{start}attention.{part}_proj"
        found |= {layer + _A: a.clone(), layer + _B: own.clone()}
    return found


def save_logits(path, logits):
    np.save(path, logits.detach().numpy())


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
