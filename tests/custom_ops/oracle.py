"""The ops and their gradients in NumPy: slow loops over the equations, without shared code.

All numbers are float64, or wider where tests of float64 have rounding that grows with logits.

Each function returns its result and a function from the cotangent of the result to the gradients.
"""

import math

import numpy as np


def attention(qkv, num_heads, bias=None, scale=None):
    """One softmax per query (paper, appendix A, equations 5-8).

    Args:
        qkv: float64 `[B, N, 3 D]`.
        num_heads: number of heads `H`.
        bias: float64, broadcastable to `[B, H, N, N]`, or None.
        scale: factor of `q k^T`; None for `1 / sqrt(D / H)`.

    Returns:
        `(out [B, N, D], weights [B, H, N, N], backward)`, where `backward(g)` returns the gradients
        of qkv and of the bias (None without one).
    """
    batch, count, width = qkv.shape
    width //= 3
    size = width // num_heads
    qkv = qkv.astype(np.longdouble)
    root = np.sqrt(np.longdouble(size)) if scale is None else 1 / np.longdouble(scale)
    full = np.zeros((batch, num_heads, count, count), np.longdouble)
    if bias is not None:
        full = full + bias
    out = np.zeros((batch, count, width), np.longdouble)
    weights = np.zeros_like(full)

    def part(b, which, head):
        first = which * width + head * size
        return qkv[b, :, first : first + size]

    for b in range(batch):
        for h in range(num_heads):
            query, key, value = (part(b, which, h) for which in range(3))
            for i in range(count):
                logits = key @ query[i] / root + full[b, h, i]
                if logits.max() > -math.inf:
                    powers = np.exp(logits - logits.max())
                    weights[b, h, i] = powers / powers.sum()
            out[b, :, h * size : (h + 1) * size] = weights[b, h] @ value

    def backward(g):
        d_qkv = np.zeros_like(qkv)
        d_full = np.zeros_like(full)
        for b in range(batch):
            for h in range(num_heads):
                query, key, value = (part(b, which, h) for which in range(3))
                g_head = g[b, :, h * size : (h + 1) * size]
                w = weights[b, h]
                d_w = g_head @ value.T
                d_logits = w * (d_w - (w * d_w).sum(axis=1, keepdims=True))
                d_full[b, h] = d_logits
                grads = (
                    d_logits @ key / root,
                    d_logits.T @ query / root,
                    w.T @ g_head,
                )
                for which, grad in enumerate(grads):
                    first = which * width + h * size
                    d_qkv[b, :, first : first + size] = grad
        d_bias = None if bias is None else _sum_to(d_full, bias.shape).astype(np.float64)
        return d_qkv.astype(np.float64), d_bias

    return out.astype(np.float64), weights.astype(np.float64), backward


