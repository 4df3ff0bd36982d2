"""MixUp and CutMix: every example of a batch is mixed with the example before it.

The random draws of a batch depend only on the seed of the run and the step. The partner of the
example in slot s of a global batch of size B is the example in slot s - 1 modulo B. So a mixed
batch is the same on any number of replicas and hosts; a host only decodes one more example.
"""

import dataclasses
import functools
import math

import numpy as np
import tensorflow as tf

from pipelines.data import stateless_random
from pipelines.data.labels.encoding import as_targets

# Length of the array that `Mixing.draw` returns.
DRAWS = 6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mixing:
    """Mixes batches of images, with one label or several labels each.

    MixUp (Zhang et al., 2018; the variant of Steiner et al., 2022): draws lambda ~ Beta(a, a) once
    per batch; max(lambda, 1 - lambda) is the weight of images and labels, and partners get the
    rest. CutMix (Yun et al., 2019): a box with the fraction 1 - lambda of the area, with a uniform
    center and clipped at the border, is copied from the partner; labels are weighted by the
    resulting areas. If both are on, each batch uses one of them, each with probability 0.5.

    Attributes:
        mixup, cutmix: `a` of MixUp and of CutMix, at least 0; 0 turns it off.
        seed: seed of the run.
        image_size: (height, width) of the images, in pixels.
        num_classes: length of the mixed labels.
        steps: number of first batches that are mixed; None is all.
    """

    mixup: float
    cutmix: float
    seed: int
    image_size: tuple[int, int]
    num_classes: int
    steps: int | None = None

    def __bool__(self):
        return self.mixup > 0 or self.cutmix > 0

    def draw(self, step):
        """Returns the random draws for the batch of a step.

        Returns:
            float32 `[6]`: weight of the example's own label; weight of its own image outside the
            box; top, left, bottom and right of the box, where the image is the partner's.
        """
        if self.steps is not None and step >= self.steps:
            return np.array([1, 1, 0, 0, 0, 0], np.float32)
        words = stateless_random.random_words(self.seed, stateless_random.MIXING, (0, step), 5)
        which, first, second, row, column = ((words >> np.uint64(11)) + 0.5) * 2.0**-53
        if self.cutmix > 0 and (self.mixup == 0 or which >= 0.5):
            share = symmetric_beta(self.cutmix, first, second)
            top, left, bottom, right = cut_box(self.image_size, share, row, column)
            height, width = self.image_size
            label = 1 - (bottom - top) * (right - left) / (height * width)
            return np.array([label, 1, top, left, bottom, right], np.float32)
        share = symmetric_beta(self.mixup, first, second)
        share = max(share, 1 - share)
        return np.array([share, share, 0, 0, 0, 0], np.float32)

    def mix(self, draw, images, labels, partner_images, partner_labels):
        """Mixes examples with their partners.

        Args:
            draw: float32 tensor `[6]`, from the method `draw`.
            images, partner_images: float32 `[b, h, w, 3]`.
            labels, partner_labels: int `[b]`, or multi-label: float32 `[b, num_classes]`.

        Returns:
            Images, float32 `[b, h, w, 3]`, and labels, float32 `[b, num_classes]`.
        """
        label_share, image_share, top, left, bottom, right = tf.unstack(draw)
        rows, columns = (tf.range(side, dtype=tf.float32) for side in self.image_size)
        inside = ((rows >= top) & (rows < bottom))[:, None] & (columns >= left) & (columns < right)
        kept = tf.where(inside, 0.0, image_share)[..., None]
        images = kept * images + (1 - kept) * partner_images
        labels, partner_labels = (
            as_targets(column, self.num_classes) for column in (labels, partner_labels)
        )
        return images, label_share * labels + (1 - label_share) * partner_labels


def mixed_batches(dataset, host_slice, mixing, may_be_bad):
    """Mixes the batches of a host, and divides them among its replicas.

    Args:
        dataset: dataset of the rows of one global batch that the host reads, with "mixing": the
            draws of the batch, for each row.
        host_slice: the `HostSlice`.
        mixing: the `Mixing`.
        may_be_bad: whether rows of weight 0 have a black image, which is not mixed with others.

    Returns:
        Dataset of the batches of the replicas.
    """
    # Two batches at the same time are enough, and more would take more memory.
    dataset = dataset.map(
        functools.partial(_mixed, host_slice, mixing, may_be_bad),
        num_parallel_calls=2,
        deterministic=True,
    )
    if host_slice.replicas > 1:
        dataset = dataset.map(functools.partial(_divide, host_slice.replicas)).unbatch()
    return dataset


def _mixed(host_slice, mixing, may_be_bad, rows):
    """Mixes the rows of one global batch that a host has read; returns the host's batch."""
    rows = dict(rows)
    draw = rows.pop("mixing")[0]
    batch = {key: host_slice.own(column) for key, column in rows.items()}
    image, label, weight = (batch[key] for key in ("image", "label", "weight"))

    def partners(key):
        return host_slice.own(tf.roll(rows[key], 1, axis=0))

    batch["image"], batch["label"] = mixing.mix(
        draw, image, label, partners("image"), partners("label")
    )
    if may_be_bad:
        # Black images are not mixed with others: neither image nor label.
        both_valid = weight * partners("weight") > 0
        unmixed = as_targets(label, mixing.num_classes)
        batch["image"], batch["label"] = tf.cond(
            tf.reduce_all(both_valid),
            lambda: (batch["image"], batch["label"]),
            lambda: (
                tf.where(both_valid[:, None, None, None], batch["image"], image),
                tf.where(both_valid[:, None], batch["label"], unmixed),
            ),
        )
    return batch


def _divide(replicas, batch):
    """Divides the batch of a host among its replicas."""
    return {
        key: tf.reshape(column, [replicas, -1, *column.shape[1:]]) for key, column in batch.items()
    }


def symmetric_beta(alpha, first, second):
    """Returns a Beta(alpha, alpha) number from two uniform numbers in (0, 1).

    Bailey's polar method for Student's t with 2 alpha degrees of freedom, mapped to the unit
    interval (Devroye, Random variate generation in one line of code, 1996). The method does not
    reject draws, so their number is fixed.
    """
    cosine = math.cos(2 * math.pi * second)
    # u**(-1 / alpha) - 1, limited to the range of floats: beyond it the result is 0 or 1 anyway.
    spread = math.expm1(min(-math.log(first) / alpha, 700.0))
    squared = spread * cosine**2
    return 0.5 + math.copysign(0.5 * math.sqrt(squared / (1 + squared)), cosine)


def cut_box(image_size, share, row, column):
    """Returns the box of CutMix: `1 - share` of the area, or less where the border clips it.

    Args:
        image_size: (height, width).
        share: lambda, in [0, 1].
        row, column: center of the box as fractions of the height and the width, in [0, 1).

    Returns:
        top, left, bottom, right: integers; bottom and right are exclusive.
    """
    edges = []
    for side, center in zip(image_size, (row, column), strict=True):
        length = int(side * math.sqrt(1 - share))
        first = int(side * center) - length // 2
        edges.append((max(first, 0), min(first + length, side)))
    (top, bottom), (left, right) = edges
    return top, left, bottom, right
