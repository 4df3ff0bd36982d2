"""The comparison layers in float64 NumPy, pixel by pixel or with full `N x N` masks.

Every function takes the layer, its weights by name and inputs `[B, H, W, C]`.
"""

import numpy as np

from tests.vit_tf import numpy_resnet


def weights_of(layer):
    """The weights by name, such as "qkv/kernel"."""
    return {
        variable.path.removeprefix(layer.path + "/"): np.array(variable.value)
        for variable in layer.variables
    }


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def masked_attention(qkv, heads, mask, bias=0.0):
    """`qkv [B, N, 3 C]`, mask and bias broadcastable to `[B, heads, N, N]`; returns `[B, N, C]`."""
    batch, count, width = qkv.shape
    q, k, v = qkv.reshape(batch, count, 3, heads, -1).transpose(2, 0, 3, 1, 4)
    logits = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1]) + bias
    weights = softmax(np.where(mask, logits, -np.inf))
    return np.einsum("bhqk,bhkd->bqhd", weights, v).reshape(batch, count, width // 3)


def multi_head(weights, x, heads, mask, bias=0.0):
    """Attention of all pixels between the projections "qkv" and "out"."""
    batch, height, width, channels = x.shape
    qkv = x.reshape(batch, height * width, channels) @ weights["qkv/kernel"] + weights["qkv/bias"]
    out = masked_attention(qkv, heads, mask, bias) @ weights["out/kernel"] + weights["out/bias"]
    return out.reshape(x.shape)


def places(x):
    """Row and column of every pixel in raster order."""
    return np.indices(x.shape[1:3]).reshape(2, -1)


def local_1d(layer, weights, x):
    block = np.arange(x.shape[1] * x.shape[2]) // layer.block
    before = block[:, None] - block
    return multi_head(weights, x, layer.heads, (before == 0) | (before == 1))


def local_2d(layer, weights, x):
    mask = True
    for place, block, reach in zip(places(x), layer.block, layer.reach, strict=True):
        start = (place // block * block)[:, None]
        mask = mask & (place >= start - reach) & (place < start + block + reach)
    return multi_head(weights, x, layer.heads, mask)


def stand_alone(layer, weights, x):
    heads, reach = layer.heads, layer.kernel_size // 2
    *outer, channels = x.shape
    qkv = (x @ weights["qkv/kernel"]).reshape(*outer, 3, heads, channels // heads)
    q, k, v = np.moveaxis(qkv, 3, 0)
    out = np.zeros_like(q)
    for i, j in np.ndindex(*outer[1:]):
        near = [
            (a, b)
            for a in range(max(i - reach, 0), min(i + reach + 1, outer[1]))
            for b in range(max(j - reach, 0), min(j + reach + 1, outer[2]))
        ]
        logits = []
        for a, b in near:
            offset = weights["rows"][a - i + reach], weights["columns"][b - j + reach]
            relative = np.concatenate(offset, axis=-1)
            logits.append(np.sum(q[:, i, j] * (k[:, a, b] + relative), axis=-1))
        attention = softmax(np.stack(logits, axis=-1))
        values = np.stack([v[:, a, b] for a, b in near], axis=1)
        out[:, i, j] = np.einsum("bhn,bnhd->bhd", attention, values)
    return out.reshape(x.shape)


def sparse(layer, weights, x):
    pixel = np.arange(x.shape[1] * x.shape[2])
    block_local = pixel[:, None] // layer.block == pixel // layer.block
    strided = (pixel[:, None] - pixel) % layer.block == 0
    half = layer.heads // 2
    return multi_head(weights, x, layer.heads, np.stack([block_local] * half + [strided] * half))


def full(layer, weights, x):
    offsets = [place - place[:, None] for place in places(x)]
    bias = sum(
        weights[name][:, offset + side - 1]
        for name, offset, side in zip(("rows", "columns"), offsets, x.shape[1:3], strict=True)
    )
    return multi_head(weights, x, layer.heads, True, bias)


def augmented(layer, weights, x):
    kernel = numpy_resnet.standardize(
        weights["conv/kernel"], layer.variance_epsilon, layer.deviation_epsilon
    )
    convolved = numpy_resnet.conv(x, kernel, 1, 1)
    batch, height, width, channels = x.shape
    flat = x.reshape(batch, height * width, channels)
    joint = flat @ weights["qkv/kernel"] + weights["qkv/bias"]
    keys, values = layer.heads * layer.key_size, layer.heads * layer.value_size
    q, k, v = (
        part.reshape(batch, height * width, layer.heads, -1)
        for part in np.split(joint, [keys, 2 * keys], axis=-1)
    )
    assert v.shape[2:] == (layer.heads, layer.value_size)
    row, column = (place - place[:, None] for place in places(x))
    relative = weights["rows"][row + height - 1] + weights["columns"][column + width - 1]
    logits = np.einsum("bqhd,bkhd->bhqk", q, k) + np.einsum("bqhd,qkd->bhqk", q, relative)
    attended = np.einsum("bhqk,bkhd->bqhd", softmax(logits / np.sqrt(layer.key_size)), v)
    attended = attended.reshape(batch, height, width, values)
    projected = attended @ weights["out/kernel"] + weights["out/bias"]
    return np.concatenate([convolved, projected], axis=-1)


def squeeze_excite(layer, weights, x):
    inside = x.mean(axis=(1, 2)) @ weights["squeeze/kernel"] + weights["squeeze/bias"]
    outside = np.maximum(inside, 0) @ weights["excite/kernel"] + weights["excite/bias"]
    return x / (1 + np.exp(-outside))[:, None, None]
