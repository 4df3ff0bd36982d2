"""Corruption of patch embeddings for masked patch prediction (docs/paper.md G.1)."""

import dataclasses
import math

import keras
import tensorflow as tf

from vit_tf.layers.dropout import uniform_per_example
from vit_tf.layers.embeddings import in_dtype

# A stream that no layer of a model has.
_STREAM = 2**40
# In `Corruption.source`: the mask embedding.
MASKED = -1


@dataclasses.dataclass(frozen=True)
class Corruption:
    """The corrupted patches of each image and their replacements.

    Attributes:
        source: int32 `[B, N]`: for each patch, the index of the patch of the same image whose
            embedding it gets, or `MASKED`. An unchanged patch has its own index.
        places: int32 `[B, n]`: the indices of the corrupted patches, whose content is predicted:
            first the replaced patches, then the unchanged ones, then the masked ones.
    """

    source: tf.Tensor
    places: tf.Tensor


def corrupted_counts(patches: int, fraction: float) -> tuple[int, int, int]:
    """The numbers of corrupted patches of an image (docs/paper.md G.1).

    Args:
        patches: number N of patches of an image.
        fraction: corrupted part, above 0 to 1.

    Returns:
        `(corrupted, replaced, unchanged)`; the rest of the corrupted patches is masked.
    """
    corrupted = math.floor(patches * fraction + 0.5)
    tenth = math.floor(corrupted / 10 + 0.5)
    return corrupted, tenth, tenth


def draw_corruption(patches, fraction, seed, step, slots) -> Corruption:
    """Draws which patches are corrupted; the counts are the same for every image.

    A draw depends on (seed, step, slot) only, so any split of a batch gives the same.

    Args:
        patches: number N of patches of an image.
        fraction: corrupted part, above 0 to 1.
        seed: int.
        step: scalar int tensor or int.
        slots: consecutive int tensor `[B]`, the places of the images in the global batch.

    Returns:
        `Corruption` of `[B, N]`.
    """
    shape = [tf.shape(slots)[0], 2 * patches]
    first = tf.cast(slots[0], tf.int64)
    draws = uniform_per_example(shape, _STREAM, seed, tf.cast(step, tf.int64), first)
    return _corruption(draws, patches, fraction)


def draw_corruption_by_id(patches, fraction, seed, ids) -> Corruption:
    """As `draw_corruption`, but a draw depends on (seed, id) only.

    An evaluation then corrupts an image in the same way in a batch of any size.

    Args:
        patches, fraction, seed: as for `draw_corruption`.
        ids: int tensor `[B]`, the ids of the images.
    """

    def draw(example_id):
        start = tf.zeros([], tf.int64)
        return uniform_per_example([1, 2 * patches], _STREAM, seed, example_id, start)[0]

    draws = tf.map_fn(draw, tf.cast(ids, tf.int64), fn_output_signature=tf.float32)
    return _corruption(tf.reshape(draws, [-1, 2 * patches]), patches, fraction)


def _corruption(draws, patches, fraction):
    """`Corruption` from uniform numbers in [0, 1), `[B, 2 N]`."""
    count, replaced, unchanged = corrupted_counts(patches, fraction)
    # The rank of a uniform number among N is uniform, so any subset of patches is equally likely.
    order = tf.argsort(draws[:, :patches], axis=1, stable=True)
    rank = tf.argsort(order, axis=1, stable=True)
    own = tf.broadcast_to(tf.range(patches), tf.shape(rank))
    # One of the other N - 1 patches. A product that rounds up to N - 1 would be the patch itself.
    steps = tf.cast(draws[:, patches:] * (patches - 1), tf.int32)
    other = (own + 1 + tf.minimum(steps, max(patches - 2, 0))) % patches
    masked = (rank >= replaced + unchanged) & (rank < count)
    source = tf.where(masked, MASKED, tf.where(rank < replaced, other, own))
    return Corruption(source=source, places=order[:, :count])


@keras.saving.register_keras_serializable(package="vit_tf")
class PatchMasking(keras.layers.Layer):
    """Replaces patch embeddings by others, or by one learned mask embedding.

    Call arguments:
        patches: `[B, N, D]`, before class token and positions.
        source: int32 `[B, N]`, see `Corruption`.

    Returns:
        `[B, N, D]`.
    """

    def build(self, input_shape):
        self.embedding = self.add_weight(
            name="embedding",
            shape=(input_shape[-1],),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
        )

    def compute_output_shape(self, input_shape, source_shape=None):
        del source_shape
        return input_shape

    def call(self, patches, source):
        taken = tf.gather(patches, tf.maximum(source, 0), axis=1, batch_dims=1)
        embedding = in_dtype(self.embedding, patches.dtype)
        return tf.where((source == MASKED)[..., None], embedding, taken)
