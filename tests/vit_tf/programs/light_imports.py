"""Uses every part of vit_tf that needs no framework.

Prints a line for each part, in the order of this file: its name, and which of Keras, NumPy and
TensorFlow are loaded after it.

    python -m tests.vit_tf.programs.light_imports
"""

import importlib
import sys
import tempfile

import vit_tf


def configurations():
    importlib.import_module("vit_tf.config.variants")


def package():
    assert vit_tf.ViTConfig and vit_tf.ResNetConfig and vit_tf.StemConfig


def families():
    importlib.import_module("vit_tf.families")


def names():
    assert "ViT-B/16" in vit_tf.list_models() and vit_tf.list_weights()


def costs():
    assert all(vit_tf.cost.macs(config) for config in vit_tf.config.VARIANTS.values())
    assert vit_tf.cost.macs("ViT-B/16")


def modules():
    assert vit_tf.analysis.__all__ and vit_tf.config.variants.get_variant


def preprocessing():
    rule = vit_tf.Preprocessing(image_size=(8, 8))
    assert vit_tf.Preprocessing.from_dict(rule.to_dict()) == rule
    classes = vit_tf.Classes(labels=("a", "b"))
    assert vit_tf.Classes.from_dict(classes.to_dict()) == classes


def local_files():
    storage = importlib.import_module("vit_tf.files.storage")
    atomic_file = importlib.import_module("vit_tf.files.atomic_file")
    with tempfile.TemporaryDirectory() as folder:
        path = storage.join(folder, "a")
        atomic_file.write_atomically(path, lambda file: file.write(b"x"))
        assert storage.read(path, 1) == b"".join(storage.chunks(path)) == b"x"


PARTS = (configurations, package, families, names, costs, modules, preprocessing, local_files)


if __name__ == "__main__":
    for part in PARTS:
        part()
        print(part.__name__, *sorted({"keras", "numpy", "tensorflow"} & sys.modules.keys()))
