"""Imports Keras, then vit_tf; loads a model with Keras.

python -m tests.vit_tf.programs.keras_first model.keras
"""

import sys

import keras

import vit_tf  # noqa: F401 - the import registers the models

if __name__ == "__main__":
    print(type(keras.models.load_model(sys.argv[1])).__name__)
