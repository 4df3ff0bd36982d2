"""Blocks of an encoder with random weights, by their published keys, and small plans of them."""

import numpy as np

import custom_ops

ATTENTION, MLP = "MultiHeadDotProductAttention_1", "MlpBlock_3"


def published(
    width, heads, mlp_size, seed=0, *, swiglu=False, qk_norm=False, key_bias=True, qkv_bias=True
):
    """Random arrays of a block, float32, by their published keys."""
    generator = np.random.default_rng([seed, width, heads, mlp_size])
    head = (heads, width // heads)

    def normal(*shape, size=0.3):
        return (size * generator.normal(size=shape)).astype(np.float32)

    block = {}
    for name in ("LayerNorm_0", "LayerNorm_2"):
        block |= {f"{name}/scale": 1 + normal(width), f"{name}/bias": normal(width)}
    for part in ("query", "key", "value"):
        block[f"{ATTENTION}/{part}/kernel"] = normal(width, *head, size=width**-0.5)
        block[f"{ATTENTION}/{part}/bias"] = normal(*head)
    block[f"{ATTENTION}/out/kernel"] = normal(*head, width, size=width**-0.5)
    block[f"{ATTENTION}/out/bias"] = normal(width)
    block[f"{MLP}/Dense_0/kernel"] = normal(width, mlp_size, size=width**-0.5)
    block[f"{MLP}/Dense_0/bias"] = normal(mlp_size)
    block[f"{MLP}/Dense_1/kernel"] = normal(mlp_size, width, size=mlp_size**-0.5)
    block[f"{MLP}/Dense_1/bias"] = normal(width)
    if swiglu:
        block[f"{MLP}/Dense_0/kernel"] = normal(width, 2 * mlp_size, size=width**-0.5)
        block[f"{MLP}/Dense_0/bias"] = normal(2 * mlp_size)
    if qk_norm:
        for norm in ("query_ln", "key_ln"):
            block[f"{ATTENTION}/{norm}/scale"] = 1 + normal(head[1])
            block[f"{ATTENTION}/{norm}/bias"] = normal(head[1])
    parts = () if key_bias else ("key",)
    for part in parts if qkv_bias else ("query", "key", "value"):
        del block[f"{ATTENTION}/{part}/bias"]
    return block


def stack(width=12, heads=3, mlp_size=7, layers=2, **features):
    return [published(width, heads, mlp_size, seed, **features) for seed in range(layers)]


def rotary_table(patches, head_size, seed=0):
    """Cosines and sines of random angles, `[patches, 2, head_size / 2]` float32."""
    angles = np.random.default_rng(seed).normal(size=(patches, head_size // 2))
    return np.stack([np.cos(3 * angles), np.sin(3 * angles)], axis=1).astype(np.float32)


def small_plan(precision="float32", **options):
    return custom_ops.pack_encoder(stack(), 3, precision, **options)


def as_float64(blocks):
    return [{key: array.astype(np.float64) for key, array in block.items()} for block in blocks]
