"""Runs LiteRT and ONNX files with their own runtimes; imports only these and NumPy.

The process that checks an export runs this file too, without the rest of the package.
"""

import threading

import numpy as np

SUFFIXES = {"litert": ".tflite", "onnx": ".onnx"}
# The signature of a LiteRT file, and the input of both kinds of files.
SIGNATURE, INPUT = "serving_default", "images"


def form_of(path):
    """The form of the file at a path, "litert" or "onnx", by its suffix; None for others."""
    return next((form for form, suffix in SUFFIXES.items() if path.endswith(suffix)), None)


def open_runtime(form, content, threads=1):
    """Loads a file into its runtime, on the CPU.

    Args:
        form: "litert" or "onnx".
        content: bytes of the file.
        threads: number of threads that compute.

    Returns:
        A function from float32 images `[B, H, W, 3]` to a dict from output name to array, which
        several threads may call. A file with a fixed batch computes several batches if needed;
        the last is filled with zeros.

    Raises:
        ImportError: if the runtime is not installed.
        Exception: of any type, from the runtime, if the content is damaged.
    """
    run, batch = (_open_litert if form == "litert" else _open_onnx)(content, threads)

    def run_all(images):
        if batch is None:
            return run(images)
        parts, count = [], len(images)
        for start in range(0, max(count, 1), batch):
            part = images[start : start + batch]
            rest = [(0, batch - len(part))] + [(0, 0)] * (images.ndim - 1)
            parts.append(run(np.pad(part, rest)))
        return {name: np.concatenate([x[name] for x in parts])[:count] for name in parts[0]}

    return run_all


def _open_litert(content, threads):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=threads)
    runner = interpreter.get_signature_runner(SIGNATURE)
    batch = int(runner.get_input_details()[INPUT]["shape_signature"][0])
    one_at_a_time = threading.Lock()

    def run(images):
        with one_at_a_time:
            return runner(**{INPUT: images})

    return run, None if batch < 0 else batch


def _open_onnx(content, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    batch = session.get_inputs()[0].shape[0]

    def run(images):
        return dict(zip(names, session.run(names, {INPUT: images}), strict=True))

    return run, batch if isinstance(batch, int) else None
