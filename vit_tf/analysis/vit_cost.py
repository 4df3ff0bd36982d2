"""Costs of a Vision Transformer or hybrid, part by part (docs/paper.md L.1); see `vit_tf/cost.py`.

`T` tokens, `D` width, `h` heads.
"""

import dataclasses

from vit_tf.analysis import resnet_cost
from vit_tf.analysis.layer_costs import (
    FLOAT32,
    SOFTMAX_STATISTICS,
    Cost,
    also_float32,
    dense,
    head,
    layer_norm,
    residual_norm,
)
from vit_tf.config import ViTConfig

# Tensors of the MLP's hidden width that the gradients of an activation and of the next layer read.
# An activation is several TensorFlow operations, and each operation keeps its inputs. The compiled
# GELU is one.
_ACTIVATION_TENSORS = {"gelu_tanh": 6, "gelu_erf": 4, "swiglu": 4}


def activation_tensors(config, compiled) -> int:
    """Tensors of the MLP's hidden width that a block keeps for the gradient."""
    if compiled and config.activation != "swiglu":
        return 2
    return _ACTIVATION_TENSORS[config.activation]


def parts(config: ViTConfig, size, compiled) -> dict[str, Cost]:
    """Costs of an image by part.

    Args:
        config: configuration of the model.
        size: bytes of an activation.
        compiled: whether the compiled ops run, which store neither patches nor attention weights.
    """
    rows, columns = config.grid
    patches, width = rows * columns, config.hidden_size
    tokens = config.num_prefix_tokens + patches
    costs = {}
    if config.stem:
        costs["stem"] = resnet_cost.stem(config.stem, config.image_size, size)
    costs["embedding"] = _embedding(config, patches, tokens, size, compiled)
    # Tokens that a token attends to, in each block of a layer.
    blocks = [
        _block(config, tokens, keys, size, compiled)
        for keys in ((columns, rows) if config.axial else (tokens,))
    ]
    for block in blocks:
        for name, cost in block.items():
            costs[name] = costs.get(name, Cost()) + cost * config.layers
    if config.recompute == "blocks":
        kept = [sum(cost.kept for cost in block.values()) for block in blocks]
        for name in blocks[0]:
            # No gradient reads the result of the second layer of an MLP.
            again = costs[name].macs // (2 if name == "mlp" else 1)
            costs[name] = dataclasses.replace(costs[name], again=again, kept=0)
        # The input of every block, and the tensors of one block at a time.
        inputs = len(blocks) * config.layers * tokens * width * size
        costs["recomputed"] = Cost(kept=inputs + max(kept))
    # No shortcut is in memory any more.
    live = 3 * FLOAT32 * tokens * width
    costs["norm"] = dataclasses.replace(layer_norm(width, tokens, size), live=live)
    if config.classifier == "map":
        costs["pooling"] = _map_pooling(config, patches, size, compiled)
    read = patches if config.classifier == "unpooled" else 1
    represented, pooled = config.representation_size, width * (1 + config.is_distilled)
    if represented:
        # The gradient of tanh reads the result of tanh. In float32 the head reads the same tensor.
        is_read_by_head = config.num_classes and size == FLOAT32
        costs["pre_logits"] = dense(width, represented, read) + Cost(
            kept=read * size * (width + (0 if is_read_by_head else represented)),
            live=read * size * (width + represented),
        )
    elif not config.num_classes:
        costs["result"] = Cost(kept=read * pooled * size)
    if config.num_classes:
        costs["head"] = head(represented or pooled, config.num_classes, read)
        costs["head"] += Cost(parameters=config.is_distilled * config.num_classes)
    return costs


def _embedding(config, patches, tokens, size, compiled):
    height, width = config.feature_size
    channels = config.stem.channels if config.stem else 3
    source = height * width * channels
    patch, hidden = config.patch_size**2 * channels, config.hidden_size
    prefix, unplaced = config.num_prefix_tokens, config.unplaced_tokens
    positions = _positions(config, tokens - unplaced)
    tables = config.layers if config.position_injection == "every_layer" else 1
    # The compiled op reads the image itself, or the feature map that the stem already keeps.
    kept = (0 if config.stem else source) if compiled else patches * patch
    mask = tokens * hidden if config.dropout else 0
    return dense(patch, hidden, patches) + Cost(
        parameters=prefix * hidden + tables * sum(positions),
        arrays=config.has_class_token + (unplaced > 0) + tables * len(positions),
        kept=kept * size + mask,
        live=size * (source + max(tokens * hidden, 0 if compiled else patches * patch)),
    )


