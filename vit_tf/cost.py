"""What a model costs, by arithmetic on its configuration: nothing is built, however large it is.

`T` tokens, `D` width, `h` heads. MAC: one multiply-accumulate, two FLOPs.
"""

from vit_tf.analysis.layer_costs import FLOAT32, Cost
from vit_tf.config import ModelConfig
from vit_tf.families import family_of

# Bytes of an activation.
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# Bytes of a parameter in training: weight, gradient and the optimizer's moments, all float32.
_TRAINING_BYTES = {"sgd": 12, "adamw": 16}


def parameters(config: ModelConfig) -> int:
    """Numbers in the weights of a model."""
    return _total(config).parameters


def arrays(config: ModelConfig) -> int:
    """Number of arrays that the weights of a model are."""
    return _total(config).arrays


def macs(config: ModelConfig) -> int:
    """Multiply-accumulates of one image, forward (docs/paper.md L.1).

    Counts convolutions (with the zeros they pad), dense layers and both products of attention.
    Norms, softmax, GELU, pooling by mean or maximum, biases and the standardisation of kernels are
    not counted: well under 1 % of ViT-B/16.
    """
    return _total(config).macs


def macs_by_part(config: ModelConfig) -> dict[str, int]:
    """The terms of `macs`, by what they are spent on.

    The parts of a ViT are "stem", "embedding", "projections" (q, k, v and output of all blocks),
    "attention" (`q k^T` and weights times values), "mlp", "pooling" (by attention), "pre_logits"
    and "head"; of a ResNet "root", "stage1" and so on, and "head". Parts without MACs are left out.
    """
    return {name: cost.macs for name, cost in _costs(config).items() if cost.macs}


def exaflops(config: ModelConfig, epochs: float, images: int) -> float:
    """Compute of training, in 1e18 floating-point operations (docs/paper.md L.3; table 6).

    Two FLOPs per MAC, and a training step as three forward passes. The paper's JFT has 303e6
    images. Nothing else is counted, evaluation and augmentation for example.

    Args:
        config: its `image_size` is that of the training images.
        epochs: passes over the images.
        images: number of images.
    """
    return 6 * macs(config) * epochs * images / 1e18


def weight_bytes(config: ModelConfig) -> int:
    """Memory of the weights, float32 under mixed policies too."""
    return FLOAT32 * parameters(config)


def training_bytes(config: ModelConfig, optimizer: str = "adamw", ema: bool = False) -> int:
    """Memory of one replica's weights, gradients and optimizer, float32 (docs/paper.md L.1).

    Activations come on top, see `activation_bytes`; second copies of the gradients, such as those
    of accumulation or of an all-reduce, do too.

    Args:
        config: of the model.
        optimizer: "sgd" (with momentum) or "adamw".
        ema: whether an exponential moving average of the weights is kept.

    Raises:
        ValueError: for another optimizer.
    """
    if optimizer not in _TRAINING_BYTES:
        raise ValueError(
            f"optimizer must be one of {', '.join(_TRAINING_BYTES)}. Received: {optimizer!r}."
        )
    return (_TRAINING_BYTES[optimizer] + FLOAT32 * bool(ema)) * parameters(config)


def activation_bytes(
    config: ModelConfig, batch: int, dtype="float32", training: bool = True, fused: bool = True
) -> int:
    """Memory of the activations of a batch.

    In training, everything that TensorFlow's gradients read of the forward pass, each tensor once:
    images, inputs of dense layers and convolutions, what norms and activations keep, q | k | v and
    the masks of dropout (one byte each). Nothing is recomputed. Not counted: the gradients
    themselves, which live briefly, loss, one byte per image and branch of stochastic depth,
    workspaces of convolutions, and what an allocator wastes. XLA fuses and may keep less.

    In inference, the largest sum, over the layers in order, of what a layer reads and writes and of
    the shortcut that waits for it; elementwise operations write where they read if they can. A few
    numbers for each row or channel are left out, and so are the images before they have `dtype`.

    Weights, and their copies in `dtype` or standardised, are not counted.

    Args:
        config: of the model.
        batch: images on one device.
        dtype: "float32", "bfloat16" or "float16", also with "mixed_" before it.
        training: whether gradients follow.
        fused: whether the compiled attention runs, which stores no `T x T` weights. False is the
            reference, as on GPUs, on TPUs and under XLA. With `attention_dropout` above 0,
            training stores the weights in any case.

    Returns:
        Bytes.

    Raises:
        ValueError: for another dtype.
    """
    size = _BYTES.get(dtype.removeprefix("mixed_"))
    if size is None:
        raise ValueError(f"dtype must be one of {', '.join(_BYTES)}. Received: {dtype!r}.")
    total = _total(config, size, fused)
    return batch * (total.kept if training else total.live)


def _total(config, size=FLOAT32, fused=True) -> Cost:
    return sum(_costs(config, size, fused).values(), Cost())


def _costs(config, size=FLOAT32, fused=True) -> dict[str, Cost]:
    """Costs of an image by part, with activations of `size` bytes."""
    return family_of(config).cost(config, size, fused)
