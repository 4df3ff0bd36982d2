"""Vision Transformers for TensorFlow and Keras 3 (Dosovitskiy et al., 2021)."""

from vit_tf.checkpoints import load_npz, save_npz
from vit_tf.config import ViTConfig
from vit_tf.models import create_model, list_models
from vit_tf.preprocessing import Preprocessing

__all__ = ["Preprocessing", "ViTConfig", "create_model", "list_models", "load_npz", "save_npz"]
__version__ = "0.1.0"
