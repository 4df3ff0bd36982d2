"""Computes outputs of a file with the code of the paper's authors: `PYTHON vit_jax_main.py FOLDER`.

Reads `settings.json` and `images.npy` in the folder, and writes `outputs.npy` and `answer.json`, or
only a reason into the latter. It imports nothing of this project, so it runs in any Python.
"""

import json
import os
import sys

import numpy as np

os.environ["JAX_PLATFORMS"] = "cpu"


def answer(settings, images):
    """`(answer as a dictionary, outputs or None)`."""
    try:
        import jax
        from vit_jax import checkpoint, models_vit
        from vit_jax.configs.models import MODEL_CONFIGS
    except ImportError as error:
        return {"reason": str(error)}, None
    name = settings["model"].replace("/", "_")
    if name not in MODEL_CONFIGS:
        return {"reason": f"it has no {settings['model']}"}, None
    fields = dict(MODEL_CONFIGS[name])
    fields["representation_size"] = fields["hidden_size"] if settings["has_pre_logits"] else None
    model = models_vit.VisionTransformer(num_classes=settings["num_classes"], **fields)
    params = checkpoint.load(settings["path"])
    outputs = model.apply({"params": params}, images, train=False)
    return {"name": f"vit_jax {name}, jax {jax.__version__}", "part": "logits"}, outputs


if __name__ == "__main__":
    FOLDER = sys.argv[1]
    with open(os.path.join(FOLDER, "settings.json")) as stream:
        SETTINGS = json.load(stream)
    ANSWER, OUTPUTS = answer(SETTINGS, np.load(os.path.join(FOLDER, "images.npy")))
    if OUTPUTS is not None:
        np.save(os.path.join(FOLDER, "outputs.npy"), np.asarray(OUTPUTS))
    with open(os.path.join(FOLDER, "answer.json"), "w") as stream:
        json.dump(ANSWER, stream)
