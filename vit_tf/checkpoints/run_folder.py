"""The weights in the folder of a run of `pipelines`, which `vit_tf` reads without that package."""

import os

from vit_tf.files import storage

_CONFIG, _FINAL, _CHECKPOINTS = "config.json", "final.npz", "checkpoints"


def is_run_folder(path) -> bool:
    """Whether a path is the folder of a run that has saved weights."""
    return storage.is_file(os.path.join(path, _CONFIG)) and (
        storage.is_file(os.path.join(path, _FINAL))
        or storage.is_folder(os.path.join(path, _CHECKPOINTS))
    )


def final_weights(path) -> str:
    """The file with the weights at the end of a run; its sidecar describes the model.

    Args:
        path: a path for which `is_run_folder` is true.

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
