"""Writes files of a tiny model as this version of the project does; later versions must load them.

Every layer has its own random weights, and the images are bytes. Writes `vit.keras`, `vit.npz` with
its sidecar, `vit_logits.npz` with `images` and `logits`, and `ops.json` with the definitions of the
compiled ops. Never write to a folder in `tests/golden` whose files exist.

    python -m tests.vit_tf.programs.write_old_files FOLDER
"""

import json
import os
import pathlib
import sys

import numpy as np

import vit_tf
from tests.custom_ops import definitions
from tests.vit_tf import tiny


def write(folder):
    """Writes the files to an existing folder."""
    model = tiny.model(seed=7, layers=1, representation_size=7, activation="gelu_erf")
    images = tiny.images(dtype="uint8")
    rule = vit_tf.Preprocessing(image_size=(11, 14))
    model.save(folder / "vit.keras")
    vit_tf.save_npz(model, folder / "vit.npz", rule, vit_tf.Classes(labels=tuple("abcde")))
    np.savez_compressed(folder / "vit_logits.npz", images=images, logits=model(images))
    ops = definitions.of_library().items()
    lines = ",\n".join(f' "{name}": {json.dumps(definition)}' for name, definition in ops)
    (folder / "ops.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    # The reference's results do not depend on the instruction set.
    os.environ["VIT_OPS"] = "reference"
    write(pathlib.Path(sys.argv[1]))
