"""Adds low-rank adapters to the encoder blocks of a Vision Transformer, and finds them."""

from typing import Any

import keras

from vit_tf.config.lora import Lora
from vit_tf.layers.dense import Dense
from vit_tf.models.image_model import all_layers

# Names of dense layers in timm, and so in the files of adapters of its models.
_MLP_NAMES = {"dense_0": "fc1", "dense_1": "fc2"}


def add_adapters(model, lora: Lora):
    """Freezes the kernels of the chosen dense layers and gives each an adapter that starts at 0.

    A starts with Gaussian numbers of variance 1 / inputs, B with zeros, so that the model computes
    what it did. The variables of all other layers are as before.

    Args:
        model: a built `VisionTransformer`.
        lora: the adapters.

    Raises:
        ValueError: if the model cannot have them.
    """
    lora.check(model.config)
    chosen = lora.layers(model.config)
    for name, layer in adaptable(model, lora.targets).items():
        if _layer_of(model, name) in chosen:
            gaussian = keras.initializers.RandomNormal(stddev=layer.kernel.shape[0] ** -0.5)
            layer.enable_lora(lora.rank, lora.alpha, a_initializer=gaussian)
    for index, block in enumerate(model.blocks):
        block.mlp.dense_0.keeps_slope = index // _blocks_per_layer(model) >= min(chosen)


def adaptable(model, targets) -> dict[str, Any]:
    """The dense layers of all blocks that `targets` of `Lora` names, by their name in timm."""
    found = {}
    for index, block in enumerate(model.blocks):
        attention = block.attention
        of_mlp = [layer for layer in vars(block.mlp).values() if isinstance(layer, Dense)]
        layers = {
            "qkv": {"attn.qkv": attention.qkv},
            "projection": {"attn.proj": attention.out},
            "mlp": {f"mlp.{_MLP_NAMES.get(layer.name, layer.name)}": layer for layer in of_mlp},
        }
        found |= {
            f"blocks.{index}.{name}": layer
            for target in targets
            for name, layer in layers[target].items()
        }
    return found


def adapted(model) -> list:
    """The layers of any model, or of a model in it, that have adapters."""
    return [x for x in all_layers(model) if isinstance(x, Dense) and x.lora_enabled]


def _layer_of(model, name):
    """The number of the encoder layer of a layer that `adaptable` names."""
    return int(name.split(".")[1]) // _blocks_per_layer(model)


def _blocks_per_layer(model):
    """An axial model has two blocks in each encoder layer."""
    return len(model.blocks) // model.config.layers
