"""What a model costs, by arithmetic on its configuration: nothing is built, however large it is.

`T` tokens, `D` width, `h` heads. MAC: one multiply-accumulate, two FLOPs.
"""

import dataclasses
import operator

from vit_tf.config import ModelConfig, ResNetConfig, StemConfig, ViTConfig, root_channels

# Bytes of an activation. Norms, the softmax and the head compute in float32 whatever the policy.
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOAT32 = 4
# Numbers that the compiled attention keeps of each row of weights, from which it makes them again.
_SOFTMAX_STATISTICS = 2
# Bytes of a parameter in training: weight, gradient and the optimizer's moments, all float32.
_TRAINING_BYTES = {"sgd": 12, "adamw": 16}
# Tensors of the MLP's hidden width that the gradients of an activation and of what follows read.
# The forms are written as TensorFlow operations, each of which keeps its own inputs.
_ACTIVATION_TENSORS = {"gelu_tanh": 6, "gelu_erf": 4}


def parameters(config: ModelConfig) -> int:
    """Numbers in the weights of a model."""
    return _total(config).parameters


def arrays(config: ModelConfig) -> int:
    """Number of arrays that the weights of a model are."""
    return _total(config).arrays


def macs(config: ModelConfig) -> int:
    """Multiply-accumulates of one image, forward (paper.md L.1).

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
    return {name: cost.macs for name, cost in _parts(config).items() if cost.macs}


def exaflops(config: ModelConfig, epochs: float, images: int) -> float:
    """Compute of training, in 1e18 floating-point operations (paper.md L.3; table 6).

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
    return _FLOAT32 * parameters(config)


def training_bytes(config: ModelConfig, optimizer: str = "adamw", polyak: bool = False) -> int:
    """Memory of one replica's weights, gradients and optimizer, float32 (paper.md L.1).

    Activations come on top, see `activation_bytes`; second copies of the gradients, such as those
    of accumulation or of an all-reduce, do too.

    Args:
        config: of the model.
        optimizer: "sgd" (with momentum) or "adamw".
        polyak: whether an average of the weights is kept.

    Raises:
        ValueError: for another optimizer.
    """
    if optimizer not in _TRAINING_BYTES:
        raise ValueError(
            f"optimizer must be one of {', '.join(_TRAINING_BYTES)}. Received: {optimizer!r}."
        )
    return (_TRAINING_BYTES[optimizer] + _FLOAT32 * bool(polyak)) * parameters(config)


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


@dataclasses.dataclass(frozen=True)
class _Cost:
    """Costs of a part of a model, for one image."""

    parameters: int = 0
    arrays: int = 0
    macs: int = 0
    # Bytes that the backward pass reads.
    kept: int = 0
    # Most bytes in use at once when no backward pass follows.
    live: int = 0

    def __add__(self, other: "_Cost") -> "_Cost":
        *sums, live = dataclasses.astuple(self)
        *others, other_live = dataclasses.astuple(other)
        return _Cost(*map(operator.add, sums, others), max(live, other_live))

    def __mul__(self, count: int) -> "_Cost":
        """`count` of them, one after the other; hostile files name counts too large for a loop."""
        *sums, live = dataclasses.astuple(self)
        return _Cost(*(count * number for number in sums), live * bool(count))


def _total(config, size=_FLOAT32, fused=True) -> _Cost:
    return sum(_parts(config, size, fused).values(), _Cost())


def _parts(config, size=_FLOAT32, fused=True) -> dict[str, _Cost]:
    """Costs of an image by part, with activations of `size` bytes."""
    if isinstance(config, ResNetConfig):
        return _resnet_parts(config, size)
    return _vit_parts(config, size, fused)


def _vit_parts(config: ViTConfig, size, fused):
    rows, columns = config.grid
    patches, width = rows * columns, config.hidden_size
    tokens = config.num_prefix_tokens + patches
    parts = {}
    if config.stem:
        parts["stem"] = _stem(config.stem, config.image_size, size)
    parts["embedding"] = _embedding(config, patches, tokens, size, fused)
    for name, cost in _block(config, tokens, size, fused).items():
        parts[name] = cost * config.layers
    parts["norm"] = _layer_norm(width, tokens, size)
    if config.classifier == "map":
        parts["pooling"] = _map_pooling(config, patches, size)
    read = patches if config.classifier == "unpooled" else 1
    represented = config.representation_size
    if represented:
        # The gradient of tanh reads its result, which the head may read as well, in float32.
        is_read_by_head = config.num_classes and size == _FLOAT32
        parts["pre_logits"] = _dense(width, represented, read) + _Cost(
            kept=read * size * (width + (0 if is_read_by_head else represented)),
            live=read * size * (width + represented),
        )
    elif not config.num_classes:
        parts["result"] = _Cost(kept=read * width * size)
    if config.num_classes:
        parts["head"] = _head(represented or width, config.num_classes, read)
    return parts


