"""Local self-attention of the Image Transformer (Parmar et al., 2018), in one and two dimensions.

`B` images, `H x W` pixels, `C` channels, `h` heads, `d = C / h`.
"""

import math

import keras
import tensorflow as tf

from vit_tf.layers.related_work.spatial_layer import HeadsLayer
from vit_tf.layers.related_work.windows import HIDDEN, sizes, split_blocks, split_windows, wide


class _LocalAttention(HeadsLayer):
    """Base of both forms: projects pixels, lets blocks of queries attend to their memory blocks.

    A subclass defines `_blocks(x)`, `[B, blocks, queries, C]`, `_memories(x)`, `[B, blocks, keys,
    C]`, and `_merge(blocks, height, width)`, the inverse of `_blocks`.
    """

    def call(self, inputs, training=False):
        del training
        _, height, width, channels = sizes(inputs)
        query, key, value = tf.split(self.qkv(inputs), 3, axis=-1)
        query *= 1 / math.sqrt(channels // self.heads)
        query = self._split_heads(self._blocks(query))
        key, value = (self._split_heads(self._memories(x)) for x in (key, value))
        # The compiled op needs equal numbers of queries and keys, so this is plain TensorFlow.
        logits = tf.matmul(query, key, transpose_b=True)
        dtype = wide(logits.dtype)
        is_pixel = self._memories(tf.ones([1, height, width, 1], dtype))
        hidden = (1 - is_pixel) * HIDDEN  # [1, blocks, keys, 1]
        hidden = tf.transpose(hidden, [0, 1, 3, 2])[:, :, None]
        weights = tf.nn.softmax(tf.cast(logits, dtype) + hidden)
        attended = tf.matmul(tf.cast(weights, value.dtype), value)
        attended = tf.transpose(attended, [0, 1, 3, 2, 4])
        batch, blocks, queries, *_ = sizes(attended)
        attended = tf.reshape(attended, [batch, blocks, queries, channels])
        return self.out(self._merge(attended, height, width))

    def _split_heads(self, x):
        """`[B, blocks, n, C]` to `[B, blocks, h, n, d]`."""
        batch, blocks, count, channels = sizes(x)
        x = tf.reshape(x, [batch, blocks, count, self.heads, channels // self.heads])
        return tf.transpose(x, [0, 1, 3, 2, 4])


@keras.saving.register_keras_serializable(package="vit_tf")
class LocalAttention1D(_LocalAttention):
    """Self-attention of blocks of pixels in raster order to their block and the one before.

    The pixels, row after row, form blocks of `block` queries; the last one may be shorter. Every
    query of a block attends to all pixels of its block and of the block before; the first block has
    none before. This is the published "1D local attention" with `l_m = l_q`, but without the causal
    mask: the published model generates images, this layer classifies them. As published, the layer
    itself has no positions. Time and memory are linear in the number of pixels.

    Args:
        heads: number of heads; must divide `C`.
        block: pixels of a block.

    Call arguments:
        inputs: `[B, H, W, C]`.
        training: bool; changes nothing.

    Returns:
        `[B, H, W, C]`: heads concatenated and projected.
    """

    def __init__(self, heads, block, **kwargs):
        super().__init__(heads, **kwargs)
        self.block = block

    def _raster(self, x):
        batch, height, width, channels = sizes(x)
        return tf.reshape(x, [batch, height * width, channels])

    def _blocks(self, x):
        return split_blocks(self._raster(x), 1, self.block)

    def _memories(self, x):
        return split_windows(self._raster(x), 1, self.block, before=self.block, after=0)

    def _merge(self, blocks, height, width):
        batch, count, length, channels = sizes(blocks)
        line = tf.reshape(blocks, [batch, count * length, channels])[:, : height * width]
        return tf.reshape(line, [batch, height, width, channels])

    def get_config(self):
        return super().get_config() | {"block": self.block}


@keras.saving.register_keras_serializable(package="vit_tf")
class LocalAttention2D(_LocalAttention):
    """Self-attention of rectangles of pixels to the larger rectangles around them.

    The map is cut into blocks of `block` (rows, columns); those at the lower and right border may
    be smaller. Every query of a block attends to all pixels of its block and to those at most
    `reach` (rows, columns) away from it. This is the published "2D local attention" without the
    causal mask, so that the memory extends below the block too: the published model generates
    images, this layer classifies them. As published, the layer itself has no positions. Time and
    memory are linear in the number of pixels.

    Args:
        heads: number of heads; must divide `C`.
        block: (rows, columns) of a block of queries.
        reach: (rows, columns) by which the memory extends on each side; at most half a block.

    Call arguments:
        inputs: `[B, H, W, C]`.
        training: bool; changes nothing.

    Returns:
        `[B, H, W, C]`: heads concatenated and projected.
    """

    def __init__(self, heads, block, reach, **kwargs):
        super().__init__(heads, **kwargs)
        self.block = tuple(block)
        self.reach = tuple(reach)
        if any(2 * far > side for far, side in zip(self.reach, self.block, strict=True)):
            raise ValueError(
                f"reach={self.reach} must be at most half of block={self.block} on each axis."
            )

    def _blocks(self, x):
        rows = split_blocks(x, 1, self.block[0])
        return self._flat(split_blocks(rows, 3, self.block[1]))

    def _memories(self, x):
        (rows, columns), (far_rows, far_columns) = self.block, self.reach
        x = split_windows(x, 1, rows, far_rows, far_rows)
        return self._flat(split_windows(x, 3, columns, far_columns, far_columns))

    def _flat(self, x):
        """`[B, blocks down, l, blocks across, w, C]` to `[B, blocks, l w, C]`."""
        batch, down, rows, across, columns, channels = sizes(x)
        x = tf.transpose(x, [0, 1, 3, 2, 4, 5])
        return tf.reshape(x, [batch, down * across, rows * columns, channels])

    def _merge(self, blocks, height, width):
        rows, columns = self.block
        down, across = -(-height // rows), -(-width // columns)
        batch, *_, channels = sizes(blocks)
        x = tf.reshape(blocks, [batch, down, across, rows, columns, channels])
        x = tf.transpose(x, [0, 1, 3, 2, 4, 5])
        x = tf.reshape(x, [batch, down * rows, across * columns, channels])
        return x[:, :height, :width]

    def get_config(self):
        return super().get_config() | {"block": self.block, "reach": self.reach}
