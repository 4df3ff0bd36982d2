"""Imports all public names of vit_tf and nothing before it; loads a model with Keras.

python -m tests.vit_tf.programs.all_names model.keras
"""

import sys

from vit_tf import *  # noqa: F403
from vit_tf import analysis

if __name__ == "__main__":
    import keras

    assert all(getattr(analysis, name) for name in analysis.__all__)
    print(create_model.__name__)  # noqa: F405
    print(type(keras.models.load_model(sys.argv[1])).__name__)
