"""What a path is: the kinds of files and folders of models, and the error for those not read."""

import os
from typing import Literal

from vit_tf.files import storage

# `save_safetensors` of other projects writes one file, or an index of several.
WEIGHTS_NAME = "model.safetensors"
_INDEX = f"{WEIGHTS_NAME}.index.json"
_PICKLE = "pytorch_model.bin"
# In the folder of a run of `pipelines`, which `vit_tf` reads without that package.
_CONFIG, _FINAL, _EMA, _CHECKPOINTS = "config.json", "final.npz", "ema.npz", "checkpoints"
# The file that makes a folder a SavedModel, and the folders in which `pipelines.export` writes it.
SAVED_MODEL = "saved_model.pb"
_FORMS = ("portable", "fused")

Kind = Literal[
    "npz",
    "keras",
    "safetensors",  # A file, or a folder with one.
    "run",  # With weights: final.npz, ema.npz or something in its folder of checkpoints.
    "saved_model",  # Or a folder that holds one, as `pipelines.export` writes it.
    "litert",
    "onnx",
    "begun run",  # It has saved no weights yet.
    "shards",  # A folder of safetensors in several files.
    "pickle",  # A file, or a folder whose weights are pickled.
    "folder",
    "file",
    "no file",  # A pipe or a device.
    "nothing",
]
_SUFFIXES: dict[str, Kind] = {
    ".npz": "npz",
    ".keras": "keras",
    ".safetensors": "safetensors",
    ".tflite": "litert",
    ".onnx": "onnx",
    **dict.fromkeys((".pth", ".pt", ".bin", ".ckpt", ".pkl", ".pickle"), "pickle"),
}
_SOURCE = "Expected the workdir, .npz or .keras file that it was exported from."
_RUNTIME_FILE = "is an export, which only pipelines.predict and pipelines.evaluate take."
_NO_MODEL = (
    f"{{path}} holds no trained model: expected {_CONFIG} with {_FINAL} or {_CHECKPOINTS}, or "
    f"{WEIGHTS_NAME}."
)
_REFUSALS: dict[Kind, str] = {
    "saved_model": f"{{path}} is a SavedModel, which is for serving only. {_SOURCE}",
    "litert": f"{{path}} {_RUNTIME_FILE} {_SOURCE}",
    "onnx": f"{{path}} {_RUNTIME_FILE} {_SOURCE}",
    "begun run": _NO_MODEL,
    "shards": "{path} holds a model in several files. Save it in one, for instance with "
    'save_pretrained(..., max_shard_size="100GB").',
    "folder": _NO_MODEL,
    "file": "Cannot tell what {path} is. Expected a workdir, a .npz, .keras or .safetensors file, "
    f"or a directory with {WEIGHTS_NAME}.",
    "no file": "{path} is not a file.",  # Reading a pipe or a device may never end.
}


def kind_of(path) -> Kind:
    """What is at a path or URL, by the names of files: nothing is read.

    A folder with `model.safetensors` is of another project, which also writes a `config.json`; any
    other folder with `config.json` is the folder of a run.

    Raises:
        OSError: if a URL cannot be read.
    """
    path = os.fspath(path)
    if storage.is_folder(path):
        return _kind_of_folder(path)
    if not storage.is_file(path):
        return "no file" if storage.exists(path) else "nothing"
    for end, kind in _SUFFIXES.items():
        if path.endswith(end):
            return kind
    return "file"


def _kind_of_folder(path) -> Kind:
    def has(name):
        return storage.is_file(os.path.join(path, name))

    if has(WEIGHTS_NAME):
        return "safetensors"
    if has(_INDEX):
        return "shards"
    if has(_PICKLE):
        return "pickle"
    if has(_CONFIG):
        has_weights = has(_FINAL) or has(_EMA) or _has_checkpoints(path)
        return "run" if has_weights else "begun run"
    return "folder" if exported_folder(path) is None else "saved_model"


def _has_checkpoints(path):
    folder = os.path.join(path, _CHECKPOINTS)
    return storage.is_folder(folder) and bool(storage.list_names(folder))


def exported_folder(path) -> str | None:
    """The SavedModel at a path, or in one of the folders that `pipelines.export` makes there."""
    folders = (os.fspath(path), *(os.path.join(path, form) for form in _FORMS))
    return next((x for x in folders if storage.is_file(os.path.join(x, SAVED_MODEL))), None)


def refusal(path, kind) -> ValueError:
    """The error for a path of a kind that is not read, or not there: what to give instead."""
    if kind == "pickle":
        return ValueError(_pickle_refusal(os.fspath(path)))
    return ValueError(_REFUSALS[kind].format(path=path))


def _pickle_refusal(file):
    """Has a command that converts the file, which has the name of Hugging Face in a folder."""
    if storage.is_folder(file):
        file = os.path.join(file, _PICKLE)
    folder, name = os.path.split(file)
    name = "model" if name == _PICKLE else os.path.splitext(name)[0]
    new = os.path.join(folder, f"{name}.safetensors")
    return (
        f"{file} is refused: pickles are not read, since they can run code. Convert it where "
        'PyTorch is installed: python -c "import torch, safetensors.torch as s; s.save_file('
        "{k: v.clone().contiguous() for k, v in "
        f"torch.load('{file}', 'cpu', weights_only=True).items()}}, '{new}')\""
    )


def final_weights(path) -> str:
    """The file with the weights at the end of a run; its sidecar describes the model.

    Args:
        path: a path of the kind "run".

    Raises:
        ValueError: if the run has not ended.
    """
    final = os.path.join(path, _FINAL)
    if not storage.is_file(final):
        raise ValueError(
            f"{path} is a run that has not ended: it has {_CHECKPOINTS}, and no {_FINAL}. Start "
            "the command of the run again to finish it, or convert its newest checkpoint: "
            f"python -m pipelines.convert {path} model.npz"
        )
    return final