def _embedding(config, patches, tokens, size, fused):
    height, width = config.feature_size
    channels = config.stem.channels if config.stem else 3
    source = height * width * channels
    patch, hidden = config.patch_size**2 * channels, config.hidden_size
    prefix = config.num_prefix_tokens
    has_table = config.position_embedding == "learned_1d"
    # The compiled op reads the image itself, or the feature map that the stem keeps anyway.
    kept = (0 if config.stem else source) if fused else patches * patch
    mask = tokens * hidden if config.dropout else 0
    return _dense(patch, hidden, patches) + _Cost(
        parameters=(prefix + has_table * tokens) * hidden,
        arrays=prefix + has_table,
        kept=kept * size + mask,
        live=size * (source + max(tokens * hidden, 0 if fused else patches * patch)),
    )


def _block(config, tokens, size, fused):
    """The parts of one encoder block; every layer works while the shortcut waits."""
    width, hidden = config.hidden_size, config.mlp_size
    stream, expanded = tokens * width, tokens * hidden
    masks = bool(config.dropout)
    norm = _layer_norm(width, tokens, size)
    # q | k | v, packed or apart, and what they give; then what stands for the weights.
    attention, weights = 4 * stream * size, config.heads * tokens**2
    statistics = _SOFTMAX_STATISTICS * _FLOAT32 * config.heads * tokens
    softmax = weights * _also_float32(size)
    if config.attention_dropout:
        kept = weights * (_FLOAT32 + size + 1)
    else:
        kept = statistics if fused else softmax
    live = attention + statistics
    if not fused:
        apart = 3 * stream * size
        live = max(2 * apart, apart + weights * size, stream * size + softmax)
    projections = _dense(width, 3 * width, tokens) + _dense(width, width, tokens)
    in_projections = _Cost(kept=stream * (size + masks), live=5 * stream * size)
    wide = size * (stream + expanded + max(stream, expanded))
    in_mlp = _Cost(kept=masks * (stream + expanded), live=wide)
    live += stream * size
    return {
        "projections": norm + projections + in_projections,
        "attention": _Cost(macs=2 * tokens**2 * width, kept=attention + kept, live=live),
        "mlp": norm + _mlp(config, tokens, size) + in_mlp,
    }


def _mlp(config, rows, size):
    """Without the masks of dropout."""
    width, hidden = config.hidden_size, config.mlp_size
    kept = rows * size * (width + _ACTIVATION_TENSORS[config.activation] * hidden)
    return _dense(width, hidden, rows) + _dense(hidden, width, rows) + _Cost(kept=kept)


def _map_pooling(config, patches, size):
    """The probe is projected once per batch, and counted here for a batch of one."""
    width, weights = config.hidden_size, config.heads * patches
    attention = _Cost(
        parameters=width + (width + 1) * 3 * width,
        arrays=3,
        macs=width**2 + patches * 2 * width**2 + 2 * patches * width,
        # Tokens, keys, values; weights, in float32 and as the product reads them; what was read.
        kept=size * (3 * patches * width + width) + weights * _also_float32(size),
    )
    return attention + _dense(width, width) + _layer_norm(width, 1, size) + _mlp(config, 1, size)


def _resnet_parts(config: ResNetConfig, size):
    channels = root_channels(config)
    root, sides = _root(config, config.image_size, size)
    # The maximum reads a copy with zeros around.
    padded = channels * (sides[0] + 2) * (sides[1] + 2)
    before, sides = channels * sides[0] * sides[1], _halved(sides)
    pooled = channels * sides[0] * sides[1]
    root += _Cost(kept=size * (padded + pooled), live=size * (before + padded))
    stages, pixels = _stages(config, _pre_activation_unit, sides, size)
    parts = {"root": root}
    parts |= {f"stage{index + 1}": stage for index, stage in enumerate(stages)}
    parts["norm"] = _norm_relu(config.channels, pixels, size)
    if config.num_classes:
        parts["head"] = _head(config.channels, config.num_classes)
    else:
        parts["result"] = _Cost(kept=_FLOAT32 * config.channels)
    return parts


