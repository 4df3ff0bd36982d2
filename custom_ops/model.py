"""A whole Vision Transformer for inference as one op, over weights that are packed once.

Private to this project: `vit_tf.models.PackedModel` uses it where `is_compiled` is true, and is its
definition elsewhere.
"""

import dataclasses
from typing import Any

from custom_ops import dispatch
from custom_ops.arguments import exact_floats
from custom_ops.encoder import NO_GRADIENT, EncoderPlan


@dataclasses.dataclass(frozen=True, eq=False)
class ModelPlan:
    """The packed weights of a model; `pack_model` makes it. `D` width, `T` prefix tokens.

    Attributes:
        encoder: the `EncoderPlan` of all blocks.
        patch_size: side of a patch in pixels.
        kernel: variable, the packed patch embedding in the dtype of the plan.
        bias: variable `[D]` float32.
        prefix: variable `[T, D]` float32, or None.
        position: variable `[T + N, D]` float32, or None.
        norm: variables `[D]` float32: scale and bias of the final LayerNorm.
        head: the packed kernel and the bias of the classifier, float32; None without one.
        rotary: variable or tensor `[N, 2, d / 2]` float32, rotary positions of the patches; None
            without them. See `custom_ops.encoder`.
    """

    encoder: EncoderPlan
    patch_size: int
    kernel: Any
    bias: Any
    prefix: Any
    position: Any
    norm: tuple[Any, Any]
    head: tuple[Any, Any] | None
    rotary: Any = None

    @property
    def packed(self):
        """The variables that `pack_model` made."""
        return [self.kernel, *(self.head or ())[:1]]


def pack_model(encoder, kernel, bias, prefix, position, norm, head, rotary=None):
    """Packs the kernels around the blocks of a model.

    Args:
        encoder: the `EncoderPlan` of all blocks.
        kernel: of the patch embedding, `[P, P, C, D]`.
        bias, prefix, position, norm: the variables of `ModelPlan`.
        head: kernel `[D, K]` and the variable of the bias, `[K]` float32, or None.
        rotary: of `ModelPlan`, or None.

    Returns:
        `ModelPlan`. The packed kernels are new variables, which are not trainable.
    """
    import numpy as np
    import tensorflow as tf

    from custom_ops import packing

    def packed(kernel, dtype, name):
        value = tf.convert_to_tensor(packing.pack_layer(kernel, np.dtype(dtype)))
        return tf.Variable(value, trainable=False, name=f"model_{name}")

    matrix = np.reshape(np.asarray(kernel), (-1, kernel.shape[-1]))
    dtype = tf.as_dtype(encoder.precision).as_numpy_dtype
    return ModelPlan(
        encoder,
        kernel.shape[0],
        packed(matrix, dtype, "kernel"),
        bias,
        prefix,
        position,
        norm,
        None if head is None else (packed(np.asarray(head[0]), "float32", "head"), head[1]),
        rotary,
    )


def is_compiled(implementation=None):
    """Whether `model` can run here: the compiled library is there and chosen."""
    return dispatch.ops_for(implementation, has_cuda=False) is not None


def model(images, scale, offset, plan, *, pooling, has_head, implementation=None):
    """Runs a model for inference: patch embedding, blocks, final LayerNorm, pooling and head.

    Products of the patch embedding and the blocks have the precision of the plan, see
    `custom_ops.encoder`; everything else is float32.

    Args:
        images: `[B, H, W, C]` uint8 or float, or the output of a stem.
        scale, offset: numbers that map pixel values to the range that the model reads.
        plan: `ModelPlan`.
        pooling: "none" for all tokens, "token" for the first one, "mean" for their mean.
        has_head: whether to apply the head of the plan.
        implementation: "auto" or "compiled"; `is_compiled` must be true for it.

    Returns:
        `[B, D or K]` float32, or `[B, T + N, D or K]` for pooling "none". It has no gradient.
    """
    import tensorflow as tf

    ops = dispatch.ops_for(implementation, has_cuda=False)
    if ops is None:
        raise ValueError(
            "The model needs the compiled library. Call it where is_compiled() is true."
        )
    encoder = plan.encoder
    if images.dtype == tf.float64:
        images = tf.cast(images, tf.float32)
    head = plan.head if has_head else None
    op = ops.vit_model if plan.rotary is None else ops.vit_rotary_model
    out = op(
        images,
        plan.kernel,
        plan.bias,
        [] if plan.prefix is None else [plan.prefix],
        [] if plan.position is None else [plan.position],
        list(encoder.weights),
        list(encoder.biases),
        *plan.norm,
        [] if head is None else [head[0]],
        [] if head is None else [head[1]],
        *([] if plan.rotary is None else [plan.rotary]),
        patch_size=plan.patch_size,
        num_heads=encoder.num_heads,
        mlp_size=encoder.mlp_size,
        activation=encoder.activation,
        epsilon=encoder.epsilon,
        qk_norm=encoder.qk_norm,
        pooling=pooling,
        scale=exact_floats(scale),
        offset=exact_floats(offset),
        layout=encoder.layout,
    )
    return tf.raw_ops.PreventGradient(input=out, message=NO_GRADIENT)
