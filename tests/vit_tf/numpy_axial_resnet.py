"""AxialResNet in float64 NumPy, from a state_dict of the public PyTorch implementation.

Written from the equations and layouts of docs/paper.md E.2. A state_dict here is a dict from name
to array; images are `[B, H, W, 3]`.
"""

import numpy as np

from tests.vit_tf.numpy_resnet import relu, windows

EPSILON = 1e-5


def batch_norm(state, name, x, training=False):
    """Normalizes the last axis: by its moments in training, else by the running statistics."""
    if training:
        axes = tuple(range(x.ndim - 1))
        mean, variance = x.mean(axis=axes), x.var(axis=axes)
    else:
        mean, variance = state[f"{name}.running_mean"], state[f"{name}.running_var"]
    normalized = (x - mean) / np.sqrt(variance + EPSILON)
    return normalized * state[f"{name}.weight"] + state[f"{name}.bias"]


def softmax(x):
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def attention(state, name, x, groups, axis, stride=1, training=False):
    """One layer `[B, H, W, C]`, pixel by pixel of its axis; `axis` 1 or 2."""
    prefix = f"{name}." if name else ""
    x = np.moveaxis(x, axis, 2)  # [B, L, n, C]
    batch, lines, span, _ = x.shape
    weight = state[f"{prefix}qkv_transform.weight"][:, :, 0]
    qkv = batch_norm(state, f"{prefix}bn_qkv", x @ weight.T, training)
    width = weight.shape[0] // 2
    d = width // groups
    qkv = qkv.reshape(batch, lines, span, groups, 2 * d)
    q, k, v = qkv[..., : d // 2], qkv[..., d // 2 : d], qkv[..., d:]
    table = state[f"{prefix}relative"]
    tables = table[: d // 2], table[d // 2 : d], table[d:]
    maps = np.zeros([3, batch, lines, groups, span, span])
    for o in range(span):
        for p in range(span):
            away, back = o - p + span - 1, p - o + span - 1
            maps[0, ..., o, p] = (q[:, :, o] * k[:, :, p]).sum(-1)
            maps[1, ..., o, p] = q[:, :, o] @ tables[0][:, away]
            maps[2, ..., o, p] = k[:, :, p] @ tables[1][:, back]
    # Channels of the norm: the heads of the first map, of the second, of the third.
    channels = np.moveaxis(maps, (0, 3), (-2, -1)).reshape(batch, lines, span, span, 3 * groups)
    channels = batch_norm(state, f"{prefix}bn_similarity", channels, training)
    logits = channels.reshape(batch, lines, span, span, 3, groups).sum(axis=-2)
    weights = softmax(np.moveaxis(logits, -1, 2))  # [B, L, heads, o, p]
    sums = np.zeros([batch, lines, span, groups, d, 2])
    for o in range(span):
        for p in range(span):
            share = weights[:, :, :, o, p, None]
            sums[:, :, o, :, :, 0] += share * v[:, :, p]
            sums[:, :, o, :, :, 1] += share * tables[2][:, o - p + span - 1]
    sums = sums.reshape(batch, lines, span, 2 * width)
    out = batch_norm(state, f"{prefix}bn_output", sums, training)
    out = out.reshape(batch, lines, span, width, 2).sum(axis=-1)
    out = np.moveaxis(out, 2, axis)
    if stride > 1:
        height, columns = (side // stride for side in out.shape[1:3])
        out = out[:, : height * stride, : columns * stride]
        out = out.reshape(batch, height, stride, columns, stride, width).mean(axis=(2, 4))
    return out


def conv1x1(state, name, x, stride=1):
    return x[:, ::stride, ::stride] @ state[f"{name}.weight"][:, :, 0, 0].T


def network(state, images, stage_depths, groups, training=False):
    """Logits `[B, K]`."""

    def norm(name, x):
        return batch_norm(state, name, x, training)

    kernel = state["conv1.weight"].transpose(2, 3, 1, 0)
    x = np.einsum("bhwijc,ijcd->bhwd", windows(images.astype(np.float64), 7, 2, 3), kernel)
    x = windows(relu(norm("bn1", x)), 3, 2, 1, fill=-np.inf).max(axis=(3, 4))
    for stage, count in enumerate(stage_depths, 1):
        for index in range(count):
            unit = f"layer{stage}.{index}"
            stride = 2 if stage > 1 and index == 0 else 1
            y = relu(norm(f"{unit}.bn1", conv1x1(state, f"{unit}.conv_down", x)))
            y = attention(state, f"{unit}.hight_block", y, groups, 1, 1, training)
            y = attention(state, f"{unit}.width_block", y, groups, 2, stride, training)
            y = norm(f"{unit}.bn2", conv1x1(state, f"{unit}.conv_up", relu(y)))
            if f"{unit}.downsample.0.weight" in state:
                x = conv1x1(state, f"{unit}.downsample.0", x, stride)
                x = norm(f"{unit}.downsample.1", x)
            x = relu(y + x)
    return x.mean(axis=(1, 2)) @ state["fc.weight"].T + state["fc.bias"]


def norm_shapes(name, channels):
    parts = ("weight", "bias", "running_mean", "running_var")
    return {f"{name}.{part}": (channels,) for part in parts} | {f"{name}.num_batches_tracked": ()}


def attention_shapes(name, inputs, width, groups, span):
    return {
        f"{name}.relative": (2 * width // groups, 2 * span - 1),
        f"{name}.flatten_index": (span * span,),
        f"{name}.qkv_transform.weight": (2 * width, inputs, 1),
        **norm_shapes(f"{name}.bn_qkv", 2 * width),
        **norm_shapes(f"{name}.bn_similarity", 3 * groups),
        **norm_shapes(f"{name}.bn_output", 2 * width),
    }


def state_shapes(stage_depths, root, groups, spans, classes):
    """Name -> shape of every entry of a state_dict; `spans` is (height, width) after the root."""
    shapes = {"conv1.weight": (root, 3, 7, 7), **norm_shapes("bn1", root)}
    channels = root
    for stage, count in enumerate(stage_depths, 1):
        width = root * 2**stage
        for index in range(count):
            unit, stride = f"layer{stage}.{index}", 2 if stage > 1 and index == 0 else 1
            shapes[f"{unit}.conv_down.weight"] = (width, channels, 1, 1)
            shapes |= norm_shapes(f"{unit}.bn1", width)
            for block, span in zip(("hight_block", "width_block"), spans, strict=True):
                shapes |= attention_shapes(f"{unit}.{block}", width, width, groups, span)
            shapes[f"{unit}.conv_up.weight"] = (2 * width, width, 1, 1)
            shapes |= norm_shapes(f"{unit}.bn2", 2 * width)
            if stride > 1 or channels != 2 * width:
                shapes[f"{unit}.downsample.0.weight"] = (2 * width, channels, 1, 1)
                shapes |= norm_shapes(f"{unit}.downsample.1", 2 * width)
            channels, spans = 2 * width, tuple(span // stride for span in spans)
    return shapes | {"fc.weight": (classes, channels), "fc.bias": (classes,)}


def draw_state(shapes, seed=0):
    """Random values of a size at which every term matters, float32; int64 for the buffers."""
    rng, state = np.random.default_rng(seed), {}
    for name, shape in shapes.items():
        if name.endswith(("num_batches_tracked", "flatten_index")):
            state[name] = np.full(shape, 3, np.int64)
        elif name.endswith("running_var"):
            state[name] = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        elif "bn" in name or "downsample.1" in name:
            center = 1.0 if name.endswith("weight") else 0.0
            state[name] = (center + 0.3 * rng.normal(size=shape)).astype(np.float32)
        else:
            fan = np.prod(shape[1:]) if len(shape) > 1 else 4
            state[name] = (rng.normal(size=shape) / np.sqrt(fan)).astype(np.float32)
    return state
