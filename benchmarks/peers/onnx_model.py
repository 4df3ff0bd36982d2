"""Writes `model.onnx` from the model of timm in a folder; runs in `.venv-peers`.

usage: python -m benchmarks.peers.onnx_model FOLDER
"""

import json
import pathlib
import sys

import timm
import torch


def main(folder):
    folder = pathlib.Path(folder)
    height, width = json.loads((folder / "fields.json").read_text())["image_size"]
    model = timm.create_model(f"local-dir:{folder / 'timm'}", pretrained=True).eval()
    torch.onnx.export(
        model,
        (torch.zeros(2, 3, height, width),),
        folder / "model.onnx",
        input_names=["images"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=20,
        dynamo=True,
    )


if __name__ == "__main__":
    main(sys.argv[1])
