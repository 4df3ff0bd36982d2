"""A whole Vision Transformer for inference as one op, over weights that are packed once.

Private to this project: `vit_tf.models.PackedModel` uses it where `is_compiled` is true, and is its
definition elsewhere.
"""

import dataclasses
from typing import Any

from custom_ops import dispatch
from custom_ops.arguments import exact_floats
from custom_ops.encoder import NO_GRADIENT, EncoderPlan

POOLINGS = ("none", "token", "mean")


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
    """

    encoder: EncoderPlan
    patch_size: int
    kernel: Any
    bias: Any
    prefix: Any
    position: Any
    norm: tuple[Any, Any]
    head: tuple[Any, Any] | None

    @property
    def arrays(self):
        """All variables but those of `encoder`, without None."""
        found = [self.kernel, self.bias, self.prefix, self.position, *self.norm, *(self.head or ())]
        return [array for array in found if array is not None]


def pack_model(encoder, patch_embedding, prefix, position, norm, head):
    """Packs what is around the blocks of a model.

    Args:
        encoder: the `EncoderPlan` of all blocks.
        patch_embedding: kernel `[P, P, C, D]` and bias `[D]`.
        prefix: `[T, D]`, or None.
        position: `[T + N, D]`, or None.
        norm: scale and bias of the final LayerNorm, each `[D]`.
        head: kernel `[D, K]` and bias `[K]`, or None.

    Returns:
        `ModelPlan`, with variables that are not trainable.
    """
    import numpy as np
    import tensorflow as tf

    from custom_ops import packing

    def constant(array, name):
        if array is None:
            return None
        value = tf.convert_to_tensor(array)
        return tf.Variable(value, trainable=False, name=f"model_{name}")

    def floats(array, name):
        return constant(None if array is None else tf.cast(array, tf.float32), name)

    def packed(kernel, dtype, name):
        return constant(packing.pack_layer(np.asarray(kernel), np.dtype(dtype)), name)

    kernel, bias = patch_embedding
    matrix = np.reshape(np.asarray(kernel), (-1, kernel.shape[-1]))
    dtype = tf.as_dtype(encoder.precision).as_numpy_dtype
    if head is not None:
        head = packed(head[0], "float32", "head"), floats(head[1], "head_bias")
    return ModelPlan(
        encoder,
        kernel.shape[0],
        packed(matrix, dtype, "kernel"),
        floats(bias, "bias"),
        floats(prefix, "prefix"),
        floats(position, "position"),
        (floats(norm[0], "norm_scale"), floats(norm[1], "norm_bias")),
        head,
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
    out = ops.vit_model(
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
        patch_size=plan.patch_size,
        num_heads=encoder.num_heads,
        mlp_size=encoder.mlp_size,
        activation=encoder.activation,
        epsilon=encoder.epsilon,
        pooling=pooling,
        scale=exact_floats(scale),
        offset=exact_floats(offset),
        layout=encoder.layout,
    )
    return tf.raw_ops.PreventGradient(input=out, message=NO_GRADIENT)
