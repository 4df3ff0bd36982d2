"""Pictures of a model during its training, and embeddings of images, for TensorBoard."""

import dataclasses

import numpy as np
import tensorflow as tf

from pipelines.data import pipeline
from pipelines.data.bad_images import INPUT_ERRORS, explain_input_error
from pipelines.data.order import EvalBatches
from pipelines.errors import UserError
from pipelines.reports import charts
from pipelines.reports.html_page import short
from pipelines.reports.tensorboard import VALIDATION
from vit_tf.analysis import attention_maps, inspection

_IMAGES = 8  # with attention
_MOST_EMBEDDINGS = 1000
_MOST_LAYERS = 4  # of which the attention is drawn
_MOST_TILES = 16  # of position similarity, in a row
_SIDE, _THUMBNAIL, _GAP = 160, 32, 2  # pixels

_SIMILARITY = (
    "One tile for each patch: cosine similarity of its position embedding with all others, from "
    "-1 (violet) to 1 (yellow). In a trained model, near patches are similar; before training "
    "only a patch with itself."
)
_DISTANCE = (
    "Mean distance between the patches of queries and keys, weighted by attention: one point for "
    "each head, and the mean of a layer (figure 7, right)."
)


class ModelPictures:
    """Attention, position similarity, attention distance and embeddings, on the same images.

    The images are spread evenly over the data set. A model without attention, such as BiT, has
    embeddings only; one without a position table, or with axial attention, lacks what it does not
    have.

    Args:
        model: of any family, built in `strategy.scope()`.
        features: maps images to embeddings `[b, F]`, such as `model.features`.
        strategy: the `tf.distribute.Strategy` of the model.
        data: `EvaluationData` or `TrainData`: its source and how images are prepared.
        count: number of images with embeddings; at most 1,000 are taken.
    """

    def __init__(self, model, features, strategy, data, count):
        self._model, self._features, self._strategy, self._data = model, features, strategy, data
        self._count = min(count, _MOST_EMBEDDINGS, data.source.num_examples)
        # Every replica computes the same.
        self._compute = tf.function(lambda images: strategy.run(self._arrays, args=(images,)))
        self._images = None

    def show(self, board, step):
        """Writes the pictures and the embeddings.

        Args:
            board: `TensorBoard`.
            step: finished steps.

        Raises:
            UserError: if no image can be read, or one cannot be read and is not left out.
        """
        if self._images is None:
            self._images, labels = self._read()
            board.embedded_images(self._thumbnails(), labels)
        local = self._strategy.experimental_local_results
        arrays = {
            name: local(value)[0].numpy() for name, value in self._compute(self._images).items()
        }
        board.embeddings(step, arrays["embeddings"])
        if "attention" in arrays:
            drawn, text = self._draw_attention(arrays["attention"])
            board.images("attention", step, drawn, text, VALIDATION)
        if "positions" in arrays:
            drawn = self._draw_similarity(arrays["positions"])
            board.images("position similarity", step, drawn, _SIMILARITY, VALIDATION)
        if "distance" in arrays:
            distance = arrays["distance"]
            drawn = charts.distances(distance)[None] / 127.5 - 1
            board.images("attention distance", step, drawn, _DISTANCE, VALIDATION)
            means = {
                f"attention distance/layer {layer:02}": float(heads.mean())
                for layer, heads in enumerate(distance, start=1)
            }
            board.scalars(VALIDATION, step, means)

    def _read(self):
        """The images as the model reads them, float32 `[n, h, w, 3]`, and names of their labels."""
        data, source = self._data, self._data.source
        skips = data.bad_images is not None
        # Batches of one image: so they come from all of the data, also where it is sorted by class.
        dataset = pipeline.eval_dataset(
            source,
            batch_size=1,
            preprocessing=dataclasses.replace(data.preprocessing, dtype="float32"),
            skips_bad_images=skips,
            max_batches=self._count,
        )
        try:
            rows = [row for row in dataset if row["weight"][0] > 0]
        except INPUT_ERRORS as error:
            batches = EvalBatches(source, 1, self._count)
            raise explain_input_error(error, batches, range(len(batches)), skips) from None
        if not rows:
            raise UserError(
                f"None of the images of {source} can be read. Is it the right data set?"
            )
        labels = [_label_name(row["label"][0].numpy(), source.labels) for row in rows]
        return tf.concat([row["image"] for row in rows], axis=0), labels

    def _arrays(self, images):
        """Embeddings `[n, F]`, and what the model has of attention, positions and distance.

        "attention" is the mean over the heads, float32 `[8, L, rows, columns]`; "positions" the
        table; "distance" the mean attention distance in pixels, `[L, heads]`.
        """
        model = self._model
        found = {"embeddings": tf.cast(self._features(images), tf.float32)}
        if model.config.grid is None:
            return found
        shown = tf.gather(images, _spread(len(images), _IMAGES))
        found["attention"] = tf.reduce_mean(attention_maps.attention_maps(model, shown), axis=2)
        if model.position_embedding.table is not None:
            found["positions"] = tf.convert_to_tensor(model.position_embedding.table)
        if not model.config.axial:
            _, taps = model.encode(model.embed(shown), taps=("distance",))
            layers = tf.stack([tf.reduce_mean(block["distance"], axis=0) for block in taps])
            found["distance"] = tf.cast(layers, tf.float32) * model.config.patch_pixels
        return found

    def _pixels(self, images):
        """Images as they were before normalization, in [0, 1]."""
        preprocessing = self._data.preprocessing
        return tf.clip_by_value(images * preprocessing.std + preprocessing.mean, 0, 1)

    def _thumbnails(self):
        sides = self._images.shape[1:3]
        scale = min(1.0, _THUMBNAIL / max(sides))
        size = [max(1, round(side * scale)) for side in sides]
        return tf.image.resize(self._pixels(self._images), size, method="area").numpy()

    def _draw_attention(self, maps):
        """The images, each beside its attention in some layers; and a description."""
        shown = self._pixels(tf.gather(self._images, _spread(len(self._images), _IMAGES)))
        height, width = shown.shape[1:3]
        times = max(1, _SIDE // max(height, width))
        method = "nearest" if times > 1 else "area"
        scale = times if times > 1 else min(1.0, _SIDE / max(height, width))
        size = [max(1, round(side * scale)) for side in (height, width)]
        layers = _spread(maps.shape[1], _MOST_LAYERS)
        colored = charts.colors(inspection.to_unit_range(maps, axis=(2, 3)))[..., :3]
        columns = [tf.image.resize(shown, size, method)] + [
            tf.image.resize(colored[:, layer].astype(np.float32), size, "nearest")
            for layer in layers
        ]
        gap = [[0, 0], [0, 0], [0, _GAP], [0, 0]]
        wide = tf.concat([tf.pad(column, gap, constant_values=1.0) for column in columns], axis=2)
        names = ", ".join(str(layer + 1) for layer in layers)
        text = (
            "Image, then how much attention each patch gets: from the class token, or without one "
            f"from all patches, mean over the heads, in layers {names}. Each map has its own "
            "scale: violet is its minimum, yellow its maximum."
        )
        return wide[:, :, :-_GAP] * 2 - 1, text

    def _draw_similarity(self, table):
        """One tile for each patch, up to 16 in a row: its similarity with all patches."""
        model = self._model
        maps = inspection.position_similarity(table, model.grid, model.num_prefix_tokens)
        rows, columns = model.grid
        maps = maps[_spread(rows, _MOST_TILES)][:, _spread(columns, _MOST_TILES)]
        colored = charts.colors((maps + 1) / 2)[..., :3]
        padded = np.pad(colored, [(0, 0)] * 2 + [(0, 1)] * 2 + [(0, 0)], constant_values=1)
        across, down, height, width, _ = padded.shape
        picture = padded.transpose(0, 2, 1, 3, 4).reshape(across * height, down * width, 3)
        times = max(1, 2 * _SIDE // max(picture.shape))
        picture = picture[:-1, :-1].repeat(times, axis=0).repeat(times, axis=1)
        return tf.constant(picture[None] * 2 - 1, tf.float32)


def _spread(count, most):
    """At most `most` indices below `count`, evenly from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _label_name(label, names):
    """The name of a label, or the names of several."""
    if label.ndim == 0:
        return short(names[label])
    return short(", ".join(names[one] for one in np.flatnonzero(label)))
