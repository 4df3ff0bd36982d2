"""A stack of encoder blocks over weights that are packed once, for inference."""

import collections.abc
import dataclasses
import numbers
from typing import Any

from custom_ops import dispatch
from custom_ops.arguments import positive_int

LAYOUT = 1  # The version of the packed layout, see `custom_ops.packing`.
PRECISIONS = ("float32", "bfloat16")
ACTIVATIONS = ("gelu_tanh", "gelu_erf", "swiglu")

NO_GRADIENT = (
    "custom_ops.encoder is for inference and has no gradient. Train the layers that the weights "
    "were packed from, and pack them again afterwards."
)


@dataclasses.dataclass(frozen=True, eq=False)
class EncoderPlan:
    """The packed weights of encoder blocks and what `encoder` must know about them.

    `pack_encoder` makes it. Constructed from existing variables, such as variables of a loaded
    SavedModel, it checks their number, dtypes and sizes. Track the variables in an object that is
    saved (`module.weights = plan.weights`): the plan itself is not a `tf.Module`.

    Attributes:
        weights: tuple of L variables (or tensors) `[n]` in the dtype of `precision`; the layout is
            documented in `custom_ops.packing`.
        biases: tuple of L variables (or tensors) `[5 D + M]` float32; `M` more for "swiglu",
            `4 D / H` more with `qk_norm`.
        num_heads: number of heads.
        width: width `D` of the tokens.
        mlp_size: width `M` of the hidden activations of the MLP.
        precision: "float32" or "bfloat16", the dtype of the weights; see `encoder`.
        activation: "gelu_tanh", "gelu_erf" or "swiglu".
        epsilon: of all LayerNorms.
        layout: version of the packed layout.
        qk_norm: whether the queries and keys of each head are normalized.

    Raises:
        ValueError: if the fields do not fit each other; the message names the value.
    """

    weights: tuple[Any, ...]
    biases: tuple[Any, ...]
    num_heads: int
    width: int
    mlp_size: int
    precision: str = "float32"
    activation: str = "gelu_tanh"
    epsilon: float = 1e-6
    layout: int = LAYOUT
    qk_norm: bool = False

    def __post_init__(self):
        from custom_ops import packing

        if self.layout != LAYOUT:
            raise ValueError(
                f"The weights are packed in layout {self.layout!r}, but this version of custom_ops "
                f"reads layout {LAYOUT}. Pack them again with custom_ops.pack_encoder."
            )
        _check_options(self.precision, self.activation, self.epsilon)
        object.__setattr__(self, "epsilon", float(self.epsilon))
        for name in ("num_heads", "width", "mlp_size"):
            object.__setattr__(self, name, positive_int(getattr(self, name), name))
        _check_heads(self.width, self.num_heads)
        for name in ("weights", "biases"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.weights or len(self.weights) != len(self.biases):
            raise ValueError(
                "An encoder needs weights and biases for each of at least one block. Received: "
                f"{len(self.weights)} weights and {len(self.biases)} biases."
            )
        if self.qk_norm not in (True, False):
            raise ValueError(f"qk_norm={self.qk_norm!r} must be True or False.")
        sizes = self.width, self.mlp_size
        norm_size = packing.qk_norm_size(self.head_size) if self.qk_norm else 0
        biases_size = packing.biases_size(*sizes, self.activation, norm_size)
        for i, (weights, biases) in enumerate(zip(self.weights, self.biases, strict=True)):
            expected = packing.weights_size(*sizes, self.precision, self.activation)
            self._check_array(f"weights[{i}]", weights, self.precision, expected)
            self._check_array(f"biases[{i}]", biases, "float32", biases_size)

    @property
    def head_size(self):
        """Width `D / H` of a head."""
        return self.width // self.num_heads

    def _check_array(self, name, array, dtype, size):
        import tensorflow as tf

        if not tf.is_tensor(array):
            raise ValueError(
                f"{name} is a {type(array).__name__}. Make it a tf.Variable(..., trainable=False): "
                "arrays would be copied in every call."
            )
        if array.dtype != dtype:
            raise ValueError(
                f"{name} has dtype {tf.as_dtype(array.dtype).name}, but it must be {dtype} for "
                f"precision={self.precision!r}. Pack the weights with this precision."
            )
        if tuple(array.shape) != (size,):
            raise ValueError(
                f"{name} has shape {tuple(array.shape)}, but it must be ({size},) for "
                f"width={self.width}, mlp_size={self.mlp_size}, activation={self.activation!r}, "
                f"qk_norm={self.qk_norm} and precision={self.precision!r}. "
                "It is truncated, or packed for another encoder: use custom_ops.pack_encoder."
            )


def pack_encoder(blocks, num_heads, precision="float32", activation="gelu_tanh", epsilon=1e-6):
    """Packs the weights of encoder blocks for `encoder`. Needs no compiled library.

    Args:
        blocks: sequence or iterator of dicts, one for each block, from the published keys after
            `Transformer/encoderblock_<i>/` (docs/paper.md B.2), `LayerNorm_0/scale` and so on, to
            arrays or tensors of floats. An iterator is read block by block, so that the blocks need
            not be in memory all together.
            `key/bias`, or the biases of query, key and value, may be missing, for zeros; `query_ln`
            and `key_ln` of the attention, each `scale` and `bias` `[D / H]`, normalize the queries
            and keys of each head.
        num_heads: number of heads `H`.
        precision: "float32", or "bfloat16" for half the memory and faster products. "int8" is not
            supported.
        activation: "gelu_tanh", "gelu_erf", or "swiglu" for `silu(gate) * up`: `Dense_0` of the MLP
            is gate | up, `[D, 2 M]`, and `Dense_1` `[M, D]`.
        epsilon: of all LayerNorms.

    Returns:
        `EncoderPlan`, with variables that are not trainable.

    Raises:
        ValueError: if an argument is illegal, or a block has not exactly the published arrays of
            the sizes of the first block.
    """
    import numpy as np
    import tensorflow as tf

    from custom_ops import packing

    _check_options(precision, activation, epsilon)
    num_heads = positive_int(num_heads, "num_heads")
    dtype = np.dtype(tf.as_dtype(precision).as_numpy_dtype)
    sizes, qk_norm = None, False
    weights, biases = [], []
    for i, block in enumerate(blocks):
        name = f"blocks[{i}]"
        if not isinstance(block, collections.abc.Mapping):
            raise ValueError(
                f"{name} is a {type(block).__name__}, but it must be a dict from published keys, "
                "such as LayerNorm_0/scale, to arrays."
            )
        block = {key: np.asarray(array) for key, array in block.items()}
        if sizes is None:
            sizes = packing.block_sizes(block, name, activation)
            _check_heads(sizes[0], num_heads)
            qk_norm = packing.has_qk_norm(block)
        arrays = packing.pack_block(block, sizes, num_heads, dtype, name, activation, qk_norm)
        for kind, array, variables in zip(
            ("weights", "biases"), arrays, (weights, biases), strict=True
        ):
            value = tf.convert_to_tensor(array)
            variables.append(tf.Variable(value, trainable=False, name=f"encoder_{kind}_{i}"))
    if sizes is None:
        raise ValueError("blocks is empty: pass the arrays of at least one block.")
    return EncoderPlan(
        tuple(weights),
        tuple(biases),
        num_heads,
        *sizes,
        precision=precision,
        activation=activation,
        epsilon=epsilon,
        qk_norm=qk_norm,
    )


def encoder(tokens, plan, *, rotary=None, first_row_only=False, implementation=None):
    """Runs a stack of encoder blocks over packed weights, for inference (docs/paper.md A.4).

    `x + attention(norm(x))`, then `x + mlp(norm(x))`, for every block, without dropout and without
    the final LayerNorm. With precision "bfloat16" the weights are bfloat16. Where products of
    bfloat16 are fast (AVX-512 BF16, AMX; even widths) their other factors are rounded to bfloat16
    too, as the reference does; elsewhere they stay float32. Sums, biases, LayerNorm, rotary
    positions, activations of the MLP and the tokens between blocks are float32 everywhere.

    Args:
        tokens: `[B, N, D]` float32.
        plan: `EncoderPlan`, see `pack_encoder`.
        rotary: rotary positions of the last `P` tokens, the same in all blocks: `[P, 2, d / 2]`
            float32, the cosines and then the sines of the angles, with the even size `d = D / H` of
            a head. Element i of each query and key is turned with element `i + d / 2`. The first
            `N - P` tokens keep their direction. None: no token is turned.
        first_row_only: whether to return only row 0, the class token, which spares most work of
            the last block.
        implementation: "auto", "compiled" or "reference"; None is "auto". See
            `custom_ops.dispatch`. The reference unpacks the weights in every call.

    Returns:
        `[B, N, D]` float32, or `[B, 1, D]` if `first_row_only`. It has no gradient; asking for one
        is an error that says so (eagerly a LookupError).

    Raises:
        ValueError: if an argument is illegal or shapes known at tracing do not fit.
    """
    import tensorflow as tf

    ops = dispatch.ops_for(implementation, has_cuda=False)
    if not isinstance(plan, EncoderPlan):
        raise ValueError(
            f"plan is a {type(plan).__name__}, but it must be what custom_ops.pack_encoder returns."
        )
    if first_row_only not in (True, False):
        raise ValueError(f"first_row_only={first_row_only!r} must be True or False.")
    tokens = tf.convert_to_tensor(tokens)
    _check_tokens(tokens, plan, first_row_only)
    if rotary is not None:
        rotary = tf.convert_to_tensor(rotary)
        _check_rotary(rotary, tokens, plan)
    if ops is None:
        from custom_ops import encoder_reference

        out = encoder_reference.encoder(tokens, plan, first_row_only, rotary)
    else:
        op = ops.vit_encoder if rotary is None else ops.vit_rotary_encoder
        out = op(
            tokens,
            list(plan.weights),
            list(plan.biases),
            *([] if rotary is None else [rotary]),
            num_heads=plan.num_heads,
            mlp_size=plan.mlp_size,
            activation=plan.activation,
            epsilon=plan.epsilon,
            qk_norm=plan.qk_norm,
            first_row_only=bool(first_row_only),
            layout=plan.layout,
        )
    return tf.raw_ops.PreventGradient(input=out, message=NO_GRADIENT)


def _check_options(precision, activation, epsilon):
    if precision == "int8":
        raise ValueError('precision="int8" is not supported. Use "bfloat16" or "float32".')
    if precision not in PRECISIONS:
        raise ValueError(f'precision={precision!r} is unknown. Use "float32" or "bfloat16".')
    if activation not in ACTIVATIONS:
        raise ValueError(
            f'activation={activation!r} is unknown. Use "gelu_tanh", "gelu_erf" or "swiglu".'
        )
    # The kernels read it as float32. The stubs give numbers.Real no comparison with float.
    in_range = isinstance(epsilon, numbers.Real) and 2.0**-126 <= epsilon <= 1  # pyright: ignore[reportOperatorIssue]
    if not in_range:
        raise ValueError(f"epsilon={epsilon!r} must be a number in [2^-126, 1], such as 1e-6.")


def _check_heads(width, num_heads):
    if width % num_heads:
        raise ValueError(
            f"The width of the tokens is {width}, which num_heads={num_heads} does not divide. "
            "Pass the number of heads that the weights were trained with."
        )


def _check_tokens(tokens, plan, first_row_only):
    if tokens.dtype != "float32":
        raise ValueError(f"tokens have dtype {tokens.dtype.name}. Cast them to float32.")
    if tokens.shape.rank != 3:
        raise ValueError(
            f"tokens have shape {tokens.shape}, but they must be [B, N, D], of rank 3. Reshape "
            "them."
        )
    if tokens.shape[2] not in (None, plan.width):
        raise ValueError(
            f"tokens have shape {tokens.shape}, but the plan is for tokens [B, N, {plan.width}]. "
            "Use the plan of the model that the tokens come from."
        )
    if first_row_only and tokens.shape[1] == 0:
        raise ValueError(f"tokens have shape {tokens.shape}: first_row_only=True needs a row.")


def _check_rotary(rotary, tokens, plan):
    if plan.head_size % 2:
        raise ValueError(
            f"rotary turns pairs of elements, but heads have {plan.head_size} elements. Pass "
            "rotary=None, or weights of heads of an even size."
        )
    expected = (2, plan.head_size // 2)
    if rotary.dtype != "float32":
        raise ValueError(f"rotary has dtype {rotary.dtype.name}. Cast it to float32.")
    if rotary.shape.rank != 3 or not rotary.shape[1:].is_compatible_with(expected):
        raise ValueError(
            f"rotary has shape {rotary.shape}, but it must be [P, 2, d / 2] = (P, {expected[0]}, "
            f"{expected[1]}): the cosines and the sines of the angles of each patch."
        )
    rows, count = rotary.shape[0], tokens.shape[1]
    if rows is not None and count is not None and rows > count:
        raise ValueError(
            f"rotary has {rows} rows, one for each of the last tokens, but there are {count} "
            "tokens."
        )
