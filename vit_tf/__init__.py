"""Vision Transformers for TensorFlow and Keras 3 (Dosovitskiy et al., 2021)."""

from vit_tf.config import ResNetConfig, StemConfig, ViTConfig
from vit_tf.create import create_model, list_models
from vit_tf.preprocessing import Preprocessing
from vit_tf.weights import load_npz, load_safetensors, save_npz, save_safetensors

__all__ = [
    "Preprocessing",
    "ResNetConfig",
    "StemConfig",
    "ViTConfig",
    "create_model",
    "list_models",
    "load_npz",
    "load_safetensors",
    "save_npz",
    "save_safetensors",
]
__version__ = "0.1.0"
