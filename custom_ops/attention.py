"""Multi-head attention over a packed projection: signatures and checks."""

import math
import numbers

from custom_ops import dispatch
from custom_ops.arguments import exact_floats, positive_int

TAPS = ("class_row", "distance", "entropy")


def attention(qkv, num_heads, *, bias=None, scale=None, implementation=None):
    """Multi-head attention (Vaswani et al., 2017, 3.2; Dosovitskiy et al., 2021, appendix A).

    Computes `softmax(scale q k^T + bias) v` in every head and concatenates the heads. The softmax
    runs in float32, or float64 for float64 input. A row whose bias is all -inf has zero output,
    zero gradients and zero taps.

    Args:
        qkv: `[B, N, 3 D]` float16, bfloat16, float32 or float64: q | k | v, each `[H, D / H]`.
        num_heads: number of heads `H`; divides `D`.
        bias: optional floats to add to the logits, broadcastable to `[B, H, N, N]`. Differentiable.
            0 keeps a key and -inf hides it. Finite numbers hide nothing, not even `dtype.min`: a
            row of them still gets softmax weights.
        scale: finite number above 0 that multiplies `q k^T`; None means `1 / sqrt(D / H)`. The
            kernels take a scale that is a sum of at most three float32 numbers and, unless `qkv`
            is float64, in [2^-126, 2^126]. Any other scale runs in the reference, even with
            `implementation="compiled"`.
        implementation: "auto", "compiled" or "reference"; None is "auto". See
            `custom_ops.dispatch`. The compiled library has no second derivatives and no forward
            mode. It is not used on TPUs, on GPUs only if "compiled" asks for it, and under
            `jit_compile=True` only if there is a library for XLA. float64 runs in the reference on
            GPUs, even with "compiled".

    Returns:
        `[B, N, D]` in the dtype of `qkv`.

    Raises:
        ValueError: if an argument is illegal or shapes known at tracing do not fit.
    """
    ops = dispatch.ops_for(implementation)
    qkv, bias, options = _check(qkv, num_heads, bias, scale)
    kernel_scale = _kernel_scale(options["scale"], qkv.dtype)
    if ops is None or kernel_scale is None or not dispatch.takes(qkv.dtype):
        from custom_ops import reference

        return reference.attention(qkv, bias=bias, **options)
    out, _ = _run_compiled(ops, qkv, bias, num_heads=options["num_heads"], scale=kernel_scale)
    return out


def attention_with_taps(
    qkv, num_heads, taps, *, bias=None, scale=None, grid=None, implementation=None
):
    """Like `attention`, and also returns statistics of the weights without storing them.

    Args:
        qkv, num_heads, bias, scale, implementation: as for `attention`.
        taps: names of the statistics. They are float32 (float64 for float64 input) and have no
            gradient:
            "class_row", `[B, H, N]`: weights from token 0 to all tokens;
            "distance", `[B, H]`: distance between query and key in grid units, weighted by
            attention, summed over keys and averaged over queries. Only the last `rows * columns`
            tokens are on the grid; the tokens before them are left out as queries and as keys, and
            the remaining weights are not normalized again;
            "entropy", `[B, H]`: entropy of the weights in nats, averaged over queries.
        grid: `(rows, columns)` of the patches; "distance" needs it.

    Returns:
        The output, `[B, N, D]`, and a dict from tap name to tensor.

    Raises:
        ValueError: if an argument is illegal or shapes known at tracing do not fit.
    """
    ops = dispatch.ops_for(implementation)
    qkv, bias, options = _check(qkv, num_heads, bias, scale)
    taps, grid = _check_taps(taps, grid, qkv)
    kernel_scale = _kernel_scale(options["scale"], qkv.dtype)
    if ops is None or kernel_scale is None or not dispatch.takes(qkv.dtype):
        from custom_ops import reference

        return reference.attention_with_taps(qkv, taps=taps, grid=grid, bias=bias, **options)
    heads = options["num_heads"]
    out, statistics = _run_compiled(ops, qkv, bias, num_heads=heads, scale=kernel_scale)
    if not taps:
        return out, {}
    rows, columns = grid or (0, 0)
    tensors = ops.vit_attention_taps(
        qkv,
        _as_list(bias, qkv.dtype),
        statistics,
        num_heads=heads,
        scale=kernel_scale,
        taps=taps,
        grid_rows=rows,
        grid_columns=columns,
    )
    return out, {name: getattr(tensors, name) for name in taps}


def axial_attention(qkv, num_heads, axis, *, bias=None, scale=None, implementation=None):
    """Like `attention`, along one axis of a grid of tokens (Ho et al., 2019; Wang et al., 2020).

    Args:
        qkv: `[B, R, C, 3 D]`: q | k | v at every place of the grid.
        num_heads, scale, implementation: as for `attention`.
        axis: 2 to attend within each row of the grid, 1 within each column.
        bias: as for `attention`, broadcastable to `[B, lines, H, n, n]`: `n` tokens along the axis,
            `lines` along the other one.

    Returns:
        `[B, R, C, D]` in the dtype of `qkv`.

    Raises:
        ValueError: if an argument is illegal or shapes known at tracing do not fit.
    """
    if axis not in (1, 2):
        raise ValueError(
            f"axis={axis!r} is not an axis of the grid. Use 1 (within columns) or 2 (within rows)."
        )
    ops = dispatch.ops_for(implementation)
    qkv, bias, options = _check(qkv, num_heads, bias, scale, axis)
    kernel_scale = _kernel_scale(options["scale"], qkv.dtype)
    if ops is None or kernel_scale is None or not dispatch.takes(qkv.dtype):
        from custom_ops import reference

        return reference.axial_attention(qkv, bias=bias, axis=axis, **options)
    heads = options["num_heads"]
    out, _ = _run_compiled(ops, qkv, bias, num_heads=heads, scale=kernel_scale, axis=axis)
    return out


