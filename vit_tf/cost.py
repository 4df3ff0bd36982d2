"""Computes the costs of a model from its configuration alone, without building the model.

All functions take a name of `vit_tf.list_models`, a configuration or a built model; of a
`MaskedPatchModel` the encoder counts.

`T` tokens, `D` width, `h` heads. MAC: one multiply-accumulate, two FLOPs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vit_tf.analysis import lora_cost
from vit_tf.analysis.layer_costs import FLOAT32, Cost
from vit_tf.config import ModelConfig
from vit_tf.config.lora import Lora
from vit_tf.config.variants import get_variant
from vit_tf.families import family_of

if TYPE_CHECKING:
    import keras

    Model = str | ModelConfig | keras.Model

# Bytes of a number.
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Bytes of a parameter that an optimizer keeps beside the momentum.
_OPTIMIZER_BYTES = {"sgd": 0, "adamw": FLOAT32}


def parameters(model: Model) -> int:
    """Number of parameters of a model; moving averages of BatchNorm are not parameters."""
    return _total(model).parameters


def arrays(model: Model) -> int:
    """Number of weight arrays of a model."""
    return _total(model).arrays


def macs(model: Model) -> int:
    """Multiply-accumulates of the forward pass of one image (docs/paper.md L.1).

    Counts convolutions (padded zeros included), dense layers and both products of attention.
    Norms, softmax, GELU, pooling by mean or maximum, biases and the standardization of kernels are
    not counted: well under 1 % of ViT-B/16.
    """
    return _total(model).macs


def macs_by_part(model: Model) -> dict[str, int]:
    """The terms of `macs`, by part of the model.

    The parts of a ViT are "stem", "embedding", "projections" (q, k, v and output of all blocks),
    "attention" (`q k^T`, weights times values, relative positions), "mlp", "pooling" (by
    attention), "pre_logits" and "head"; of a residual network "root", "stage1" and so on, and
    "head". Parts without MACs are left out.
    """
    return {name: cost.macs for name, cost in _costs(model).items() if cost.macs}


def training_macs(model: Model, lora: Lora | None = None) -> int:
    """Multiply-accumulates of a training step for one image.

    The backward pass has twice the number of the forward pass. With `recompute="blocks"` it repeats
    the blocks, except the second layer of each MLP, whose result no gradient reads. With adapters
    no gradients of frozen kernels are computed, and none below the first adapter.

    Args:
        model: a name, a configuration or a built model.
        lora: its adapters; None: all weights are trained.
    """
    if lora is not None:
        return lora_cost.training_macs(_config_of(model), lora, _costs(model))
    total = _total(model)
    return 3 * total.macs + total.again


def exaflops(model: Model, epochs: float, images: int) -> float:
    """Compute of training, in 1e18 floating-point operations (docs/paper.md L.3; table 6).

    Counts two FLOPs per MAC of `training_macs`. Evaluation, augmentation and everything else are
    not counted. The paper's JFT has 303e6 images.

    Args:
        model: its `image_size` is the size of the training images.
        epochs: passes over the images.
        images: number of images.
    """
    return 2 * training_macs(model) * epochs * images / 1e18


def weight_bytes(model: Model) -> int:
    """Memory of the parameters in bytes; they are float32 under mixed policies too.

    The moving averages of BatchNorm are not counted.
    """
    return FLOAT32 * parameters(model)


def training_bytes(
    model: Model,
    optimizer: str = "adamw",
    ema: bool = False,
    momentum_dtype: str = "float32",
) -> int:
    """Bytes of one replica's weights, gradients and optimizer: the sum of `state_bytes`."""
    return sum(state_bytes(model, optimizer, ema, momentum_dtype).values())


