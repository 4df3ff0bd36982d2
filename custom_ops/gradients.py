"""Gradients of the compiled ops, registered with TensorFlow when this module is imported.

Each gradient is an op of its own, so that only the requested ones are computed: graphs prune the
others, and eager execution lists the inputs whose gradients are not needed.
"""

import contextlib

import tensorflow as tf

from custom_ops import loader


def _wanted(op, index):
    # Only eager operations have this attribute.
    return index not in (getattr(op, "skip_input_indices", None) or ())


def _attention(op, d_out, d_statistics):
    # No code outside reads the statistics, and the gradient ops that read them have no gradient.
    del d_statistics
    ops = loader.compiled_ops()
    qkv, *bias = op.inputs
    arguments = (qkv, bias, *op.outputs, d_out)
    attributes = {name: op.get_attr(name) for name in ("num_heads", "axis", "scale")}
    gradients = [ops.vit_attention_grad, ops.vit_attention_bias_grad][: 1 + len(bias)]
    return [
        gradient(*arguments, **attributes) if _wanted(op, index) else None
        for index, gradient in enumerate(gradients)
    ]


def _patch_embed(op, d_tokens):
    ops = loader.compiled_ops()
    images, kernel, _, *tables = op.inputs
    num_prefix = op.get_attr("num_prefix")
    prefix, position = tables[:num_prefix], tables[num_prefix:]
    rescaling = {name: op.get_attr(name) for name in ("scale", "offset")}
    d_images = d_kernel = None
    d_tables = [None] * (1 + len(tables))
    if images.dtype.is_floating and _wanted(op, 0):
        d_images = ops.vit_patch_embed_images_grad(images, kernel, d_tokens, **rescaling)
    if _wanted(op, 1):
        d_kernel = ops.vit_patch_embed_kernel_grad(kernel, images, d_tokens, **rescaling)
    if any(_wanted(op, 2 + index) for index in range(len(d_tables))):
        d_bias, d_prefix, d_position = ops.vit_patch_embed_tables_grad(d_tokens, prefix, position)
        d_tables = [d_bias, *d_prefix, *d_position]
    return [d_images, d_kernel, *d_tables]


def _extract_patches(op, d_patches):
    shape = tf.shape(op.inputs[0], tf.int64)
    size = op.get_attr("patch_size")
    return loader.compiled_ops().vit_extract_patches_grad(d_patches, shape, patch_size=size)


def _extract_patches_grad(op, d_images):
    # Cutting patches is linear, so the gradient of its gradient is the op itself.
    size = op.get_attr("patch_size")
    return [loader.compiled_ops().vit_extract_patches(d_images, patch_size=size), None]


def _bias_gelu(op, d_out):
    exact = op.get_attr("exact")
    return [*loader.compiled_ops().vit_bias_gelu_grad(*op.inputs, d_out, exact=exact)]


def _residual_norm(op, d_normalized, d_statistics, *d_sum):
    # No code outside reads the statistics.
    del d_statistics
    x, scale, _, *branch = op.inputs
    _, statistics, *sums = op.outputs
    d_x, d_scale, d_bias = loader.compiled_ops().vit_residual_norm_grad(
        sums[0] if sums else x, statistics, scale, d_normalized, list(d_sum)
    )
    return [d_x, d_scale, d_bias] + [d_x for _ in branch]


def _no_second_derivative(op, *gradients):
    del gradients
    raise NotImplementedError(
        f"The compiled ops have no second derivatives: {op.type} was asked for its gradient, as "
        "forward mode (tf.autodiff.ForwardAccumulator) does too. Use the reference: "
        "VIT_OPS=reference or custom_ops.implementation('reference')."
    )


_GRADIENTS = {
    "VitAttention": _attention,
    "VitAttentionGrad": _no_second_derivative,
    "VitAttentionBiasGrad": _no_second_derivative,
    "VitPatchEmbed": _patch_embed,
    "VitPatchEmbedImagesGrad": _no_second_derivative,
    "VitPatchEmbedKernelGrad": _no_second_derivative,
    "VitPatchEmbedTablesGrad": _no_second_derivative,
    "VitExtractPatches": _extract_patches,
    "VitExtractPatchesGrad": _extract_patches_grad,
    "VitBiasGelu": _bias_gelu,
    "VitBiasGeluGrad": _no_second_derivative,
    "VitResidualNorm": _residual_norm,
    "VitResidualNormGrad": _no_second_derivative,
}


def _register():
    for name, function in _GRADIENTS.items():
        # After a second import of this package the gradient is already registered.
        with contextlib.suppress(KeyError):
            tf.RegisterGradient(name)(function)
    for name in ("VitAttentionTaps", "VitSgdUpdate", "VitAdamwUpdate"):
        with contextlib.suppress(KeyError):
            tf.no_gradient(name)


_register()