def _stem(config: StemConfig, image_size, size):
    channels = root_channels(config)
    root, sides = _root(config, image_size, size)
    root += _norm_relu(channels, sides[0] * sides[1], size)
    sides = _halved(sides)
    pooled = _Cost(kept=size * channels * sides[0] * sides[1])
    stages, _ = _stages(config, _post_activation_unit, sides, size)
    return sum(stages, root + pooled)


def _root(config, image_size, size):
    """The convolution, and (height, width) of its result."""
    sides = _halved(image_size)
    pixels, channels = sides[0] * sides[1], root_channels(config)
    image = 3 * image_size[0] * image_size[1]
    return _conv(7, 3, channels, pixels) + _Cost(kept=size * image), sides


def _stages(config, unit, sides, size):
    """Costs of all stages, and the pixels of the last one's map."""
    found, channels = [], root_channels(config)
    for stage, count in enumerate(config.stage_depths):
        filters, before = root_channels(config) * 2**stage, sides[0] * sides[1]
        sides = _halved(sides) if stage else sides
        pixels = sides[0] * sides[1]
        first = unit(filters, channels, before, pixels, size)
        channels = 4 * filters
        found.append(first + unit(filters, channels, pixels, pixels, size) * (count - 1))
    return found, sides[0] * sides[1]


def _post_activation_unit(filters, channels, before, pixels, size):
    """A unit that reads `channels` of `before` pixels and writes `4 * filters` of `pixels`."""
    outside = 4 * filters
    cost = _branch(filters, channels, before, pixels, size) + _norm_relu(outside, pixels, size)
    if channels != outside:
        cost += _group_norm(outside, pixels)
    # The last norm, or that of the projection, while the larger of the two branches waits.
    wait = size * max(channels * before, outside * pixels)
    return cost + _Cost(live=wait + 2 * _FLOAT32 * outside * pixels)


def _pre_activation_unit(filters, channels, before, pixels, size):
    """See `_post_activation_unit`."""
    outside = 4 * filters
    # The first norm, while a shortcut that is not projected waits, or the last convolution.
    wait = size if channels == outside else 0
    first = channels * before * (2 * _FLOAT32 + wait)
    last = size * pixels * (2 * outside + filters)
    cost = _branch(filters, channels, before, pixels, size) + _norm_relu(channels, before, size)
    return cost + _Cost(live=max(first, last))


def _branch(filters, channels, before, pixels, size):
    """What both units have: convolutions, the norms between them, a projection if need be."""
    outside = 4 * filters
    cost = (
        _conv(1, channels, filters, before)
        + _norm_relu(filters, before, size)
        + _conv(3, filters, filters, pixels)
        + _norm_relu(filters, pixels, size)
        + _conv(1, filters, outside, pixels)
    )
    return cost if channels == outside else cost + _conv(1, channels, outside, pixels)


def _conv(side, channels, filters, pixels):
    """A convolution without bias that writes `pixels` of `filters` channels."""
    numbers = side * side * channels * filters
    return _Cost(parameters=numbers, arrays=1, macs=numbers * pixels)


def _dense(inputs, outputs, rows=1):
    return _Cost(parameters=(inputs + 1) * outputs, arrays=2, macs=rows * inputs * outputs)


def _head(inputs, classes, rows=1):
    memory = _FLOAT32 * rows * (inputs + classes)
    return _dense(inputs, classes, rows) + _Cost(kept=memory, live=memory)


def _layer_norm(width, rows, size):
    """Keeps what it reads in float32, scale times deviation, and three numbers of each row."""
    values = _FLOAT32 * rows * width
    return _Cost(
        parameters=2 * width,
        arrays=2,
        kept=2 * values + 3 * _FLOAT32 * rows,
        live=rows * width * _also_float32(size) + 2 * values,
    )


def _group_norm(channels, pixels):
    """Keeps the centred values in float32, and two numbers of each channel."""
    values = _FLOAT32 * channels * pixels
    kept = values + 2 * _FLOAT32 * channels
    return _Cost(parameters=2 * channels, arrays=2, kept=kept, live=2 * values)


def _norm_relu(channels, pixels, size):
    return _group_norm(channels, pixels) + _Cost(kept=size * channels * pixels)


def _halved(sides):
    """(height, width) after a stride of 2; every step rounds up."""
    return tuple(-(-side // 2) for side in sides)


def _also_float32(size):
    """Bytes of a number that exists in float32 too, which is one tensor where all are float32."""
    return size if size == _FLOAT32 else size + _FLOAT32
