"""Loads drawn shapes with TFDS: `python -m tests.pipelines.programs.load_shapes NAME DATA_DIR`."""

import sys

import tensorflow_datasets as tfds

import pipelines.data.builtin.shapes  # noqa: F401  It registers the builder.

if __name__ == "__main__":
    name, data_dir = sys.argv[1:]
    data = tfds.load(name, data_dir=data_dir, as_supervised=True)
    print(len(data["train"]), len(data["test"]))
