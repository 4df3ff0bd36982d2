"""Costs of training a Vision Transformer through low-rank adapters; see `vit_tf/cost.py`.

`T` tokens, `D` width. `costs` are those of an image by part, without adapters.
"""

from vit_tf.analysis.layer_costs import residual_norm
from vit_tf.analysis.vit_cost import activation_tensors
from vit_tf.config.lora import Lora

_BLOCK = ("projections", "attention", "mlp")
_HEAD = ("pre_logits", "head")
# Activations of which `custom_ops.bias_gelu` keeps one tensor, beside its result.
_KEPT_SLOPE = ("gelu_tanh", "gelu_erf")


def parameters(config, lora: Lora) -> int:
    """Number of parameters of the adapters."""
    per_block = sum(inputs + outputs for inputs, outputs in _layers(config, lora).values())
    return lora.rank * per_block * _blocks(config) * len(lora.layers(config))


def head_parameters(costs) -> int:
    """Number of parameters of the head and pre-logits, which are trained beside adapters."""
    return sum(costs[name].parameters for name in _HEAD if name in costs)


def training_macs(config, lora: Lora, costs) -> int:
    """Multiply-accumulates of a training step for one image.

    The products A B, once for a batch, are not counted.
    """
    tokens, chosen = _tokens(config), lora.layers(config)
    layers, width = _layers(config, lora), config.hidden_size
    count = config.layers * _blocks(config)
    attention = costs["attention"].macs // count
    mlp = costs["mlp"].macs // count
    # Gradients of the inputs of each layer, in order; a block has them behind its first adapter.
    of_inputs = {
        "qkv": 3 * tokens * width**2,
        "attention": 2 * attention,
        "out": tokens * width**2,
        "dense_0": tokens * (mlp // tokens - width * config.mlp_size),
        "dense_1": tokens * width * config.mlp_size,
    }
    names = list(of_inputs)
    behind = names[min(names.index(name) for name in layers) + 1 :]
    blocks = (config.layers - chosen[0]) * _blocks(config)
    backward = (blocks - 1) * sum(of_inputs.values()) + sum(of_inputs[name] for name in behind)
    # Of each adapter: two products for A, two for B and one for the inputs.
    adapters = sum(3 * inputs + 2 * outputs for inputs, outputs in layers.values())
    backward += lora.rank * tokens * adapters * len(chosen) * _blocks(config)
    first_inputs = layers[next(name for name in names if name in layers)][0]
    backward -= lora.rank * tokens * first_inputs
    again = sum(costs[name].again for name in _BLOCK) * (config.layers - chosen[0])
    of_head = sum(2 * costs[name].macs for name in _HEAD if name in costs)
    pooling = costs["pooling"].macs if "pooling" in costs else 0
    forward = sum(cost.macs for cost in costs.values())
    return forward + backward + again // config.layers + of_head + pooling


def kept(config, lora: Lora, costs, size, compiled) -> int:
    """Bytes of an image's activations that gradients read; an activation has `size` bytes."""
    tokens, chosen, layers = _tokens(config), lora.layers(config), _layers(config, lora)
    above = sum(
        cost.kept
        for name, cost in costs.items()
        if name not in (*_BLOCK, "embedding", "stem", "recomputed")
    )
    blocks = (config.layers - chosen[0]) * _blocks(config)
    if "recomputed" in costs:
        inputs = tokens * config.hidden_size * size
        inside = costs["recomputed"].kept - inputs * _blocks(config) * config.layers
        return above + inputs * blocks + inside - _saved(config, layers, tokens, size, compiled)
    count = config.layers * _blocks(config)
    of_block = sum(costs[name].kept for name in _BLOCK) // count
    adapted = len(chosen) * _blocks(config)
    saved = adapted * _saved(config, layers, tokens, size, compiled)
    saved += (blocks - adapted) * _saved(config, {}, tokens, size, compiled)
    # Gradients end at the first adapter of the first block that has one.
    saved += residual_norm(config.hidden_size, tokens, size, compiled).kept
    if "qkv" not in layers:
        saved += costs["attention"].kept // count
        if "out" in layers:
            saved -= tokens * config.hidden_size * size
        else:
            saved += residual_norm(config.hidden_size, tokens, size, compiled).kept
    return above + blocks * of_block - saved


def _saved(config, names, tokens, size, compiled):
    """Bytes that gradients of a block with adapters in the layers `names` do not read.

    Attention itself keeps the input of the projection.
    """
    stream, hidden = tokens * config.hidden_size * size, tokens * config.mlp_size * size
    if config.activation in _KEPT_SLOPE:
        wide = activation_tensors(config, compiled) - 1 - ("dense_1" in names)
    else:
        wide = "dense_1" not in names
    factors = 2 * bool(config.layer_scale)
    return stream * (("qkv" not in names) + ("dense_0" not in names) + factors) + hidden * wide


def _layers(config, lora):
    """Inputs and outputs of the layers of a block that have adapters, by name."""
    width, hidden = config.hidden_size, config.mlp_size
    wide = hidden * (2 if config.activation == "swiglu" else 1)
    of_target = {
        "qkv": {"qkv": (width, 3 * width)},
        "projection": {"out": (width, width)},
        "mlp": {"dense_0": (width, wide), "dense_1": (hidden, width)},
    }
    return {name: sizes for target in lora.targets for name, sizes in of_target[target].items()}


def _blocks(config):
    """Encoder blocks in each layer: an axial model has two."""
    return 1 + config.axial


def _tokens(config):
    return config.num_prefix_tokens + config.grid[0] * config.grid[1]
