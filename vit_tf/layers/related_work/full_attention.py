"""Full self-attention over the pixels of a map (Cordonnier et al., 2020)."""

import keras
import tensorflow as tf

import custom_ops
from custom_ops import dispatch
from vit_tf.layers.related_work.spatial_layer import HeadsLayer, known_sides
from vit_tf.layers.related_work.windows import by_place, sizes


@keras.saving.register_keras_serializable(package="vit_tf")
class FullAttention(HeadsLayer):
    """Self-attention of every pixel to every pixel, with learned 2-D relative positions.

    The logit of query `(i, j)` and key `(a, b)` in a head is `q . k / sqrt(d) + r_{a-i} + c_{b-j}`,
    with one learned number for each row offset and one for each column offset. This is the
    paper's learned relative encoding with content, in which position and content are
    separate terms; the paper computes `r` and `c` as products of embeddings, which express nothing
    else. Time and memory grow with the square of the number of pixels.

    Args:
        heads: number of heads; must divide `C`.

    Call arguments:
        inputs: `[B, H, W, C]`, of the height and width that the layer was built for.
        training: bool; changes nothing.

    Returns:
        `[B, H, W, C]`: heads concatenated and projected.
    """

    def __init__(self, heads, **kwargs):
        super().__init__(heads, **kwargs)
        self.supports_jit = dispatch.supports_jit("auto")

    def build(self, input_shape):
        super().build(input_shape)
        self.sides = known_sides(input_shape[1:3], self.name)
        self.rows, self.columns = (
            self.add_weight(
                name=name,
                shape=(self.heads, 2 * side - 1),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
                autocast=False,
            )
            for name, side in zip(("rows", "columns"), self.sides, strict=True)
        )

    def call(self, inputs, training=False):
        del training
        height, width = self.sides
        batch, *_, channels = sizes(inputs)
        rows, columns = (
            by_place(tf.tile(table.value[:, None], [1, side, 1]))
            for table, side in zip((self.rows, self.columns), self.sides, strict=True)
        )
        bias = rows[:, :, None, :, None] + columns[:, None, :, None, :]
        count = height * width
        bias = tf.reshape(bias, [1, self.heads, count, count])
        qkv = tf.reshape(self.qkv(inputs), [batch, count, 3 * channels])
        attended = custom_ops.attention(qkv, self.heads, bias=bias)
        return self.out(tf.reshape(attended, [batch, height, width, channels]))
