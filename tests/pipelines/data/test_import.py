"""Importing the data packages prints nothing and starts no device."""

import os
import subprocess
import sys

import pytest

_PROGRAM = """
from pipelines.data import batch_listing, order, pipeline, reading, stateless_random
from pipelines.data.builtin import digits, shapes
from pipelines.data.sources import arrays, open, record_writer, tfds_catalog
from pipelines.data.transforms import augmentation, mixing, randaugment
import tensorflow as tf
# Impossible once TensorFlow has started its devices.
tf.config.threading.set_inter_op_parallelism_threads(1)
"""


@pytest.mark.process
def test_import_is_silent_and_starts_no_device():
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == ""
    assert result.stderr == ""


@pytest.mark.process
def test_order_needs_no_tensorflow():
    program = "import sys, pipelines.data.order; assert 'tensorflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
