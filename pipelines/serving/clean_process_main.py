"""The program that `clean_process` starts: it imports TensorFlow and no package of this project.

`python -I clean_process_main.py SAVED_MODEL EXCHANGE [LOADER]` reads `calls.json` and `inputs.npz`
in the directory EXCHANGE and writes `outputs.npz` there, or `error.txt` if anything fails. LOADER
is a Python file to run before the model is loaded.
"""

import importlib.machinery
import json
import os
import runpy
import sys
import time

import numpy as np

# Packages that TensorFlow does not need and that an export could depend on by mistake.
BLOCKED = (
    "custom_ops",
    "keras",
    "official",
    "orbit",
    "pipelines",
    "sklearn",
    "tensorflow_datasets",
    "tf_keras",
    "vit_tf",
)


class _TensorFlowFinder(importlib.machinery.PathFinder):
    """Finds installed packages except the blocked ones, whose import fails."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in BLOCKED else super().find_spec(name, path, target)


def _call_signatures(directory, exchange, loader=None):
    # Replaces all other finders: an editable installation of this package adds its own.
    standard = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter]
    sys.meta_path[:] = [*standard, _TensorFlowFinder]
    import tensorflow as tf

    if loader:
        runpy.run_path(loader)
    begin = time.perf_counter()
    loaded = tf.saved_model.load(directory)
    load_seconds = time.perf_counter() - begin
    with open(os.path.join(exchange, "calls.json"), encoding="utf-8") as file:
        table = json.load(file)
    outputs = {}
    with np.load(os.path.join(exchange, "inputs.npz"), allow_pickle=False) as arrays:
        for number, row in enumerate(table):
            inputs = []
            if row["strings"] is not None:
                parts = [arrays[f"{number}/{place}"].tobytes() for place in range(row["strings"])]
                inputs.append(tf.constant(parts, tf.string, [len(parts)]))
            elif str(number) in arrays:
                inputs.append(tf.constant(arrays[str(number)]))
            for name, value in loaded.signatures[row["signature"]](*inputs).items():
                value = value.numpy()
                if value.dtype == object:  # TensorFlow's strings
                    value = np.char.decode(value.astype(bytes), "utf-8")
                outputs[f"{number}/{name}"] = value
    np.savez(os.path.join(exchange, "outputs.npz"), load_seconds=load_seconds, **outputs)


def _main(directory, exchange, *loader):
    try:
        _call_signatures(directory, exchange, *loader)
    except Exception as error:  # Any type: the parent process reports it.
        with open(os.path.join(exchange, "error.txt"), "w", encoding="utf-8") as file:
            file.write(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
