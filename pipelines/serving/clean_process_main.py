"""The program that `clean_process` starts: it imports no package of this project.

`python -I clean_process_main.py MODEL EXCHANGE [LOADER]` reads `calls.json` and `inputs.npz` in the
directory EXCHANGE and writes `outputs.npz` there, or `error.txt` if anything fails. MODEL is a
SavedModel, for which TensorFlow is imported and LOADER is a Python file to run before it is loaded.
Or it is a LiteRT or ONNX file, for which TensorFlow cannot be imported and LOADER defines
`open_runtime` and `form_of`.
"""

import importlib.machinery
import json
import os
import runpy
import sys
import time

import numpy as np

# Packages that no export needs and that one could depend on by mistake.
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


# Those that a LiteRT or ONNX file does not need either.
BLOCKED_FOR_FILES = ("tensorflow", "tf2onnx", "onnx")


class _Finder(importlib.machinery.PathFinder):
    """Finds installed packages except the blocked ones, whose import fails."""

    blocked = BLOCKED

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in cls.blocked else super().find_spec(name, path, target)


def _call(model, exchange, loader=None):
    # Replaces all other finders: an editable installation of this package adds its own.
    standard = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter]
    sys.meta_path[:] = [*standard, _Finder]
    if os.path.isfile(model):
        _Finder.blocked = BLOCKED + BLOCKED_FOR_FILES
        _call_file(model, exchange, loader)
    else:
        _call_signatures(model, exchange, loader)


def _call_file(path, exchange, loader):
    runtimes = runpy.run_path(loader)
    begin = time.perf_counter()
    with open(path, "rb") as file:
        content = file.read()
    run = runtimes["open_runtime"](runtimes["form_of"](path), content, os.cpu_count() or 1)
    load_seconds = time.perf_counter() - begin
    outputs = {}
    with np.load(os.path.join(exchange, "inputs.npz"), allow_pickle=False) as arrays:
        for number in arrays.files:
            answer = run(arrays[number])
            outputs |= {f"{number}/{name}": value for name, value in answer.items()}
    np.savez(os.path.join(exchange, "outputs.npz"), load_seconds=load_seconds, **outputs)


def _call_signatures(directory, exchange, loader):
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


def _main(model, exchange, *loader):
    try:
        _call(model, exchange, *loader)
    except Exception as error:  # Any type: the parent process reports it.
        with open(os.path.join(exchange, "error.txt"), "w", encoding="utf-8") as file:
            file.write(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
