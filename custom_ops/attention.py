"""Multi-head attention over a packed projection: signature and checks."""

import operator

from custom_ops import dispatch

TAPS = ("class_row", "distance", "entropy")


def attention(qkv, num_heads, *, bias=None, axis=None, taps=(), grid=None, implementation=None):
    """Multi-head attention that can report what it attended to (Vaswani et al., 2017, 3.2).

    Computes `softmax(q k^T / sqrt(D / H) + bias) v` in every head and concatenates the heads
    (Dosovitskiy et al., 2021, appendix A). The softmax runs in float32, or float64 for float64
    input. A row whose bias is all -inf has zero output, zero gradients and zero taps.

    Args:
        qkv: `[B, N, 3 D]` float16, bfloat16, float32 or float64: q | k | v, each `[H, D / H]`.
            With an axis, `[B, R, C, 3 D]`.
        num_heads: number of heads `H`; divides `D`.
        bias: optional floats to add to the logits, broadcastable to `[B, H, N, N]`, or with an axis
            to `[B, lines, H, n, n]`: `n` tokens along the axis, `lines` along the other one.
            Differentiable. 0 keeps and -inf hides a key. Finite numbers hide nothing, `dtype.min`
            included: a row of them is softmax all the same.
        axis: None, or 1 or 2 to attend along that axis of `[B, R, C, 3 D]` only: 2 within each row
            of the grid, 1 within each column.
        taps: names of what to report. All are float32 (float64 for float64 input), computed
            without a gradient, and not available with an axis:
            "class_row", `[B, H, N]`: weights from token 0 to all tokens;
            "distance", `[B, H]`: distance between query and key in grid units, weighted by
            attention, summed over keys and averaged over queries. Tokens before the last
            `rows * columns` have no place on the grid and are left out, both as queries and as
            keys; the weights that remain are not normalised again;
            "entropy", `[B, H]`: entropy of the weights in nats, averaged over queries.
        grid: `(rows, columns)` of the patches, for "distance".
        implementation: "auto", "compiled" or "reference"; None is "auto". See `custom_ops.loader`.
            The compiled library has no second derivatives and no forward mode. It is not used under
            `jit_compile=True` and not on TPUs and GPUs; see `custom_ops.dispatch`.

    Returns:
        `[B, N, D]` (`[B, R, C, D]` with an axis) in the dtype of `qkv`; with taps, the pair of it
        and a dict from tap name to tensor.

    Raises:
        ValueError: if an argument is illegal or shapes known at tracing do not fit.
    """
    import tensorflow as tf

    ops = dispatch.ops_for(implementation)
    qkv = tf.convert_to_tensor(qkv)
    num_heads = _check_qkv(qkv, num_heads, axis)
    if bias is not None:
        bias = tf.convert_to_tensor(bias)
        _check_bias(bias, qkv, num_heads, axis)
    taps, grid = _check_taps(taps, grid, axis, qkv)
    if ops is None:
        from custom_ops import reference

        return reference.attention(qkv, num_heads, bias, axis, taps, grid)
    # The precision in which the softmax runs.
    wide = tf.float64 if qkv.dtype == tf.float64 else tf.float32
    bias = [] if bias is None else [tf.cast(bias, wide)]
    out, statistics = ops.vit_attention(qkv, bias, num_heads=num_heads, axis=axis or 0, Tacc=wide)
    if not taps:
        return out
    rows, columns = grid or (0, 0)
    found = ops.vit_attention_taps(
        qkv,
        bias,
        statistics,
        num_heads=num_heads,
        taps=taps,
        grid_rows=rows,
        grid_columns=columns,
    )
    return out, {name: getattr(found, name) for name in taps}


def _check_qkv(qkv, num_heads, axis):
    """Returns `num_heads` as an int."""
    if axis not in (None, 1, 2):
        raise ValueError(
            f"axis={axis!r} is not an axis of the grid. Use 1 (within columns), 2 (within rows) or "
            "None (all tokens)."
        )
    if qkv.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise ValueError(
            f"qkv has dtype {qkv.dtype.name}. Cast it to float16, bfloat16, float32 or float64."
        )
    rank, layout = (3, "[B, N, 3 D]") if axis is None else (4, "[B, R, C, 3 D]")
    if qkv.shape.rank != rank:
        raise ValueError(
            f"qkv has shape {qkv.shape}, but with axis={axis} it must be {layout}, of rank {rank}. "
            "Reshape it, or change the axis."
        )
    num_heads = _positive_int(num_heads, "num_heads")
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


def _check_taps(taps, grid, axis, qkv):
    """Returns the names as a tuple and, where "distance" needs it, the grid as two ints."""
    taps = taps if isinstance(taps, str) else tuple(taps)
    if isinstance(taps, str) or any(name not in TAPS for name in taps):
        raise ValueError(f"taps={taps!r} must be a tuple of names from {list(TAPS)}.")
    if taps and axis is not None:
        raise ValueError(
            f"taps={taps} are not available with axis={axis}. Use axis=None, or leave taps empty."
        )
    if "distance" not in taps:
        return taps, None
    if grid is None:
        raise ValueError('The tap "distance" needs grid=(rows, columns) of the patches.')
    try:
        rows, columns = grid
    except (TypeError, ValueError):
        raise ValueError(f"grid={grid!r} must be the pair (rows, columns).") from None
    rows, columns = (_positive_int(n, f"Each side of grid={grid!r}") for n in (rows, columns))
    count = qkv.shape[1]
    if count is not None and rows * columns > count:
        raise ValueError(
            f"grid=({rows}, {columns}) has {rows * columns} patches, but qkv has only {count} "
            "tokens. Pass the grid that these tokens come from."
        )
    return taps, (rows, columns)


def _positive_int(value, name):
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise ValueError(f"{name} must be a positive integer. Received: {value!r}.")
    return number
