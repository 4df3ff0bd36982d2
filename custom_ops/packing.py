"""The packed weights of encoder blocks, layout version 1: sizes, checks of a block, packing.

One layout serves all instruction sets. With `k = 1` for float32 and `k = 2` for bfloat16, a dense
layer `[K, N]` is stored as panels `[ceil(N / 64)][ceil(K / k)][64][k]`, zero padded: column `n` of
panel `p` is column `64 p + n`, and rows `k j .. k j + k - 1` lie side by side. The weights of a
block are its layers one after another, in the order of `layer_shapes`; its biases are float32 and
not padded. A panel of fc1 of a SwiGLU MLP has 32 columns of the gate and then the 32 columns that
they multiply. The scale and bias of the norm of queries and those of keys, if a block has one,
follow the biases.

The scale and bias of a LayerNorm are folded into the dense layer behind it, in float64:
`diag(scale) W` and `b + bias W`. So an encoder of packed weights only normalizes.

`D` width, `M` MLP width, `H` heads, `d = D / H`. NumPy only.
"""

import numpy as np

PANEL_COLUMNS = 64
# Rows that lie side by side: `k` above.
ROWS_TOGETHER = {"float32": 1, "bfloat16": 2}

_ATTENTION = "MultiHeadDotProductAttention_1"
_MLP = "MlpBlock_3"
_QK_NORM = tuple(
    f"{_ATTENTION}/{norm}/{part}" for norm in ("query_ln", "key_ln") for part in ("scale", "bias")
)
# The biases of queries, keys and values; those of keys or all three may be missing.
_QKV_BIASES = tuple(f"{_ATTENTION}/{part}/bias" for part in ("query", "key", "value"))
_MAY_LACK = ({_QKV_BIASES[1]}, set(_QKV_BIASES))


def layer_shapes(width, mlp_size, activation="gelu_tanh"):
    """Returns a dict from layer to its shape `(K, N)`, in the order of the packed arrays.

    The columns of qkv are q | k | v, each `[H, d]`; those of fc1 are gate | up for "swiglu".
    """
    return {
        "qkv": (width, 3 * width),
        "out": (width, width),
        "fc1": (width, 2 * mlp_size if activation == "swiglu" else mlp_size),
        "fc2": (mlp_size, width),
    }


