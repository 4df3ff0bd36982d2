"""Dense attention in NumPy, and a stand-in of a model whose attention weights are chosen."""

import types

import numpy as np

import custom_ops
from custom_ops import reference
from tests.vit_tf import numpy_vit


def weights(model, images):
    """`[B, layers, heads, T, T]` of all blocks, float64."""
    params = numpy_vit.published(model)
    patches = numpy_vit.embed(params, images)
    config = model.config
    _, blocks = numpy_vit.encode(
        params,
        patches,
        config.heads,
        config.classifier,
        grid=config.grid,
        **numpy_vit.options_of(config),
    )
    return np.stack(blocks, axis=1)


def rollout(blocks, prefix, has_class_token=True):
    """docs/paper.md J.4 with dense matrices: `[B, N]` for weights `[B, layers, heads, T, T]`.

    `prefix` tokens come before the patches; the first of them may be a class token.
    """
    attention = blocks.mean(axis=2)
    count = attention.shape[-1]
    joint = np.eye(count)
    for layer in range(attention.shape[1]):
        mixed = attention[:, layer] + np.eye(count)
        joint = mixed / mixed.sum(axis=-1, keepdims=True) @ joint
    rows = joint[:, :1] if prefix and has_class_token else joint[:, prefix:]
    return rows[..., prefix:].mean(axis=1)


def one_hot_attention(count, key):
    """All tokens attend to one of them."""
    return np.eye(count)[np.full(count, key)]


class DenseAttention:
    """Has the interface of a model that rollout and distance read.

    Args:
        blocks: `(qkv, bias, axis)` of each block.
        model: has `config`, `grid` and `num_prefix_tokens`.
    """

    def __init__(self, blocks, model):
        self._blocks = list(blocks)
        self.config, self.grid = model.config, model.grid
        self.num_prefix_tokens = model.num_prefix_tokens

    @classmethod
    def of(cls, matrices, grid, heads=1):
        """Every head of layer i attends with the row-stochastic `[T, T]` `matrices[i]`."""
        count = len(matrices[0])
        prefix = count - grid[0] * grid[1]
        config = types.SimpleNamespace(
            heads=heads,
            grid=grid,
            axial=False,
            patch_pixels=4,
            num_prefix_tokens=prefix,
            has_class_token=bool(prefix),
        )
        blocks = []
        for matrix in matrices:
            # Queries are one-hot: the logits are the rows of log A.
            logits = np.log(np.maximum(matrix, 1e-30))
            parts = [np.eye(count) * np.sqrt(count), logits.T, np.eye(count)]
            qkv = np.concatenate([np.tile(part, (1, heads)) for part in parts], axis=1)
            blocks.append((reference.tf.constant(qkv[None], "float32"), None, None))
        model = types.SimpleNamespace(config=config, grid=grid, num_prefix_tokens=prefix)
        return cls(blocks, model)

    def weights(self):
        """`[B, layers, heads, T, T]`."""
        heads = self.config.heads
        each = [reference.attention_weights(qkv, heads, bias) for qkv, bias, _ in self._blocks]
        return np.stack(each, axis=1)

    def attention_inputs(self, images):
        return iter(self._blocks)

    def attention_taps(self, images, taps):
        return [
            custom_ops.attention_with_taps(qkv, self.config.heads, taps, bias=bias, grid=self.grid)[
                1
            ]
            for qkv, bias, _ in self._blocks
        ]

    def on_grid(self, tokens):
        return reference.tf.reshape(
            tokens[:, self.num_prefix_tokens :], [-1, *self.grid, tokens.shape[-1]]
        )
