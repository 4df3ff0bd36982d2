"""Refuses pickled weights, with a command that converts them."""

import os

from vit_tf.files import storage

_ENDS = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".pickle")
# The name in folders of Hugging Face and timm.
_NAME = "pytorch_model.bin"


def refuse_pickle(path):
    """Refuses a file of pickled weights, and a folder whose weights are pickled.

    Args:
        path: a file, a folder without `model.safetensors`, or the URL of one.

    Raises:
        ValueError: if the path is refused.
    """
    file = os.fspath(path)
    if storage.is_file(os.path.join(file, _NAME)):
        file = os.path.join(file, _NAME)
    elif not file.endswith(_ENDS):
        return
    folder, name = os.path.split(file)
    name = "model" if name == _NAME else os.path.splitext(name)[0]
    new = os.path.join(folder, f"{name}.safetensors")
    raise ValueError(
        f"{file} is refused: pickles are not read, since they can run code. Convert it where "
        'PyTorch is installed: python -c "import torch, safetensors.torch as s; s.save_file('
        "{k: v.clone().contiguous() for k, v in "
        f"torch.load('{file}', 'cpu', weights_only=True).items()}}, '{new}')\""
    )