def panels_shape(shape, precision):
    """Returns the shape of the packed panels of a dense layer `(K, N)`."""
    rows, columns = shape
    together = ROWS_TOGETHER[precision]
    return (-(-columns // PANEL_COLUMNS), -(-rows // together), PANEL_COLUMNS, together)


def weights_size(width, mlp_size, precision, activation="gelu_tanh"):
    """Returns the number of elements of the packed weights of a block."""
    layers = layer_shapes(width, mlp_size, activation).values()
    return sum(int(np.prod(panels_shape(shape, precision))) for shape in layers)


def biases_size(width, mlp_size, activation="gelu_tanh", norm_size=0):
    """Returns the number of elements of the biases of a block; see `qk_norm_size`."""
    layers = layer_shapes(width, mlp_size, activation).values()
    return sum(columns for _, columns in layers) + norm_size


def qk_norm_size(head_size):
    """Returns the number of elements of the scales and biases of a norm of queries and keys."""
    return len(_QK_NORM) * head_size


def has_qk_norm(block):
    """Whether a block normalizes the queries and keys of each head."""
    return not set(_QK_NORM).isdisjoint(block)


def block_sizes(block, name, activation="gelu_tanh"):
    """Returns `(D, M)` of a block.

    Args:
        block: dict of NumPy arrays, see `pack_block`.
        name: of the block, for messages.
        activation: of the MLP; with "swiglu" the first layer has `2 M` outputs.

    Raises:
        ValueError: if one of the two arrays that say it is missing or has another rank, or the
            layer of "swiglu" an odd number of outputs.
    """
    sizes = []
    for key, rank in (("LayerNorm_0/scale", 1), (f"{_MLP}/Dense_0/kernel", 2)):
        shape = _shape(block, key, name)
        if len(shape) != rank or 0 in shape:
            raise ValueError(
                f"{name}: {key} has shape {shape}, but it must have {rank} dimensions, none of "
                "them 0."
            )
        sizes.append(shape[-1])
    width, columns = sizes
    if activation != "swiglu":
        return width, columns
    if columns % 2:
        raise ValueError(
            f"{name}: {_MLP}/Dense_0/kernel has {columns} columns, but with activation='swiglu' it "
            "must have gate and up, of equal width. Pass the activation of the model."
        )
    return width, columns // 2


def pack_block(block, sizes, num_heads, dtype, name, activation="gelu_tanh", qk_norm=False):
    """Packs the arrays of one block.

    Args:
        block: dict from published key (docs/paper.md B.2), without
            `Transformer/encoderblock_<i>/`, to NumPy array. The bias of keys, or those of
            queries, keys and values, may be missing, for zeros.
        sizes: `(D, M)`.
        num_heads: number of heads `H`.
        dtype: NumPy dtype of the packed weights, float32 or bfloat16.
        name: of the block, for messages.
        activation: of the MLP.
        qk_norm: whether the block must have a norm of queries and keys.

    Returns:
        Weights, `[weights_size(...)]` of the dtype, and biases, `[biases_size(...)]` float32.

    Raises:
        ValueError: if an array is missing, unknown, of another shape or not of floats.
    """
    if (missing := set(_QKV_BIASES) - block.keys()) in _MAY_LACK:
        zeros = np.zeros((num_heads, sizes[0] // num_heads), np.float32)
        block = block | dict.fromkeys(missing, zeros)
    expected = _published_shapes(sizes, num_heads, activation, qk_norm)
    _check_block(block, expected, sizes, num_heads, name)
    layers = _folded_layers(block)
    packed, biases = [], []
    for layer in layer_shapes(*sizes):
        kernel, bias = layers[layer]
        if layer == "fc1" and activation == "swiglu":
            kernel = _interleaved(kernel)
        packed.append(pack_layer(kernel, dtype))
        biases.append(bias)
    if qk_norm:
        biases += [block[key] for key in _QK_NORM]
    return np.concatenate(packed), np.concatenate(biases).astype(np.float32)


def _interleaved(kernel):
    """Gate and up `[K, 2 M]` in the order of their panels, padded with zeros."""
    half = PANEL_COLUMNS // 2
    rows, columns = kernel.shape
    padded = np.zeros((rows, 2, -(-columns // PANEL_COLUMNS) * half), kernel.dtype)
    padded[:, :, : columns // 2] = kernel.reshape(rows, 2, -1)
    return padded.reshape(rows, 2, -1, half).transpose(0, 2, 1, 3).reshape(rows, -1)


def _check_block(block, expected, sizes, num_heads, name):
    """Raises a ValueError if a block does not have exactly the published arrays."""
    for key, shape in expected.items():
        found = _shape(block, key, name)
        if found != shape:
            raise ValueError(
                f"{name}: {key} has shape {found}, but it must be {shape}: width {sizes[0]}, "
                f"mlp_size {sizes[1]} and num_heads={num_heads}."
            )
        if not _is_float(block[key]):
            raise ValueError(f"{name}: {key} has dtype {block[key].dtype}. Cast it to a float.")
    unknown = sorted(set(block) - set(expected))
    if unknown:
        raise ValueError(
            f"{name} has the array {unknown[0]!r}, which an encoder block does not have. Its "
            f"arrays are {', '.join(expected)}."
        )


def _folded_layers(block):
    """Returns a dict from layer to kernel `[K, N]` and bias `[N]` with both LayerNorms folded."""
    attention = [f"{_ATTENTION}/{part}" for part in ("query", "key", "value")]
    width = block["LayerNorm_0/scale"].shape[0]
    qkv = np.concatenate([block[f"{x}/kernel"].reshape(width, width) for x in attention], axis=1)
    qkv_bias = np.concatenate([block[f"{x}/bias"].reshape(width) for x in attention])
    return {
        "qkv": _fold(block, "LayerNorm_0", qkv, qkv_bias),
        "out": (
            block[f"{_ATTENTION}/out/kernel"].reshape(width, width),
            block[f"{_ATTENTION}/out/bias"],
        ),
        "fc1": _fold(
            block, "LayerNorm_2", block[f"{_MLP}/Dense_0/kernel"], block[f"{_MLP}/Dense_0/bias"]
        ),
        "fc2": (block[f"{_MLP}/Dense_1/kernel"], block[f"{_MLP}/Dense_1/bias"]),
    }


def pack_layer(kernel, dtype):
    """Packs a kernel `[K, N]` as a vector of panels of the dtype."""
    columns, rows, _, together = panels_shape(kernel.shape, dtype.name)
    padded = np.zeros((rows * together, columns * PANEL_COLUMNS), dtype)
    padded[: kernel.shape[0], : kernel.shape[1]] = kernel
    panels = padded.reshape(rows, together, columns, PANEL_COLUMNS)
    return panels.transpose(2, 0, 3, 1).ravel()


def _fold(block, norm, kernel, bias):
    scale, shift = (block[f"{norm}/{part}"].astype(np.float64) for part in ("scale", "bias"))
    kernel = kernel.astype(np.float64)
    return scale[:, None] * kernel, bias + shift @ kernel


def _published_shapes(sizes, num_heads, activation, qk_norm):
    width, mlp_size = sizes
    fc1_columns = layer_shapes(width, mlp_size, activation)["fc1"][1]
    head = (num_heads, width // num_heads)
    norms = [f"LayerNorm_{i}/{part}" for i in (0, 2) for part in ("scale", "bias")]
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(norms, (width,))
    for part in ("query", "key", "value"):
        shapes[f"{_ATTENTION}/{part}/kernel"] = (width, *head)
        shapes[f"{_ATTENTION}/{part}/bias"] = head
    if qk_norm:
        shapes |= dict.fromkeys(_QK_NORM, head[1:])
    return shapes | {
        f"{_ATTENTION}/out/kernel": (*head, width),
        f"{_ATTENTION}/out/bias": (width,),
        f"{_MLP}/Dense_0/kernel": (width, fc1_columns),
        f"{_MLP}/Dense_0/bias": (fc1_columns,),
        f"{_MLP}/Dense_1/kernel": (mlp_size, width),
        f"{_MLP}/Dense_1/bias": (width,),
    }


def _shape(block, key, name):
    if key not in block:
        raise ValueError(
            f"{name} has no array {key!r}. A block needs all arrays that are published after "
            "Transformer/encoderblock_<i>/ (docs/paper.md B.2)."
        )
    return block[key].shape


def _is_float(array):
    # To NumPy, bfloat16 is no subtype of np.floating.
    return np.issubdtype(array.dtype, np.floating) or array.dtype.name == "bfloat16"