def axial_attention(qkv, num_heads, axis, bias=None, scale=None):
    """`attention` of every line of `[B, R, C, 3 D]` along the axis; bias `[B, lines, H, n, n]`.

    Returns:
        `(out [B, R, C, D], backward)`.
    """
    # np.moveaxis makes the lines the first axis, and the axis of attention the second last.
    lines = np.moveaxis(qkv, 3 - axis, 0)
    out = np.zeros((*qkv.shape[:3], qkv.shape[3] // 3))
    full = None
    if bias is not None:
        count = qkv.shape[axis]
        full = np.broadcast_to(bias, (len(qkv), len(lines), num_heads, count, count))
    backwards = []
    for i, line in enumerate(lines):
        line_bias = None if bias is None else full[:, i]
        np.moveaxis(out, 3 - axis, 0)[i], _, backward = attention(line, num_heads, line_bias, scale)
        backwards.append(backward)

    def backward_all(g):
        d_qkv = np.zeros_like(qkv)
        d_full = None if bias is None else np.zeros_like(full)
        for i, backward in enumerate(backwards):
            d_line, d_line_bias = backward(np.moveaxis(g, 3 - axis, 0)[i])
            np.moveaxis(d_qkv, 3 - axis, 0)[i] = d_line
            if bias is not None:
                d_full[:, i] = d_line_bias
        return d_qkv, None if bias is None else _sum_to(d_full, bias.shape)

    return out, backward_all


def distance(weights, grid):
    """Mean attention distance in grid units (docs/paper.md J.3), `[B, H]`."""
    rows, columns = grid
    prefix = weights.shape[-1] - rows * columns
    total = np.zeros(weights.shape[:2])
    for i in range(rows * columns):
        for j in range(rows * columns):
            apart = math.hypot(i // columns - j // columns, i % columns - j % columns)
            total += weights[:, :, prefix + i, prefix + j] * apart
    return total / (rows * columns)


def entropy(weights):
    """Mean over queries of the entropy of the weights in nats, `[B, H]`."""
    logs = np.log(np.where(weights > 0, weights, 1.0))
    return -(weights * logs).sum(axis=(2, 3)) / weights.shape[2]


def extract_patches(images, patch_size):
    """Returns `(patches [B, N, P * P * C], backward)`."""
    batch, height, width, channels = images.shape
    corners = [
        (top, left)
        for top in range(0, height - patch_size + 1, patch_size)
        for left in range(0, width - patch_size + 1, patch_size)
    ]

    def window(array, corner):
        top, left = corner
        return array[:, top : top + patch_size, left : left + patch_size]

    length = patch_size * patch_size * channels
    patches = np.stack([window(images, at).reshape(batch, length) for at in corners], axis=1)

    def backward(g):
        d_images = np.zeros_like(images)
        for i, at in enumerate(corners):
            block = window(d_images, at)
            block += g[:, i].reshape(block.shape)
        return d_images

    return patches, backward


def patch_embed(images, kernel, bias, scale=1.0, offset=0.0, prefix=None, position=None):
    """Patch embedding with the sums of the convolution as loops (docs/paper.md A.3; equation 1).

    Returns:
        `(tokens [B, T + N, D], backward)`, where `backward(g)` returns a dict of gradients of
        images, kernel, bias, prefix and position.
    """
    patch_size = kernel.shape[0]
    images = images.astype(np.float64) * scale + offset
    batch, height, width, _ = images.shape
    rows, columns = height // patch_size, width // patch_size
    first = 0 if prefix is None else len(prefix)
    tokens = np.zeros((batch, first + rows * columns, kernel.shape[-1]))
    if prefix is not None:
        tokens[:, :first] = prefix

    def windows():
        for i in range(rows):
            for j in range(columns):
                top, left = i * patch_size, j * patch_size
                yield (
                    first + i * columns + j,
                    (
                        slice(None),
                        slice(top, top + patch_size),
                        slice(left, left + patch_size),
                    ),
                )

    for token, at in windows():
        tokens[:, token] = np.einsum("bxyc,xycd->bd", images[at], kernel) + bias
    if position is not None:
        tokens += position

    def backward(g):
        grads = {
            "images": np.zeros_like(images),
            "kernel": np.zeros_like(kernel),
            "bias": g[:, first:].sum(axis=(0, 1)),
            "prefix": g[:, :first].sum(axis=0),
            "position": g.sum(axis=0),
        }
        for token, at in windows():
            grads["images"][at] = scale * np.einsum("bd,xycd->bxyc", g[:, token], kernel)
            grads["kernel"] += np.einsum("bxyc,bd->xycd", images[at], g[:, token])
        return grads

    return tokens, backward


def encoder(tokens, blocks, num_heads, activation, epsilon, rotary=None):
    """Encoder blocks from their published arrays (paper, equations 2 and 3; docs/paper.md A.4).

    Args:
        tokens: float64 `[B, N, D]`.
        blocks: list of dicts from published key to float64 array.
        num_heads: number of heads `H`.
        activation: "gelu_tanh", "gelu_erf" or "swiglu".
        epsilon: of all LayerNorms.
        rotary: float64 cosines and sines of the last P tokens, `[P, 2, d / 2]`, or None.

    Returns:
        `(tokens [B, N, D], list of the attention weights [B, H, N, N] of every block)`.
    """

    def rotated(x):
        """Heads `[B, N, H, d]` times a matrix of d x d for each token."""
        x = x.copy()
        size = x.shape[-1]
        for token, (cosines, sines) in enumerate(rotary, x.shape[1] - len(rotary)):
            matrix = np.zeros((size, size))
            for i, (c, s) in enumerate(zip(cosines, sines, strict=True)):
                j = i + size // 2
                matrix[[i, i, j, j], [i, j, i, j]] = c, -s, s, c
            x[:, token] = x[:, token] @ matrix.T
        return x

    def norm(x, block, name):
        centered = x - x.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centered**2).mean(axis=-1, keepdims=True) + epsilon)
        return centered / deviation * block[f"{name}/scale"] + block[f"{name}/bias"]

    def activated(x):
        if activation == "swiglu":
            gate, up = np.split(x, 2, axis=-1)
            return gate / (1 + np.exp(-gate)) * up
        if activation == "gelu_erf":
            return x * (1 + np.vectorize(math.erf, otypes=["float64"])(x / math.sqrt(2))) / 2
        return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2

    all_weights = []
    for block in blocks:
        heads, mlp = "MultiHeadDotProductAttention_1", "MlpBlock_3"
        y = norm(tokens, block, "LayerNorm_0")
        q, k, v = (
            np.einsum("bnc,chd->bnhd", y, block[f"{heads}/{part}/kernel"])
            + block.get(f"{heads}/{part}/bias", 0)
            for part in ("query", "key", "value")
        )
        if f"{heads}/query_ln/scale" in block:
            q, k = norm(q, block, f"{heads}/query_ln"), norm(k, block, f"{heads}/key_ln")
        if rotary is not None:
            q, k = rotated(q), rotated(k)
        qkv = np.concatenate([part.reshape(tokens.shape) for part in (q, k, v)], axis=-1)
        out, weights, _ = attention(qkv, num_heads)
        out = np.einsum("bnhd,hdc->bnc", out.reshape(v.shape), block[f"{heads}/out/kernel"])
        tokens = tokens + out + block[f"{heads}/out/bias"]
        y = norm(tokens, block, "LayerNorm_2")
        y = activated(y @ block[f"{mlp}/Dense_0/kernel"] + block[f"{mlp}/Dense_0/bias"])
        tokens = tokens + y @ block[f"{mlp}/Dense_1/kernel"] + block[f"{mlp}/Dense_1/bias"]
        all_weights.append(weights)
    return tokens, all_weights


def _sum_to(gradient, shape):
    """Sums over the dimensions that broadcasting from `shape` added or stretched."""
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    stretched = tuple(i for i, n in enumerate(shape) if n == 1)
    return gradient.sum(axis=stretched, keepdims=True)