def _positions(config, tokens):
    """Parameters of each array of the position embedding of `tokens`, those with a position."""
    hidden = config.hidden_size
    if config.position_embedding == "learned_1d":
        return [tokens * hidden]
    if config.position_embedding == "learned_2d":
        return [side * hidden // 2 for side in config.grid] + [hidden] * config.has_class_token
    return []


def _block(config, tokens, keys, size, compiled):
    """Costs of one encoder block by part; the shortcut is in memory while each layer runs.

    Each of the `tokens` attends to `keys` of them.
    """
    width, hidden = config.hidden_size, config.mlp_size
    stream, expanded = tokens * width, tokens * hidden
    masks = bool(config.dropout)
    norm = residual_norm(width, tokens, size, compiled)
    # q | k | v (joint or split) and the result; then the weights or their statistics.
    attention, weights = 4 * stream * size, config.heads * tokens * keys
    statistics = SOFTMAX_STATISTICS * FLOAT32 * config.heads * tokens
    softmax = weights * also_float32(size)
    if config.attention_dropout:
        kept = weights * (FLOAT32 + size + 1)
    else:
        kept = statistics if compiled else softmax
    live = attention + statistics
    if not compiled:
        apart = 3 * stream * size
        live = max(2 * apart, apart + weights * size, stream * size + softmax)
    projections = dense(width, 3 * width, tokens) + dense(width, width, tokens)
    in_projections = Cost(kept=stream * (size + masks), live=5 * stream * size)
    wide = size * (stream + expanded + max(stream, expanded))
    if config.activation == "swiglu":
        wide = size * (stream + 4 * expanded)
    in_mlp = Cost(kept=masks * (stream + expanded), live=wide)
    live += stream * size
    in_attention = Cost(macs=2 * tokens * keys * width, kept=attention + kept, live=live)
    if config.qk_norm:
        of_heads = layer_norm(width // config.heads, config.heads * tokens, size)
        in_float32 = of_heads.live + FLOAT32 * config.heads * tokens + 2 * stream * size
        in_attention += of_heads * 2 + Cost(live=max(7 * stream * size, in_float32))
    if config.rotary:
        in_attention += Cost(live=8 * stream * size)
    if not config.qkv_bias:
        projections += Cost(parameters=-3 * width, arrays=-1)
    elif not config.key_bias:
        projections += Cost(parameters=-width)
    # A gradient of the factors of a branch reads the branch.
    scale = Cost(parameters=width, arrays=1, kept=stream * size) if config.layer_scale else Cost()
    if config.position_embedding == "relative":
        in_attention += _relative_logits(config, tokens, size, compiled)
    return {
        "projections": norm + projections + in_projections + scale,
        "attention": in_attention,
        "mlp": norm + _mlp(config, tokens, size, compiled) + in_mlp + scale,
    }


def _relative_logits(config, tokens, size, compiled):
    """Costs of `RelativeLogits`: products with `2 T` rows, one of them padding, then a shift."""
    stream, logits = tokens * config.hidden_size, config.heads * tokens**2
    # Gradients read the queries of each head. Gradients of the compiled attention also read the
    # logits in float32, the reference a byte for each row: whether all keys are hidden.
    is_compiled = compiled and not config.attention_dropout
    kept = FLOAT32 * logits if is_compiled else config.heads * tokens
    # Beside q | k | v and the shortcut: two copies of the queries, or the products and a copy of
    # them. Later, in the reference, three times all logits in float32.
    shift = size * (4 * stream + max(2 * stream, config.heads * tokens * (4 * tokens - 1)))
    masked = 0 if compiled else 3 * FLOAT32 * logits + 2 * size * stream
    return Cost(
        parameters=(2 * tokens - 1) * (config.hidden_size // config.heads),
        arrays=1,
        macs=2 * tokens * stream,
        kept=size * stream + kept,
        live=max(shift, masked),
    )


def _mlp(config, rows, size, compiled):
    """Cost of the MLP without the masks of dropout."""
    width, hidden = config.hidden_size, config.mlp_size
    kept = rows * size * (width + activation_tensors(config, compiled) * hidden)
    wide = hidden * (2 if config.activation == "swiglu" else 1)
    return dense(width, wide, rows) + dense(hidden, width, rows) + Cost(kept=kept)


def _map_pooling(config, patches, size, compiled):
    """The probe is projected once per batch, and counted here for a batch of one."""
    width, weights = config.hidden_size, config.heads * patches
    attention = Cost(
        parameters=width + (width + 1) * 3 * width,
        arrays=3,
        macs=width**2 + patches * 2 * width**2 + 2 * patches * width,
        # Tokens, keys, values, result; weights in float32 and in the dtype of the product.
        kept=size * (3 * patches * width + width) + weights * also_float32(size),
    )
    return (
        attention
        + dense(width, width)
        + layer_norm(width, 1, size)
        + _mlp(config, 1, size, compiled)
    )
