"""The rows of bench_ops.py: computation, check and timing of each.

On CPUs a `tf.function` returns when its results are computed, so the benchmark times the call.
`numpy()` would add a copy of the result to both sides.
"""

import functools

import numpy as np
import tensorflow as tf

import custom_ops
import vit_tf

_TORCH = {tf.float32: "float32", tf.bfloat16: "bfloat16"}
# Largest difference between implementations, as a fraction of the largest number.
_CLOSE = {tf.float32: 1e-5, tf.bfloat16: 2e-2}


def attention(table, torch):
    rows = [
        ("attention f32 8x197", (8, 197, 12, 64), tf.float32, False, 1.7),
        ("attention bf16 8x197", (8, 197, 12, 64), tf.bfloat16, False, 1.8),
        ("attention + gradient f32 8x197", (8, 197, 12, 64), tf.float32, True, 1.4),
        ("attention + gradient bf16 8x197", (8, 197, 12, 64), tf.bfloat16, True, None),
        ("attention f32 1x1370", (1, 1370, 12, 64), tf.float32, False, 1.4),
        ("attention f32 8x257, heads of 80", (8, 257, 16, 80), tf.float32, False, None),
    ]
    for name, (batch, tokens, heads, size), dtype, backward, wanted in rows:
        qkv = _normal([batch, tokens, 3 * heads * size], dtype)
        ours = _attention(qkv, heads, None, backward, "compiled")
        theirs = _attention(qkv, heads, None, backward, "reference")
        _check(name, ours(), theirs(), dtype)
        if torch:
            numbers = tf.cast(qkv, tf.float32).numpy()
            results = torch.load(numbers, heads, _TORCH[dtype], backward)
            _check(f"{name}, PyTorch", ours(), results, dtype)
        operations = 4 * batch * heads * tokens**2 * size * (3.5 if backward else 1)
        table.row(name, ours, theirs, operations, wanted, torch)


def axial(table, torch):
    del torch  # It has no attention along an axis.
    for side in (14, 56):
        for axis in (1, 2):
            qkv = _normal([8, side, side, 3 * 768], tf.float32)
            ours = _attention(qkv, 12, axis, False, "compiled")
            theirs = _attention(qkv, 12, axis, False, "reference")
            name = f"axial f32 8x{side}x{side}, axis {axis}"
            _check(name, ours(), theirs(), tf.float32)
            table.row(name, ours, theirs, 4 * 8 * side**3 * 768, 1.5)


def patches(table, torch):
    del torch
    kernel, bias = _normal([16, 16, 3, 768], tf.float32) * 0.02, _normal([768], tf.float32)
    prefix = _normal([1, 768], tf.float32)
    for batch in (8, 1):
        rows = batch * 196
        position = _normal([197, 768], tf.float32)
        pixels = tf.cast(tf.random.uniform([batch, 224, 224, 3], 0, 256, tf.int32), tf.uint8)
        floats = tf.cast(pixels, tf.float32) * (2 / 255) - 1

        @tf.function
        def convolution(images, batch=batch, position=position):
            if images.dtype == tf.uint8:
                images = tf.cast(images, tf.float32) * (2 / 255) - 1
            tokens = tf.nn.conv2d(images, kernel, 16, "VALID") + bias
            tokens = tf.reshape(tokens, [batch, 196, 768])
            return tf.concat([tf.tile(prefix[None], [batch, 1, 1]), tokens], 1) + position

        @tf.function
        def compiled(images, position=position):
            scale, offset = (2 / 255, -1.0) if images.dtype == tf.uint8 else (1.0, 0.0)
            return custom_ops.patch_embed(
                images,
                kernel,
                bias,
                scale=scale,
                offset=offset,
                prefix=prefix,
                position=position,
                implementation="compiled",
            )

        for images, wanted in ((floats, 1.05), (pixels, 1.15)):
            name = f"patch embedding {images.dtype.name} b={batch}"
            ours = functools.partial(compiled, images)
            theirs = functools.partial(convolution, images)
            _check(name, ours(), theirs(), tf.float32)
            wanted = wanted if batch == 8 else None
            table.row(name, ours, theirs, 2 * rows * 768 * 768, wanted)


def models(table, torch):
    del torch
    for policy in ("float32", "mixed_bfloat16"):
        dtype = tf.float32 if policy == "float32" else tf.bfloat16
        for batch in (1, 8):
            pair = [_inference("ViT-B/16", policy, batch, x) for x in ("compiled", "reference")]
            name = f"ViT-B/16 {policy} b={batch}"
            _check(name, pair[0](), pair[1](), dtype)
            table.row(name, *pair, 35.2e9 * batch, 1.0, most_rounds=12)
        pair = [_train_step("ViT-S/16", policy, 8, x) for x in ("compiled", "reference")]
        name = f"ViT-S/16 train step {policy} b=8"
        _check(name, pair[0](), pair[1](), dtype)
        table.row(name, *pair, 3 * 9.2e9 * 8, 1.0, most_rounds=12)


def _attention(qkv, heads, axis, backward, implementation):
    """A function without arguments: attention, or attention and the gradient for ones."""
    function = custom_ops.attention
    if axis is not None:
        function = functools.partial(custom_ops.axial_attention, axis=axis)
    call = functools.partial(function, implementation=implementation)

    @tf.function
    def forward(qkv):
        return call(qkv, heads)

    @tf.function
    def both(qkv):
        with tf.GradientTape() as tape:
            tape.watch(qkv)
            out = call(qkv, heads)
        return out, tape.gradient(out, qkv)

    return functools.partial(both if backward else forward, qkv)


def _inference(name, policy, batch, implementation):
    model = _model(name, policy, implementation)
    images = tf.cast(tf.random.stateless_uniform([batch, 224, 224, 3], (1, 2)) * 2 - 1, tf.float32)
    return functools.partial(tf.function(lambda x: model(x, training=False)), images)


def _train_step(name, policy, batch, implementation):
    """Forward, backward, clipping at 1 and SGD with momentum; returns the loss."""
    model = _model(name, policy, implementation)
    images = tf.random.stateless_uniform([batch, 224, 224, 3], (1, 2)) * 2 - 1
    labels = tf.range(batch)
    variables = [variable.value for variable in model.trainable_variables]
    velocities = [tf.Variable(tf.zeros_like(variable)) for variable in variables]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, variables), 1.0)
        for variable, velocity, gradient in zip(variables, velocities, gradients, strict=True):
            velocity.assign(0.9 * velocity + gradient)
            variable.assign_sub(1e-3 * velocity)
        return loss

    return step


def _model(name, policy, implementation):
    tf.keras.utils.set_random_seed(0)
    return vit_tf.create_model(
        name, num_classes=1000, head_bias=0.1, implementation=implementation, dtype=policy
    )


def _normal(shape, dtype):
    return tf.cast(tf.random.stateless_normal(shape, (len(shape), shape[0])), dtype)


def _check(name, ours, theirs, dtype):
    """Compares outputs and, if the row has them, gradients."""
    pairs = zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True)
    for one, other in pairs:
        one, other = (tf.cast(x, tf.float64).numpy() for x in (one, other))
        error = np.abs(one - other).max() / np.abs(other).max()
        if not error <= _CLOSE[dtype]:
            raise SystemExit(
                f"error: {name}: the implementations differ by {error:.1e} of the largest"
            )
