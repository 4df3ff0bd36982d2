"""What is measured on the weights of a training: few shots, changed images."""

import dataclasses
import statistics
from typing import ClassVar

import numpy as np
import tensorflow as tf

from pipelines.data.sources.open import open_source
from pipelines.evaluation.features import FeatureExtractor
from pipelines.evaluation.few_shot import few_shot_grid
from pipelines.research.paper import image_changes
from pipelines.research.paper.findings import Reading
from pipelines.research.paper.units import Measurement, evaluation_data

# Strength of the regularization for one training example. The published strength, 1024 in all,
# leaves little but the means of the classes where there are few.
_L2_PER_EXAMPLE = 0.2
_BATCH = 256


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShotTest(Measurement):
    """Accuracies of linear classifiers on the frozen features of a training.

    Attributes:
        train_split: the split of the training images.
        shots: numbers of training images of each class.
        seeds: of the choices of training images.
    """

    kind: ClassVar[str] = "few_shot"
    title: ClassVar[str] = "few shots"

    train_split: str
    shots: tuple[int, ...]
    seeds: tuple[int, ...]

    def stand_in(self) -> dict:
        """A result with the keys of a real one."""
        return {self.key(shots, seed): 0.5 for shots in self.shots for seed in self.seeds}

    @staticmethod
    def key(shots, seed) -> str:
        """The name of an accuracy in the result."""
        return f"{shots} shots, seed {seed}"

    def readings(self, result, shots) -> tuple[Reading, ...]:
        """The accuracies with some shots, one for each seed."""
        keys = [self.key(shots, seed) for seed in self.seeds]
        return tuple(Reading(self.folder, key, result[key]) for key in keys)

    def measure(self, opened, test, strategy) -> dict:
        """Returns the accuracies by `key`."""
        train = open_source(self.data, self.train_split, None)
        sides = []
        for source in (train, test):
            data = evaluation_data(source, opened.preprocessing)
            sides.append(FeatureExtractor(opened.model.features, strategy, data).run())
        result, classes = {}, train.num_classes
        for shots in self.shots:
            strength = _L2_PER_EXAMPLE * shots * classes
            grid = few_shot_grid(*sides, classes, [shots], [strength], self.seeds)
            for seed, accuracy in zip(self.seeds, grid[0, 0].tolist(), strict=True):
                result[self.key(shots, seed)] = accuracy
        return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShotMean(FewShotTest):
    """The same, and their means over the choices of training images."""

    kind: ClassVar[str] = "few_shot_mean"

    def stand_in(self) -> dict:
        """A result with the keys of a real one."""
        return self._with_means(super().stand_in())

    @staticmethod
    def mean_key(shots) -> str:
        """The name of a mean in the result."""
        return f"{shots} shots"

    def measure(self, opened, test, strategy) -> dict:
        """Returns the accuracies by `key`, and their means by `mean_key`."""
        return self._with_means(super().measure(opened, test, strategy))

    def _with_means(self, result):
        means = {
            self.mean_key(shots): statistics.fmean(result[self.key(shots, x)] for x in self.seeds)
            for shots in self.shots
        }
        return result | means


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChangedImages(Measurement):
    """What a classifier says of test images that are shifted, shuffled or corrupted.

    Attributes:
        seed: of directions, permutations, noise and places.
    """

    kind: ClassVar[str] = "changed"
    title: ClassVar[str] = "changed images"

    seed: int = 0

    def stand_in(self) -> dict:
        """A result with the keys of a real one."""
        return dict.fromkeys(
            ("accuracy", *map(str, image_changes.SHIFTS + image_changes.OTHERS)), 0.5
        )

    def measure(self, opened, test, strategy) -> dict:
        """Returns the numbers by name.

        Returns:
            "accuracy" of the images as they are; by the name of each shift, the share of images
            with the same prediction as unshifted; by the name of each other change, the accuracy.
        """
        images, labels = _images(opened, test, strategy)
        predict = _predictor(opened.model, images)
        predicted = predict(images)
        result = {"accuracy": _share(predicted == labels)}
        for change in (*image_changes.SHIFTS, *image_changes.OTHERS):
            random = np.random.default_rng(self.seed)
            expected = predicted if change in image_changes.SHIFTS else labels
            changed = predict(change.apply(images, random))
            result[str(change)] = _share(changed == expected)
        return result


def _images(opened, test, strategy):
    """The images as the model reads them, float32 in [-1, 1], and their labels."""
    read = FeatureExtractor(_as_floats, strategy, evaluation_data(test, opened.preprocessing)).run()
    return read.values.reshape(-1, *opened.preprocessing.image_size, 3), read.labels


def _as_floats(images):
    """Flat float images in [-1, 1]."""
    if images.dtype == tf.uint8:
        images = tf.cast(images, tf.float32) / 127.5 - 1.0
    return tf.reshape(tf.cast(images, tf.float32), [tf.shape(images)[0], -1])


def _predictor(model, images):
    """A function from images like these to the most likely class of each, which is traced once."""

    @tf.function(input_signature=[tf.TensorSpec([None, *images.shape[1:]])], autograph=False)
    def predict(images):
        return tf.argmax(model(images, training=False), axis=-1)

    def predict_all(images):
        starts = range(0, len(images), _BATCH)
        return np.concatenate([predict(images[start : start + _BATCH]) for start in starts])

    return predict_all


def _share(equal):
    return float(np.mean(equal))