def _run_compiled(ops, qkv, bias, *, num_heads, scale, axis=0):
    """Returns the output and the softmax statistics that taps and gradients need."""
    return ops.vit_attention(
        qkv,
        _as_list(bias, qkv.dtype),
        num_heads=num_heads,
        axis=axis,
        scale=scale,
        Tacc=_softmax_dtype(qkv.dtype),
    )


def _as_list(bias, dtype):
    """The bias as the registered ops take it: a list of at most one of the softmax dtype."""
    import tensorflow as tf

    return [] if bias is None else [tf.cast(bias, _softmax_dtype(dtype))]


def _softmax_dtype(dtype):
    import tensorflow as tf

    return tf.float64 if dtype == tf.float64 else tf.float32


def _kernel_scale(scale, dtype):
    """The scale as the registered ops take it, or None if the kernels cannot use it.

    The attribute holds float32 numbers that are summed. The kernels multiply logits by the scale in
    the softmax dtype, so the scale must be a normal number there.
    """
    if scale is None:
        return []
    is_normal = dtype.name == "float64" or 2.0**-126 <= scale <= 2.0**126
    return exact_floats(scale) if is_normal else None


def _check(qkv, num_heads, bias, scale, axis=None):
    """Returns `qkv` and `bias` as tensors, and `num_heads` and `scale` as keyword arguments."""
    import tensorflow as tf

    qkv = tf.convert_to_tensor(qkv)
    num_heads = _check_qkv(qkv, num_heads, axis)
    if bias is not None:
        bias = tf.convert_to_tensor(bias)
        _check_bias(bias, qkv, num_heads, axis)
    if scale is not None:
        # The stubs give numbers.Real no comparison with int.
        in_range = isinstance(scale, numbers.Real) and 0 < scale < math.inf  # pyright: ignore[reportOperatorIssue]
        if not in_range:
            raise ValueError(
                f"scale={scale!r} must be a finite number above 0, or None for 1 / sqrt(D / H)."
            )
        scale = float(scale)
    return qkv, bias, {"num_heads": num_heads, "scale": scale}


def _check_qkv(qkv, num_heads, axis):
    """Returns `num_heads` as an int."""
    if qkv.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise ValueError(
            f"qkv has dtype {qkv.dtype.name}. Cast it to float16, bfloat16, float32 or float64."
        )
    rank, layout = (3, "[B, N, 3 D]") if axis is None else (4, "[B, R, C, 3 D]")
    if qkv.shape.rank != rank:
        raise ValueError(
            f"qkv has shape {qkv.shape}, but it must be {layout}, of rank {rank}. Reshape it; "
            "attention is for [B, N, 3 D], axial_attention for [B, R, C, 3 D]."
        )
    num_heads = positive_int(num_heads, "num_heads")
    width = qkv.shape[-1]
    if width is not None and (width == 0 or width % (3 * num_heads)):
        raise ValueError(
            f"The last dimension of qkv is {width}, which is not a positive multiple of "
            f"3 * num_heads = {3 * num_heads}. It must hold q, k and v for num_heads={num_heads}: "
            "change one of the two."
        )
    return num_heads


def _check_bias(bias, qkv, num_heads, axis):
    if not bias.dtype.is_floating:
        raise ValueError(
            f"bias has dtype {bias.dtype.name}, but it is added to the logits. Use floats; for a "
            "mask, 0 keeps a key and -inf hides it."
        )
    batch, *tokens, _ = qkv.shape.as_list()
    if axis is None:
        full, layout = [batch, num_heads, *tokens, *tokens], "[B, H, N, N]"
    else:
        count, lines = tokens[axis - 1], tokens[2 - axis]
        full, layout = [batch, lines, num_heads, count, count], "[B, lines, H, n, n]"
    if bias.shape.rank is None:
        return
    fits = bias.shape.rank <= len(full) and all(
        have in (1, None, want) or want is None
        for have, want in zip(reversed(bias.shape.as_list()), reversed(full), strict=False)
    )
    if not fits:
        expected = ", ".join("?" if n is None else str(n) for n in full)
        raise ValueError(
            f"bias has shape {bias.shape}, which does not broadcast to {layout} = [{expected}]. "
            "Every dimension, from the last one, must be 1 or that size."
        )


def _check_taps(taps, grid, qkv):
    """Returns the names as a tuple and, where "distance" needs it, the grid as two ints."""
    taps = taps if isinstance(taps, str) else tuple(taps)
    if isinstance(taps, str) or any(name not in TAPS for name in taps):
        raise ValueError(f"taps={taps!r} must be a tuple of names from {list(TAPS)}.")
    if "distance" not in taps:
        return taps, None
    if grid is None:
        raise ValueError('The tap "distance" needs grid=(rows, columns) of the patches.')
    try:
        rows, columns = grid
    except (TypeError, ValueError):
        raise ValueError(f"grid={grid!r} must be the pair (rows, columns).") from None
    rows, columns = (positive_int(n, f"Each side of grid={grid!r}") for n in (rows, columns))
    count = qkv.shape[1]
    if count is not None and rows * columns > count:
        raise ValueError(
            f"grid=({rows}, {columns}) has {rows * columns} patches, but qkv has only {count} "
            "tokens. Pass the grid that these tokens come from."
        )
    return taps, (rows, columns)
