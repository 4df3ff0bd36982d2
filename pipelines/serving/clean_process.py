"""Runs an exported model in a new process that can import only what it needs to run.

For a SavedModel these are TensorFlow and NumPy; for a LiteRT or ONNX file, the runtime of it and
NumPy. A model that works there works in a service without this package.
"""

import json
import os
import subprocess
import sys
import tempfile

import numpy as np

_SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "clean_process_main.py")


class CleanProcessError(RuntimeError):
    """The process could not load the model, or a call failed."""


def call_signatures(directory, calls, loader=None, timeout=600) -> tuple[list[dict], float]:
    """Loads a model in a new process, on the CPU, and calls its signatures.

    Args:
        directory: a SavedModel, or a LiteRT or ONNX file.
        calls: list of `(signature, input)`; an input is an array, a list of bytes, or None for a
            signature without inputs. Files have no names of signatures: theirs are not read.
        loader: Python file to run before a SavedModel is loaded, or None. For a file, the
            module `stored_models.runtimes`.
        timeout: seconds until the process is ended.

    Returns:
        One dict for each call, from output name to array, strings being str; and the seconds that
        loading took.

    Raises:
        CleanProcessError: if anything fails in the process, with the error message of the process.
    """
    with tempfile.TemporaryDirectory() as exchange:
        _write_calls(exchange, calls)
        # -I: no current directory, no PYTHONPATH, no user packages. The CPU, because this
        # process may hold all memory of the GPU.
        arguments = [os.path.abspath(directory), exchange]
        if loader is not None:
            arguments.append(os.path.abspath(loader))
        try:
            done = subprocess.run(
                [sys.executable, "-I", _SCRIPT, *arguments],
                cwd=exchange,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise CleanProcessError(f"no answer within {timeout} s") from None
        if done.returncode == 0:
            return _read_outputs(exchange, len(calls))
        error = os.path.join(exchange, "error.txt")
        if not os.path.exists(error):
            raise CleanProcessError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
        with open(error, encoding="utf-8") as file:
            raise CleanProcessError(file.read())


def _write_calls(exchange, calls):
    """Writes each bytes input as a uint8 array: NumPy's string type drops trailing zeros."""
    arrays, table = {}, []
    for number, (signature, inputs) in enumerate(calls):
        row = {"signature": signature, "strings": None}
        if isinstance(inputs, np.ndarray):
            arrays[str(number)] = inputs
        elif inputs is not None:
            for place, data in enumerate(inputs):
                arrays[f"{number}/{place}"] = np.frombuffer(data, np.uint8)
            row["strings"] = len(inputs)
        table.append(row)
    np.savez(os.path.join(exchange, "inputs.npz"), **arrays)
    with open(os.path.join(exchange, "calls.json"), "w", encoding="utf-8") as file:
        json.dump(table, file)


def _read_outputs(exchange, count):
    outputs = [{} for _ in range(count)]
    with np.load(os.path.join(exchange, "outputs.npz"), allow_pickle=False) as arrays:
        for key in set(arrays.files) - {"load_seconds"}:
            number, name = key.split("/", 1)
            outputs[int(number)][name] = arrays[key]
        return outputs, float(arrays["load_seconds"])
