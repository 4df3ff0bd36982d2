"""Benchmarks: `python -m benchmarks.bench_<name>`.

TensorFlow's start-up messages are off, and it uses oneDNN on every processor, as in commands
(`pipelines/distribution/onednn.py`), unless the environment says otherwise.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
