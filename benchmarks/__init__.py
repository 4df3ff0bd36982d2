"""Benchmarks: `python -m benchmarks.bench_<name>`. TensorFlow's start-up messages are off."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
