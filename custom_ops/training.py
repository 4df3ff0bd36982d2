"""What a training step computes between its matrix products: signatures and checks.

On CPUs the time of these passes over memory is a fourth of a step of ViT-S/16 in plain TensorFlow.
"""

from custom_ops import dispatch
from custom_ops.arguments import exact_floats

_ROWS = ("float16", "bfloat16", "float32")
_GELU = ("gelu_tanh", "gelu_erf")


def bias_gelu(x, bias, activation="gelu_tanh", *, keep_slope=False, implementation=None):
    """Adds a bias and applies GELU (Hendrycks and Gimpel, 2016, arXiv:1606.08415).

    The compiled op keeps `x` alone for the gradient, and sums the gradient of the bias in the pass
    that computes that of `x`. Its numbers are computed in float32 and rounded once.

    Args:
        x: `[..., D]` floats, such as the product of a dense layer.
        bias: `[D]`, cast to the dtype of `x`.
        activation: "gelu_tanh", `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`, or
            "gelu_erf", x times the normal distribution function.
        keep_slope: whether the reference keeps one tensor for the gradient, the derivative, and
            not all tensors of the formula: slower where `x` has to be kept anyway.
        implementation: "auto", "compiled" or "reference"; None is "auto". See
            `custom_ops.dispatch`. The compiled op has no second derivatives and no forward mode.
            On GPUs, and in float64, the reference runs, even with "compiled".

    Returns:
        `[..., D]` in the dtype of `x`.

    Raises:
        ValueError: if an argument is illegal or shapes known at tracing do not fit.
    """
    import tensorflow as tf

    ops = dispatch.ops_for(implementation, has_cuda=False, falls_back=True)
    if activation not in _GELU:
        raise ValueError(f'activation={activation!r} is unknown. Use "gelu_tanh" or "gelu_erf".')
    x = _floats("x", x)
    bias = _columns("bias", bias, x)
    if ops is None or x.dtype.name not in _ROWS:
        from custom_ops import reference

        return reference.bias_gelu(x, bias, activation, keep_slope)
    bias = tf.cast(bias, x.dtype)
    return ops.vit_bias_gelu(x, bias, exact=activation == "gelu_erf")


def layer_norm(x, scale, bias, *, epsilon, branch=None, implementation=None):
    """LayerNorm of the last dimension (Ba et al., 2016), after the addition of a residual branch.

    Statistics and gradients of scale and bias are computed in float32. The compiled op keeps the
    mean and 1 / sqrt(variance + epsilon) of each row for its gradient, which is one pass.

    Args:
        x: `[..., D]` floats.
        scale, bias: `[D]`.
        epsilon: added to the variance; at least 0.
        branch: optional, of the shape and dtype of `x`: added first.
        implementation: as for `bias_gelu`.

    Returns:
        The normalized `[..., D]` in the dtype of `x`; with a branch, `(x + branch, normalized)`,
        where the sum is rounded to the dtype before it is normalized.

    Raises:
        ValueError: if an argument is illegal or shapes known at tracing do not fit.
    """
    import tensorflow as tf

    ops = dispatch.ops_for(implementation, has_cuda=False, falls_back=True)
    x = _floats("x", x)
    scale, bias = _columns("scale", scale, x), _columns("bias", bias, x)
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0. Received: {epsilon!r}.")
    if branch is not None:
        branch = _floats("branch", branch)
        _check_like(branch, "branch", x, "x")
    if ops is None or x.dtype.name not in _ROWS:
        from custom_ops import reference

        if branch is None:
            return reference.layer_norm(x, scale, bias, epsilon)
        x = x + branch
        return x, reference.layer_norm(x, scale, bias, epsilon)
    scale, bias = (tf.cast(table, tf.float32) for table in (scale, bias))
    branches = [] if branch is None else [branch]
    normalized, _, sums = ops.vit_residual_norm(x, scale, bias, branches, epsilon=epsilon)
    return (sums[0], normalized) if branches else normalized


