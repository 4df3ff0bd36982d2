"""Wrote `tests/golden/old/saved_models.zip`: `python -m ... FILE`.

The file must not be replaced: later versions must serve what this version has written.
"""

import io
import pathlib
import sys
import tempfile
import zipfile

import numpy as np

from pipelines.serving import saved_model
from tests.pipelines import encoded
from tests.pipelines.serving.exports import CLASSES, make


def expected(model, preprocessing):
    """The bytes of a .npz file with an image and what the model computes for it."""
    file, images = io.BytesIO(), encoded.pixels(30, 20)[None]
    inputs = preprocessing(images)
    arrays = {"logits": model(inputs), "embedding": model.features(inputs)}
    np.savez(file, images=images, **{name: value.numpy() for name, value in arrays.items()})
    return file.getvalue()


def main(target):
    model, preprocessing = make({"layers": 1})
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(target, "w") as file:
        for form in ("portable", "fused"):
            saved_model.export(model, preprocessing, folder, form=form, classes=CLASSES)
        for path in sorted(pathlib.Path(folder).rglob("*")):
            # The library fits one version of TensorFlow only.
            if path.is_file() and "assets.extra" not in path.parts:
                file.write(path, path.relative_to(folder), zipfile.ZIP_LZMA)
        file.writestr("expected.npz", expected(model, preprocessing), zipfile.ZIP_LZMA)


if __name__ == "__main__":
    main(*sys.argv[1:])
