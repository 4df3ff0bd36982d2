"""Vision Transformers for TensorFlow and Keras 3 (Dosovitskiy et al., 2021).

Each name is imported when it is first used, so that reading a configuration or counting parameters
loads neither TensorFlow nor Keras. `keras.models.load_model` needs the models to be registered with
Keras. `import vit_tf` registers them if TensorFlow or Keras is already imported; otherwise import
`vit_tf.models`.
"""

import importlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vit_tf import analysis, config, cost, layers, models, weights
    from vit_tf.adapters import load_adapters
    from vit_tf.classes import Classes
    from vit_tf.config import AxialResNetConfig, ResNetConfig, StemConfig, ViTConfig
    from vit_tf.create import create_model, list_models
    from vit_tf.features import feature_model
    from vit_tf.loaded import LoadedModel, load
    from vit_tf.packing import pack_model
    from vit_tf.preprocessing import Preprocessing
    from vit_tf.pretrained.records import list_weights
    from vit_tf.weights import load_npz, load_safetensors, save_npz, save_safetensors

__all__ = [
    "AxialResNetConfig",
    "Classes",
    "LoadedModel",
    "Preprocessing",
    "ResNetConfig",
    "StemConfig",
    "ViTConfig",
    "analysis",
    "config",
    "cost",
    "create_model",
    "feature_model",
    "layers",
    "list_models",
    "list_weights",
    "load",
    "load_adapters",
    "load_npz",
    "load_safetensors",
    "models",
    "pack_model",
    "save_npz",
    "save_safetensors",
    "weights",
]
__version__ = "0.1.0"

# TensorFlow reads this when it is imported. Otherwise it prints a dozen lines about the machine,
# and errors about devices that are not there; errors that matter are raised. A value of the user
# holds.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Public name -> the module that defines it; the other names of `__all__` are modules.
_MODULES = {
    "AxialResNetConfig": "vit_tf.config",
    "Classes": "vit_tf.classes",
    "LoadedModel": "vit_tf.loaded",
    "Preprocessing": "vit_tf.preprocessing",
    "ResNetConfig": "vit_tf.config",
    "StemConfig": "vit_tf.config",
    "ViTConfig": "vit_tf.config",
    "create_model": "vit_tf.create",
    "feature_model": "vit_tf.features",
    "list_models": "vit_tf.create",
    "list_weights": "vit_tf.pretrained.records",
    "load": "vit_tf.loaded",
    "load_adapters": "vit_tf.adapters",
    "load_npz": "vit_tf.weights",
    "load_safetensors": "vit_tf.weights",
    "pack_model": "vit_tf.packing",
    "save_npz": "vit_tf.weights",
    "save_safetensors": "vit_tf.weights",
}


def __getattr__(name):
    if name in _MODULES:
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value
    if name in __all__:
        return importlib.import_module(f"vit_tf.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*__all__, "__version__"]


if not sys.modules.keys().isdisjoint({"keras", "tensorflow"}):
    importlib.import_module("vit_tf.models")