def sgd_update(
    weight, gradient, momentum, scalars, *, momentum_decay, weight_decay=0.0, implementation=None
):
    """One update by SGD with momentum and decoupled weight decay, in one pass.

    `m <- momentum_decay m + gradient_scale g; w <- w - rate (m + weight_decay w)`
    (docs/paper.md M.5). Nothing is changed in place, and there is no gradient.

    Args:
        weight, gradient: floats of one shape.
        momentum: of the same shape. bfloat16 is read and updated in float32, and rounded where it
            is returned.
        scalars: float32 `[2]`: gradient_scale, rate.
        momentum_decay, weight_decay: numbers.
        implementation: as for `bias_gelu`. The compiled op takes float32, and a momentum of
            float32 or bfloat16.

    Returns:
        `(new weight, new momentum)`.

    Raises:
        ValueError: if shapes known at tracing do not fit.
    """
    return _update(
        "sgd_update",
        [weight, gradient, momentum],
        scalars,
        implementation,
        momentum_decay=momentum_decay,
        weight_decay=weight_decay,
    )


def adamw_update(  # noqa: PLR0913 - arrays and numbers of the equations
    weight,
    gradient,
    momentum,
    variance,
    scalars,
    *,
    beta_1,
    beta_2,
    epsilon,
    weight_decay=0.0,
    implementation=None,
):
    """One update by AdamW (Loshchilov and Hutter, 2019), in one pass (docs/paper.md F.4).

    With `g` the gradient times gradient_scale: `m <- beta_1 m + (1 - beta_1) g`,
    `v <- beta_2 v + (1 - beta_2) g^2`,
    `w <- w - rate (m / correction_1 / (sqrt(v / correction_2) + epsilon) + weight_decay w)`.
    Nothing is changed in place, and there is no gradient.

    Args:
        weight, gradient, variance: floats of one shape.
        momentum: as for `sgd_update`.
        scalars: float32 `[4]`: gradient_scale, rate, correction_1, correction_2. The corrections
            are `1 - beta^t` of update t, from 1.
        beta_1, beta_2, epsilon, weight_decay: numbers.
        implementation: as for `sgd_update`.

    Returns:
        `(new weight, new momentum, new variance)`.

    Raises:
        ValueError: if shapes known at tracing do not fit.
    """
    return _update(
        "adamw_update",
        [weight, gradient, momentum, variance],
        scalars,
        implementation,
        beta_1=beta_1,
        beta_2=beta_2,
        epsilon=epsilon,
        weight_decay=weight_decay,
    )


def _update(name, arrays, scalars, implementation, **numbers):
    import tensorflow as tf

    ops = dispatch.ops_for(implementation, has_cuda=False, falls_back=True)
    names = ("weight", "gradient", "momentum", "variance")
    arrays = [_floats(*pair) for pair in zip(names, arrays, strict=False)]
    scalars = tf.convert_to_tensor(scalars)
    for array_name, array in zip(names[1:], arrays[1:], strict=False):
        _check_shape(array, array_name, arrays[0], "weight")
    weight, gradient, momentum, *variance = arrays
    parts = {key: exact_floats(number) for key, number in numbers.items()}
    wide = {array.dtype for array in (weight, gradient, scalars, *variance)}
    covered = wide == {tf.float32} and momentum.dtype in (tf.float32, tf.bfloat16)
    if ops is None or not covered or None in parts.values():
        from custom_ops import reference

        return getattr(reference, name)(*arrays, scalars, **numbers)
    function = getattr(ops, f"vit_{name}")
    return tuple(function(weight, gradient, scalars, momentum, *variance, **parts))


def _floats(name, value):
    import tensorflow as tf

    tensor = tf.convert_to_tensor(value)
    if not tensor.dtype.is_floating:
        raise ValueError(f"{name} has dtype {tensor.dtype.name}. Cast it to a float.")
    return tensor


def _columns(name, value, x):
    table = _floats(name, value)
    if x.shape.rank == 0:
        raise ValueError("x is a scalar, but it must be [..., D]. Reshape it.")
    width = None if x.shape.rank is None else x.shape[-1]
    if not table.shape.is_compatible_with([width]):
        raise ValueError(
            f"{name} has shape {table.shape}, but it must be [D] with D = {width}, the last "
            "dimension of x."
        )
    return table


def _check_like(array, name, other, other_name):
    if array.dtype != other.dtype:
        raise ValueError(
            f"{name} has dtype {array.dtype.name}, and {other_name} {other.dtype.name}. Cast one."
        )
    _check_shape(array, name, other, other_name)


def _check_shape(array, name, other, other_name):
    if not array.shape.is_compatible_with(other.shape):
        raise ValueError(
            f"{name} has shape {array.shape}, but it must have that of {other_name}, {other.shape}."
        )
