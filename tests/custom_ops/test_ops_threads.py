"""The number of threads changes no bit of the results of the compiled ops."""

import hashlib
import json
import os
import subprocess
import sys

import pytest
import tensorflow as tf

from tests.checkout import ROOT
from tests.custom_ops.compare import attend, draw, draw_uint8, embed, tables


def digests():
    """Digests of outputs and gradients by name, of sizes that are worth several threads."""
    found = {}

    def note(name, tensors):
        data = b"".join(tensor.numpy().tobytes() for tensor in tf.nest.flatten(tensors))
        found[name] = hashlib.sha256(data).hexdigest()

    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for shape, size, axis in (([4, 197], 64, None), ([1, 577], 20, None), ([4, 30, 41], 32, 2)):
            count = shape[axis or 1]
            qkv, bias = draw([*shape, 9 * size], dtype), draw([3, count, count], dtype)
            cotangent = draw([*shape, 3 * size], dtype, seed=1)
            note(f"attention {dtype} {shape}", attend("compiled", qkv, 3, cotangent, bias, axis))
        for shape, patch_size, width in (([16, 224, 224, 3], 16, 192), ([9, 230, 225, 3], 4, 48)):
            weights = tables(shape, patch_size, dtype, width)
            for images in (draw(shape, dtype), draw_uint8(shape)):
                tokens, gradients, _ = embed("compiled", images, weights, {"scale": 0.1}, None)
                note(f"patches {dtype} {images.dtype.name} {shape}", [tokens, gradients])
    return found


PROGRAM = """
import json
from tests.custom_ops import test_ops_threads
print(json.dumps(test_ops_threads.digests()))
"""


@pytest.mark.process
def test_the_same_bits_for_any_number_of_threads():
    # All tests run with one thread; only a new process can have another number.
    assert os.environ["TF_NUM_INTRAOP_THREADS"] == "1"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env=os.environ | {"TF_NUM_INTRAOP_THREADS": "4"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = digests()
    assert len(found) == len(set(found.values())) == 4 * 7
    assert json.loads(done.stdout) == found
