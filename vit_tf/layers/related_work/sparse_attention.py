"""Self-attention with fixed sparse patterns (Sparse Transformer; Child et al., 2019)."""

import keras
import tensorflow as tf

import custom_ops
from custom_ops import dispatch
from vit_tf.layers.related_work.spatial_layer import HeadsLayer
from vit_tf.layers.related_work.windows import sizes, split_blocks


@keras.saving.register_keras_serializable(package="vit_tf")
class SparseAttention(HeadsLayer):
    """Self-attention in which half of the heads are block-local and half are strided.

    The pixels are numbered in raster order, `N = H * W` of them. With blocks of `l` pixels, a pixel
    `i` attends to every `j` with `floor(j / l) = floor(i / l)` in the first half of the heads, and
    to every `j` with `(i - j) mod l = 0` in the second half. These are the block-local half of the
    published "fixed" pattern and the strided half of the published "strided" one, divided between
    the heads as the paper's section 5.2 allows. There is no causal mask: the published model
    generates images, this layer classifies them. As published, the layer itself has no positions.

    No `N x N` matrix exists: both patterns are attention along one axis of the pixels in rows of
    `l`, which `custom_ops.axial_attention` computes. The first half costs `N l`, the second
    `N^2 / l`, both `N sqrt(N)` for `l = sqrt(N)`.

    Args:
        heads: number of heads, even; must divide `C`.
        block: `l`, in pixels.

    Call arguments:
        inputs: `[B, H, W, C]`.
        training: bool; changes nothing.

    Returns:
        `[B, H, W, C]`: heads concatenated and projected.
    """

    def __init__(self, heads, block, **kwargs):
        super().__init__(heads, **kwargs)
        check_even(heads)
        self.supports_jit = dispatch.supports_jit("auto")
        self.block = block

    def call(self, inputs, training=False):
        del training
        batch, height, width, channels = sizes(inputs)
        count, heads = height * width, self.heads // 2
        rows = split_blocks(
            tf.reshape(self.qkv(inputs), [batch, count, 3 * channels]), 1, self.block
        )
        lines, length = sizes(rows)[1], self.block
        # 0 for pixels, -inf after the last one.
        hidden = tf.math.log(split_blocks(tf.ones([1, count]), 1, length)[0])
        joint = tf.reshape(rows, [batch, lines, length, 3, 2, channels // 2])
        halves = []
        for half, axis, mask in ((0, 2, hidden), (1, 1, tf.transpose(hidden))):
            qkv = tf.reshape(joint[:, :, :, :, half], [batch, lines, length, 3 * channels // 2])
            bias = mask[None, :, None, None]
            halves.append(custom_ops.axial_attention(qkv, heads, axis, bias=bias))
        line = tf.reshape(tf.concat(halves, axis=-1), [batch, lines * length, channels])
        return self.out(tf.reshape(line[:, :count], [batch, height, width, channels]))

    def get_config(self):
        return super().get_config() | {"block": self.block}


def check_even(heads):
    """Raises `ValueError` unless half of the heads are a whole number."""
    if heads % 2:
        raise ValueError(f"heads must be even: half of them are strided. Received: {heads}.")
