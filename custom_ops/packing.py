"""The packed weights of encoder blocks, layout version 1: sizes, checks of a block, packing.

One layout serves all instruction sets. With `k = 1` for float32 and `k = 2` for bfloat16, a dense
layer `[K, N]` is stored as panels `[ceil(N / 64)][ceil(K / k)][64][k]`, zero padded: column `n` of
panel `p` is column `64 p + n`, and rows `k j .. k j + k - 1` lie side by side. The weights of a
block are its layers one after another, in the order of `layer_shapes`; its biases are float32 and
not padded.

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


def layer_shapes(width, mlp_size):
    """Returns a dict from layer to its shape `(K, N)`, in the order of the packed arrays.

    The columns of qkv are q | k | v, each `[H, d]`.
    """
    return {
        "qkv": (width, 3 * width),
        "out": (width, width),
        "fc1": (width, mlp_size),
        "fc2": (mlp_size, width),
    }


def panels_shape(shape, precision):
    """Returns the shape of the packed panels of a dense layer `(K, N)`."""
    rows, columns = shape
    together = ROWS_TOGETHER[precision]
    return (-(-columns // PANEL_COLUMNS), -(-rows // together), PANEL_COLUMNS, together)


def weights_size(width, mlp_size, precision):
    """Returns the number of elements of the packed weights of a block."""
    layers = layer_shapes(width, mlp_size).values()
    return sum(int(np.prod(panels_shape(shape, precision))) for shape in layers)


def biases_size(width, mlp_size):
    """Returns the number of elements of the biases of a block."""
    return sum(columns for _, columns in layer_shapes(width, mlp_size).values())


def block_sizes(block, name):
    """Returns `(D, M)` of a block.

    Args:
        block: dict of NumPy arrays, see `pack_block`.
        name: of the block, for messages.

    Raises:
        ValueError: if one of the two arrays that say it is missing or has another rank.
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
    return tuple(sizes)


def pack_block(block, sizes, num_heads, dtype, name):
    """Packs the arrays of one block.

    Args:
        block: dict from published key (docs/paper.md B.2), without
            `Transformer/encoderblock_<i>/`, to NumPy array.
        sizes: `(D, M)`.
        num_heads: number of heads `H`.
        dtype: NumPy dtype of the packed weights, float32 or bfloat16.
        name: of the block, for messages.

    Returns:
        Weights, `[weights_size(...)]` of the dtype, and biases, `[biases_size(...)]` float32.

    Raises:
        ValueError: if an array is missing, unknown, of another shape or not of floats.
    """
    _check_block(block, sizes, num_heads, name)
    layers = _folded_layers(block)
    packed = [pack_layer(layers[layer][0], dtype) for layer in layer_shapes(*sizes)]
    biases = [layers[layer][1] for layer in layer_shapes(*sizes)]
    return np.concatenate(packed), np.concatenate(biases).astype(np.float32)


def _check_block(block, sizes, num_heads, name):
    """Raises a ValueError if a block does not have exactly the published arrays."""
    expected = _published_shapes(sizes, num_heads)
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


def _published_shapes(sizes, num_heads):
    width, mlp_size = sizes
    head = (num_heads, width // num_heads)
    norms = [f"LayerNorm_{i}/{part}" for i in (0, 2) for part in ("scale", "bias")]
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(norms, (width,))
    for part in ("query", "key", "value"):
        shapes[f"{_ATTENTION}/{part}/kernel"] = (width, *head)
        shapes[f"{_ATTENTION}/{part}/bias"] = head
    return shapes | {
        f"{_ATTENTION}/out/kernel": (*head, width),
        f"{_ATTENTION}/out/bias": (width,),
        f"{_MLP}/Dense_0/kernel": (width, mlp_size),
        f"{_MLP}/Dense_0/bias": (mlp_size,),
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
