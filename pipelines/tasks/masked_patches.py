"""Masked patch prediction, the paper's self-supervision (appendix B.1.2; docs/paper.md G)."""

import dataclasses
import math

import tensorflow as tf

from pipelines.tasks.metrics import weighted_sums
from pipelines.tasks.patch_targets import (
    CELLS,
    COLORS,
    cell_means,
    class_colors,
    color_classes,
    patches_of,
)
from vit_tf import Preprocessing
from vit_tf.config import ModelConfig
from vit_tf.layers import RandomContext, corrupted_counts, draw_corruption, draw_corruption_by_id
from vit_tf.models import MaskedPatchModel

# The range of a pixel's value in [-1, 1].
_RANGE = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedPatches:
    """Predicts the content of corrupted patches; the labels of the images are not read.

    Attributes:
        target: "color": the mean color of a patch in 3 bits per channel, one of 512 classes;
            "downsample": the same for each of 4 x 4 cells of a patch; "pixels": all pixels, in
            [-1, 1].
        fraction: corrupted part of the patches.
        seed: of the corruption in evaluations; in training the `RandomContext` has the seed.
        config: configuration of the encoder.
        preprocessing: tells the mean and the standard deviation of the input.
    """

    reads_labels = leaves_out = False

    target: str
    fraction: float
    seed: int
    config: ModelConfig
    preprocessing: Preprocessing

    @property
    def outputs(self) -> int:
        """Numbers that are predicted for each patch."""
        if self.target == "pixels":
            return 3 * self.config.patch_pixels**2
        return COLORS * (CELLS**2 if self.target == "downsample" else 1)

    def create_model(self, dtype):
        """Builds the encoder, the mask embedding and the head of this task."""
        return MaskedPatchModel(self.config, self.outputs, dtype=dtype)

    def encoder(self, model):
        """The part of the model whose weights a run writes."""
        return model.encoder

    def features(self, model):
        """The function from images to the features of few-shot evaluations: float32 `[b, D]`.

        They are the mean of the final patch tokens: no loss trains the class token directly.
        """

        def mean_of_patches(images):
            tokens, _ = model.encoder.encode(model.encoder.embed(images))
            patches = tokens[:, self.config.num_prefix_tokens :]
            return tf.reduce_mean(tf.cast(patches, tf.float32), axis=1)

        return mean_of_patches

    def zero_kernel(self, model):
        """The kernel that starts with zeros, so that nothing below it learns before it does."""
        return model.prediction.kernel

    def notes(self) -> list[str]:
        """Lines about the task for the start of a run."""
        width, outputs = self.config.hidden_size, self.outputs
        own = width + (width + 1) * outputs  # Mask embedding, kernel and bias.
        size = 4 * self._counts()[0] * outputs
        return [
            self.explanation(),
            f"prediction: {own:,} more parameters, {size / 1e6:,.2f} MB of outputs per image",
        ]

    def explanation(self) -> str:
        """The corrupted parts of an image and the predictions for them."""
        count, replaced, unchanged = self._counts()
        what = {
            "color": "the mean color, one of 512",
            "downsample": "the colors of 4 x 4 cells, each one of 512",
            "pixels": "all pixels",
        }[self.target]
        return (
            f"{count} of {self._patches_per_image()} patches are corrupted: "
            f"{count - replaced - unchanged} masked, {replaced} replaced by another patch, "
            f"{unchanged} left unchanged. Predicted of each: {what}."
        )

    def losses(self, model, batch):
        """The training loss of each image, float32 `[b]`."""
        context = RandomContext.current()
        if context is None:
            raise ValueError("Losses of masked patches are drawn in a RandomContext. Enter one.")
        corruption = draw_corruption(
            self._patches_per_image(),
            self.fraction,
            context.seed,
            context.step,
            context.slots,
        )
        images, places = batch["image"], corruption.places
        predictions = model(images, corruption.source, places, training=True)
        return self.loss(predictions, images, places)

    def measure(self, model, batch):
        """Sums over a batch of an evaluation, for `metrics.metric_means`.

        Returns:
            Dict of float32 scalars: "examples", "loss", and "patch_accuracy" (part of the corrupted
            patches, or of their cells, whose color is predicted) or "psnr" (dB, mean of the
            images); and an empty list.
        """
        images, weights = batch["image"], batch["weight"]
        corruption = self._evaluated_corruption(batch)
        places = corruption.places
        predictions = model(images, corruption.source, places, training=False)
        losses = self.loss(predictions, images, places)
        if self.target == "pixels":
            # The loss is the mean squared error. Without the constant, a perfect image has no PSNR.
            quality = -10 / tf.math.log(10.0) * tf.math.log(losses / _RANGE**2 + 1e-12)
            values = {"psnr": quality}
        else:
            right = _at(self._targets(images), places) == self._classes(predictions)
            right = tf.cast(right, tf.float32)
            values = {"patch_accuracy": tf.reduce_mean(right, axis=(1, 2))}
        return weighted_sums({"loss": losses, **values}, weights), []

    def loss(self, predictions, images, places):
        """Cross-entropy or mean squared error of each image over its corrupted patches.

        Args:
            predictions: float32 `[b, n, outputs]`, of these patches only.
            images: `[b, H, W, 3]`, inputs of the model, float32 or uint8.
            places: int32 `[b, n]`, their indices.

        Returns:
            float32 `[b]`.
        """
        targets = _at(self._targets(images), places)
        if self.target == "pixels":
            each = tf.math.squared_difference(predictions, targets)
        else:
            logits = tf.reshape(predictions, [*targets.shape, COLORS])
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, logits)
        return tf.reduce_mean(each, axis=(1, 2))

    def pictures(self, model, batch):
        """The effect of the task on some images, for reports.

        Args:
            model: from `create_model`.
            batch: as in an evaluation.

        Returns:
            Dict of float32 `[b, H', W', 3]` in [0, 1], of whole patches: "image"; "corrupted", with
            masked patches in gray and replaced patches as the patches that replace them; "target",
            what is to be predicted of every patch; "prediction", for every patch.
        """
        images = batch["image"]
        corruption = self._evaluated_corruption(batch)
        predictions = model(images, corruption.source, training=False)
        patches = self._patch_values(images) / 255
        taken = tf.gather(patches, tf.maximum(corruption.source, 0), axis=1, batch_dims=1)
        masked = (corruption.source < 0)[:, :, None, None, None]
        shown = {
            "image": patches,
            "corrupted": tf.where(masked, 0.5, taken),
            "target": self._drawn(self._targets(images)),
            "prediction": self._drawn(
                predictions if self.target == "pixels" else self._classes(predictions)
            ),
        }
        return {name: self._joined(tf.clip_by_value(x, 0, 1)) for name, x in shown.items()}

    def _patches_per_image(self):
        return math.prod(self.config.grid)

    def _counts(self):
        return corrupted_counts(self._patches_per_image(), self.fraction)

    def _evaluated_corruption(self, batch):
        """The same for an image in every evaluation."""
        return draw_corruption_by_id(
            self._patches_per_image(), self.fraction, self.seed, batch["id"]
        )

    def _patch_values(self, images):
        """The patches of inputs of the model as values from 0 to 255, `[b, N, P, P, 3]`."""
        whole_range = images.dtype == tf.uint8
        images = tf.cast(images, tf.float32)
        patches = patches_of(images, self.config.grid, self.config.patch_pixels)
        if whole_range:
            return patches
        return (patches * self.preprocessing.std + self.preprocessing.mean) * 255

    def _targets(self, images):
        """int32 classes `[b, N, 1 or CELLS**2]`, or float32 pixels in [-1, 1] `[b, N, outputs]`."""
        values = self._patch_values(images)
        if self.target == "color":
            return color_classes(tf.reduce_mean(values, axis=(2, 3)))[..., None]
        if self.target == "downsample":
            return color_classes(cell_means(values))
        count, outputs = values.shape[1], self.outputs
        return tf.reshape(values / 127.5 - 1, [-1, count, outputs])

    def _classes(self, predictions):
        """The predicted classes, int32 `[b, N, 1 or CELLS**2]`."""
        logits = tf.reshape(predictions, [-1, predictions.shape[1], self.outputs // COLORS, COLORS])
        return tf.argmax(logits, axis=-1, output_type=tf.int32)

    def _drawn(self, values):
        """Targets or predicted targets as patches, `[b, N, P, P, 3]` in [0, 1]."""
        side, count = self.config.patch_pixels, values.shape[1]
        if self.target == "pixels":
            return (tf.reshape(values, [-1, count, side, side, 3]) + 1) / 2
        colors = tf.gather(tf.constant(class_colors() / 255), values)
        cells = CELLS if self.target == "downsample" else 1
        place = tf.range(side) * cells // side
        colors = tf.reshape(colors, [-1, count, cells, cells, 3])
        return tf.gather(tf.gather(colors, place, axis=2), place, axis=3)

    def _joined(self, patches):
        """Patches `[b, N, P, P, 3]` as images."""
        (rows, columns), side = self.config.grid, self.config.patch_pixels
        placed = tf.reshape(patches, [-1, rows, columns, side, side, 3])
        placed = tf.transpose(placed, [0, 1, 3, 2, 4, 5])
        return tf.reshape(placed, [-1, rows * side, columns * side, 3])


def _at(values, places):
    """The values of some patches: `[b, N, ...]` and `[b, n]` to `[b, n, ...]`."""
    return tf.gather(values, places, axis=1, batch_dims=1)
