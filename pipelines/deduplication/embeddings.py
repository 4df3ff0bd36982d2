"""Embeddings of images by any model here, as rows of length 1, and their 64-bit signs.

The features of a model have a large part in common, so that the cosine of any two is near 1. So the
mean of all rows of the reference is subtracted before cosines are computed. The sign of the product
with a random direction differs for two rows with probability angle / pi; 64 of these signs are a
key that `buckets` finds at a small distance (Charikar, Similarity Estimation Techniques from
Rounding Algorithms, 2002). The cosine of what it finds is computed exactly.
"""

import numpy as np
import tensorflow as tf

from pipelines.data.decoding import decode_batch
from pipelines.deduplication.perceptual_hash import BITS, pack_bits
from pipelines.errors import RunError, UserError
from pipelines.evaluation.feature_cache import model_digest

_BATCH = 32
# Rows of embeddings that are in memory at a time, as float32.
_AT_ONCE = 8192
# With fewer rows, the mean says more about single images than about the model.
_FEWEST_FOR_MEAN = 100


class Embedder:
    """Computes the embeddings of encoded images.

    Args:
        source: a `StoredModel`.

    Attributes:
        name: name of the model.
        size: number of features.
        digest: `feature_cache.model_digest`.

    Raises:
        UserError: if the model has features per patch.
    """

    def __init__(self, source):
        model, preprocessing, _ = source.open_model()
        if not model.config.pooled:
            raise UserError(f"{source.name} is unpooled: it has features per patch, not per image.")
        self.name, self.digest = source.name, model_digest(model, preprocessing)
        self._features = tf.function(
            lambda images: tf.cast(model.features(images), tf.float32), autograph=False
        )
        # A data pipeline that is built anew for each call takes longer than a small model.
        self._decode = tf.function(
            lambda images: decode_batch(images, preprocessing),
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )
        self.size = self._features(tf.zeros([_BATCH, *preprocessing.image_size, 3])).shape[1]

    def __call__(self, contents, is_mirrored=False):
        """The embeddings of encoded images, or of their mirror images.

        Args:
            contents: the bytes of each file, an object array `[n]`.
            is_mirrored: whether the images are mirrored before the model reads them.

        Returns:
            float16 `[n, F]`, rows of length 1; zeros where an image cannot be decoded.

        Raises:
            RunError: if a feature is not finite.
        """
        rows = np.zeros([len(contents), self.size], np.float16)
        for start in range(0, len(contents), _BATCH):
            part = list(contents[start : start + _BATCH])
            count = len(part)
            # Batches of one size, so that the model is traced once.
            part += [b""] * (_BATCH - count)
            images, valid = self._decode(tf.constant(part, tf.string))
            features = self._features(images[:, :, ::-1] if is_mirrored else images).numpy()
            valid = valid[:count].numpy()
            features = features[:count][valid]
            if not np.isfinite(features).all():
                raise RunError(f"A feature of {self.name} is not finite. Choose another --model.")
            rows[start : start + count][valid] = _unit(features)
        return rows


def mean(stored, rows):
    """The mean of the rows of an index, float32 `[F]`; zeros if there are fewer than 100.

    Args:
        stored: float16 `[n, views, F]`; the first view counts.
        rows: the rows that are there, int64 `[m]`.
    """
    total = np.zeros(stored.shape[2])
    if len(rows) < _FEWEST_FOR_MEAN:
        return total.astype(np.float32)
    for start in range(0, len(rows), _AT_ONCE):
        total += stored[rows[start : start + _AT_ONCE], 0].astype(np.float32).sum(axis=0)
    return (total / len(rows)).astype(np.float32)


def sign_keys(stored, rows, view, center):
    """The 64 signs of some rows, uint64 `[m]`.

    Args:
        stored: float16 `[n, views, F]`.
        rows: int64 `[m]`.
        view: which of the views.
        center: the `mean` that is subtracted.
    """
    directions = np.random.default_rng(0).standard_normal([stored.shape[2], BITS])
    directions = directions.astype(np.float32)
    keys = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        keys[part] = pack_bits(centered(stored, rows[part], view, center) @ directions > 0)
    return keys


def centered(stored, rows, view, center):
    """Some rows without the mean, of length 1: float32 `[m, F]`; arguments as for `sign_keys`."""
    return _unit(stored[rows, view].astype(np.float32) - center)


def _unit(values):
    """Rows divided by their lengths, float32; a row of zeros stays."""
    lengths = np.linalg.norm(values.astype(np.float64), axis=1, keepdims=True)
    return (values / np.where(lengths == 0, 1, lengths)).astype(np.float32)
