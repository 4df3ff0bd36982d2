"""Weights of a model that reads pixels with another mean and standard deviation.

A first convolution without padding can include the difference exactly: for the kernel `w`,
w * (scale x + offset) = (w scale) x + w offset.
"""

import numpy as np

from vit_tf.images.value_range import MEAN, STD

_KERNEL, _BIAS = "embedding/kernel", "embedding/bias"


def for_range(checkpoint, preprocessing):
    """An open checkpoint as the weights of a model whose images `preprocessing` prepares.

    Args:
        checkpoint: see `vit_tf.checkpoints`.
        preprocessing: `Preprocessing`; None means pixels in [-1, 1].

    Returns:
        `checkpoint` itself if both have the same mean and deviation, or the checkpoint has no
        preprocessing.

    Raises:
        ValueError: if they differ, and the model starts with a padded convolution (a ResNet).
    """
    source = checkpoint.preprocessing
    wanted = (MEAN, STD) if preprocessing is None else (preprocessing.mean, preprocessing.std)
    if source is None or (source.mean, source.std) == wanted:
        return checkpoint
    kernel = checkpoint.shapes.get(_KERNEL, ())
    if kernel[2:3] != (3,) or _BIAS not in checkpoint.shapes:
        raise ValueError(
            f"{checkpoint.path} reads pixels with mean={source.mean} and std={source.std}, this "
            f"model with mean={wanted[0]} and std={wanted[1]}: padded convolutions cannot include "
            "the difference. Use those of the file: the argument preprocessing of load_npz or "
            f"load_safetensors, or in a command --set data.mean={_text(source.mean)} "
            f"--set data.std={_text(source.std)}."
        )
    (mean, std), (new_mean, new_std) = (np.asarray(x) for x in ((source.mean, source.std), wanted))
    return _Converted(checkpoint, new_std / std, (new_mean - mean) / std)


def _text(values):
    return ",".join(map(str, values))


class _Converted:
    """A checkpoint whose model reads `scale * x + offset` in each color, for a model that reads x.

    Args:
        checkpoint: the open checkpoint.
        scale, offset: float64 `[3]`.
    """

    is_converted = True

    def __init__(self, checkpoint, scale, offset):
        self._checkpoint, self._scale, self._offset = checkpoint, scale, offset

    def __getattr__(self, name):
        return getattr(self._checkpoint, name)

    def read(self, key):
        """The array of a key, float32; see `vit_tf.checkpoints`."""
        array = self._checkpoint.read(key)
        if key == _KERNEL:
            return (array * self._scale[:, None]).astype(np.float32)
        if key == _BIAS:
            kernel = self._checkpoint.read(_KERNEL).astype(np.float64)
            return (array + np.einsum("ijcd,c->d", kernel, self._offset)).astype(np.float32)
        return array