def state_bytes(
    model: Model,
    optimizer: str = "adamw",
    ema: bool = False,
    momentum_dtype: str = "float32",
    lora: Lora | None = None,
) -> dict[str, int]:
    """Memory that one replica's training takes for any batch (docs/paper.md L.1), by part.

    All numbers are float32, except the momentum.

    Not counted: activations (see `activation_bytes`), and second copies of the gradients, as in
    gradient accumulation or an all-reduce.

    Args:
        model: a name, a configuration or a built model.
        optimizer: "sgd" (with momentum) or "adamw".
        ema: whether an exponential moving average of the weights is kept.
        momentum_dtype: of sgd's velocity or adamw's mean of the gradients, "float32" or "bfloat16".
        lora: adapters; then only they and the head are trained. None: all weights are.

    Returns:
        Bytes of "weights", "gradients", "optimizer" and, with `ema`, "average".

    Raises:
        ValueError: if `optimizer` or `momentum_dtype` is another name.
    """
    if optimizer not in _OPTIMIZER_BYTES:
        raise ValueError(
            f"optimizer must be one of {', '.join(_OPTIMIZER_BYTES)}. Received: {optimizer!r}."
        )
    if momentum_dtype not in ("float32", "bfloat16"):
        raise ValueError(
            f"momentum_dtype must be float32 or bfloat16. Received: {momentum_dtype!r}."
        )
    slots = _bytes_of(momentum_dtype) + _OPTIMIZER_BYTES[optimizer]
    weights, trained = parameters(model), parameters(model)
    if lora is not None:
        adapters = lora_cost.parameters(_config_of(model), lora)
        weights, trained = weights + adapters, adapters + lora_cost.head_parameters(_costs(model))
    state = {
        "weights": FLOAT32 * weights,
        "gradients": FLOAT32 * trained,
        "optimizer": slots * trained,
    }
    return state | {"average": FLOAT32 * trained} if ema else state


def standardized_bytes(model: Model) -> int:
    """Bytes that a training step keeps of standardized kernels, in a BiT ResNet or a stem.

    Each kernel is kept centered and standardized, in float32: the gradient reads both. Norms and
    layers that take the place of convolutions are counted with them.
    """
    if _config_of(model).family == "axial_resnet":  # Its kernels are not standardized.
        return 0
    costs = _costs(model).items()
    parts = [cost for name, cost in costs if name.startswith(("stem", "root", "stage"))]
    return 2 * FLOAT32 * sum(cost.parameters for cost in parts)


def activation_bytes(
    model: Model,
    batch: int,
    dtype="float32",
    training: bool = True,
    compiled: bool = True,
    lora: Lora | None = None,
) -> int:
    """Memory of the activations of a batch.

    In training: all tensors of the forward pass that TensorFlow's gradients read, each counted
    once. These are images, inputs of dense layers and convolutions, tensors that norms and
    activation functions keep, q | k | v, and dropout masks (one byte per element). With
    `recompute="blocks"`, of the encoder blocks only their inputs and the tensors of one block.
    Not counted: the gradients themselves, which are freed soon, the loss, the masks of
    stochastic depth (one byte per image and branch), workspaces of convolutions, and memory that
    the allocator wastes. XLA fuses operations and may keep less.

    In inference: the maximum, over all layers, of a layer's inputs and outputs plus the residual
    shortcut in memory. Elementwise operations run in place if possible. Not counted: a few numbers
    per row or channel, and the images before the cast to `dtype`.

    Weights, and their copies in `dtype` or after standardization, are not counted.

    Args:
        model: a name, a configuration or a built model.
        batch: images on one device.
        dtype: "float32", "bfloat16" or "float16", also with "mixed_" before it.
        training: whether gradients are computed.
        compiled: True for the compiled ops, which store no `T x T` weights. False for the
            reference, which runs on GPUs, on TPUs and under XLA. With `attention_dropout` above 0,
            training always stores the weights, and relative positions are `T x T` logits too.
        lora: adapters. Gradients then read nothing below the first one, no input of a dense layer
            without one, and one tensor of each GELU. None: all weights are trained.

    Returns:
        Bytes.

    Raises:
        ValueError: if `dtype` is another name.
    """
    size = _bytes_of(dtype)
    total = _total(model, size, compiled)
    if training and lora is not None:
        costs = _costs(model, size, compiled)
        return batch * lora_cost.kept(_config_of(model), lora, costs, size, compiled)
    return batch * (total.kept if training else total.live)


def _bytes_of(dtype):
    size = _BYTES.get(dtype.removeprefix("mixed_"))
    if size is None:
        raise ValueError(f"dtype must be one of {', '.join(_BYTES)}. Received: {dtype!r}.")
    return size


def _total(model, size=FLOAT32, compiled=True) -> Cost:
    return sum(_costs(model, size, compiled).values(), Cost())


def _costs(model, size=FLOAT32, compiled=True) -> dict[str, Cost]:
    """Costs of one image by part; an activation has `size` bytes."""
    config = _config_of(model)
    return family_of(config).cost(config, size, compiled)


def _config_of(model) -> ModelConfig:
    """The configuration of a name, a configuration or a built model."""
    config = get_variant(model) if isinstance(model, str) else getattr(model, "config", model)
    if not isinstance(config, ModelConfig):
        raise ValueError(
            "Expected a name such as 'ViT-B/16', a configuration or a model of vit_tf. Received: "
            f"{model!r}."
        )
    return config
