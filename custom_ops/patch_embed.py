"""Images to tokens: signatures and checks."""

import numbers

from custom_ops import dispatch
from custom_ops.arguments import exact_floats, positive_int

_FLOATS = ("float16", "bfloat16", "float32", "float64")
# Dtypes of fixed size: the kernel that cuts patches copies bytes.
_FIXED_SIZE = (
    *_FLOATS,
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "bool",
    "complex64",
    "complex128",
)


def patch_embed(
    images,
    kernel,
    bias,
    *,
    scale=1.0,
    offset=0.0,
    prefix=None,
    position=None,
    implementation=None,
):
    """Embeds the patches of images (Dosovitskiy et al., 2021, 3.1).

    A convolution of `images * scale + offset` whose stride is its size, then bias, prefix tokens
    and positions. Patches are in row-major order over the grid; pixels at the right and bottom
    that do not fill a patch are not read. `N = (H // P) * (W // P)`.

    Args:
        images: `[B, H, W, C]`, uint8 or float. The rescaling runs in float32 or wider, everything
            after it in the dtype of the kernel.
        kernel: `[P, P, C, D]` float; `P` is the patch size in pixels.
        bias: `[D]`.
        scale, offset: numbers that map pixel values to what the kernel expects, such as 2 / 255
            and -1 for uint8.
        prefix: optional `[T, D]` tokens, such as the class token, to put before the patches.
        position: optional `[T + N, D]` table to add, rows of the prefix first.
        implementation: "auto", "compiled" or "reference"; None is "auto". See
            `custom_ops.dispatch`. The compiled library has no second derivatives and no forward
            mode. It is not used on TPUs, on GPUs unless "compiled" asks for it, under
            `jit_compile=True` without a library for XLA, or for dtypes other than floats of 16, 32
            and 64 bits (and uint8 for images). float64 runs in the reference on GPUs, even with
            "compiled".

    Returns:
        Tokens `[B, T + N, D]` in the dtype of the kernel (`T = 0` without a prefix). Gradients
        exist for the kernel, bias, prefix, position and float images.

    Raises:
        ValueError: if an argument is illegal or shapes known at tracing do not fit.
    """
    import tensorflow as tf

    ops = dispatch.ops_for(implementation)
    images, kernel, bias = (tf.convert_to_tensor(x) for x in (images, kernel, bias))
    prefix = None if prefix is None else tf.convert_to_tensor(prefix)
    position = None if position is None else tf.convert_to_tensor(position)

    if not all(isinstance(number, numbers.Real) for number in (scale, offset)):
        raise ValueError(
            f"scale={scale!r} and offset={offset!r} must each be one number for all channels."
        )
    if images.dtype != tf.uint8 and not images.dtype.is_floating:
        raise ValueError(f"images have dtype {images.dtype.name}. Cast them to uint8 or a float.")
    _check_rank("images", images, "[B, H, W, C]")
    patch_size, channels, width = _check_kernel(kernel)
    _check_patches(images, patch_size)
    if not _may_equal(images.shape[-1], channels):
        raise ValueError(
            f"images have {images.shape[-1]} channels, but the kernel of shape {kernel.shape} is "
            f"for {channels}. Convert the images, or use another kernel."
        )
    _check_table("bias", bias, "[D]", width)
    if prefix is not None:
        _check_table("prefix", prefix, "[T, D]", width)
    if position is not None:
        _check_table("position", position, "[T + N, D]", width)
        _check_position_rows(position, prefix, images, patch_size)
    parts = {"scale": exact_floats(scale), "offset": exact_floats(offset)}
    covered = kernel.dtype.name in _FLOATS and images.dtype.name in (*_FLOATS, "uint8")
    covered = covered and dispatch.takes(kernel.dtype, images.dtype)
    if ops is None or not covered or None in parts.values():
        from custom_ops import reference

        return reference.patch_embed(images, kernel, bias, scale, offset, prefix, position)
    prefix, position = (
        [] if table is None else [tf.cast(table, kernel.dtype)] for table in (prefix, position)
    )
    bias = tf.cast(bias, kernel.dtype)
    return ops.vit_patch_embed(images, kernel, bias, prefix, position, **parts)


def extract_patches(images, patch_size):
    """Cuts images into non-overlapping square patches and flattens them.

    Multiplied by the kernel of `patch_embed`, reshaped to `[P * P * C, D]`, the result equals the
    patch convolution.

    Args:
        images: `[B, H, W, C]` of any dtype; differentiable if that is a float.
        patch_size: side `P` of a patch in pixels.

    Returns:
        `[B, N, P * P * C]` of the same dtype, `N = (H // P) * (W // P)`: row-major over the grid,
        and row, column, channel within a patch, the channel fastest. Pixels at the right and
        bottom that do not fill a patch are not read.

    Raises:
        ValueError: if an argument is illegal, or the image is smaller than a patch.
    """
    import tensorflow as tf

    ops = dispatch.ops_for(None)
    images = tf.convert_to_tensor(images)
    _check_rank("images", images, "[B, H, W, C]")
    size = positive_int(patch_size, "patch_size")
    _check_patches(images, size)
    if ops is None or images.dtype.name not in _FIXED_SIZE:
        from custom_ops import reference

        return reference.extract_patches(images, size)
    return ops.vit_extract_patches(images, patch_size=size)


def _check_rank(name, tensor, layout):
    rank = layout.count(",") + 1
    if tensor.shape.rank != rank:
        raise ValueError(
            f"{name} must be {layout}, of rank {rank}. Received shape {tensor.shape}: reshape it "
            "(one image needs a batch dimension), or set its static shape."
        )


def _check_kernel(kernel):
    """Returns the patch size, channels and width; the last two may be None."""
    if not kernel.dtype.is_floating:
        raise ValueError(f"kernel has dtype {kernel.dtype.name}. Cast it to a float.")
    _check_rank("kernel", kernel, "[P, P, C, D]")
    height, width, channels, features = kernel.shape.as_list()
    if not height or height != width:
        raise ValueError(
            f"kernel has shape {kernel.shape}, but its first two dimensions must be one patch size "
            "P, known and at least 1. Reshape it to [P, P, C, D]."
        )
    return height, channels, features


def _check_patches(images, patch_size):
    height, width = images.shape[1:3]
    if any(side is not None and side < patch_size for side in (height, width)):
        raise ValueError(
            f"images of {height} x {width} pixels hold no patch of {patch_size} x {patch_size}. "
            "Resize them, or use a smaller patch size."
        )


def _check_table(name, table, layout, width):
    if not table.dtype.is_floating:
        raise ValueError(f"{name} has dtype {table.dtype.name}. Cast it to a float.")
    _check_rank(name, table, layout)
    if not _may_equal(table.shape[-1], width):
        raise ValueError(
            f"{name} has shape {table.shape}, but it must be {layout} with D = {width}, the width "
            "of the kernel."
        )


def _check_position_rows(position, prefix, images, patch_size):
    prefix_size = 0 if prefix is None else prefix.shape[0]
    sides = images.shape[1:3].as_list()
    if None in (prefix_size, *sides):
        return
    rows, columns = (side // patch_size for side in sides)
    expected = prefix_size + rows * columns
    if not _may_equal(position.shape[0], expected):
        raise ValueError(
            f"position has {position.shape[0]} rows, but there are {expected} tokens: "
            f"{prefix_size} of the prefix and {rows} x {columns} patches. Resize the table to "
            "this grid."
        )


def _may_equal(one, other):
    return one is None or other is None or one == other
