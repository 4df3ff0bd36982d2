"""Pictures of a model during its training, and embeddings of images, for TensorBoard."""

import contextlib
import dataclasses

import numpy as np
import tensorflow as tf

from pipelines.errors import UserError, counted
from pipelines.reports import charts
from pipelines.reports.html_page import short
from pipelines.reports.tensorboard import VALIDATION
from vit_tf import analysis
from vit_tf.analysis import inspection
from vit_tf.images.decoding import decode_image

_IMAGES = 8  # with attention
_MOST_EMBEDDINGS = 1000
_MOST_LAYERS = 3  # of which the attention is drawn
_MOST_TILES = 16  # of position similarity, in a row
_SIDE, _THUMBNAIL, _GAP = 160, 32, 2  # pixels

_SIMILARITY = (
    "One tile for each patch: cosine similarity of its position embedding with all others, from "
    "-1 (violet) to 1 (yellow). In a trained model, near patches are similar; before training "
    "only a patch with itself."
)
_DISTANCE = (
    "Mean distance between the patches of queries and keys, weighted by attention: a point for "
    "each head, the mean of a layer (figure 7, right); dashed, equal attention to all tokens, as "
    "heads begin about with."
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
        on_tpu: whether the model is on TPU cores, which run compiled functions only.
    """

    def __init__(self, model, features, strategy, data, count, on_tpu=False):
        self._model, self._features, self._strategy, self._data = model, features, strategy, data
        self._count = min(count, _MOST_EMBEDDINGS, data.source.num_examples)
        # Tracing takes as long as ten calls, of which a run has few.
        self._compute = tf.function(self._on_replicas) if on_tpu else self._arrays
        self._images = None

    def show(self, board, step):
        """Writes the pictures and the embeddings.

        Args:
            board: `TensorBoard`.
            step: finished steps.

        Raises:
            UserError: if none of the images can be read.
        """
        if self._images is None:
            self._images, labels = self._read()
            board.embedded_images(self._thumbnails(), labels)
        arrays = {name: value.numpy() for name, value in self._compute(self._images).items()}
        board.embeddings(step, arrays["embeddings"])
        if "attention" in arrays:
            drawn, text = self._draw_attention(arrays["attention"], arrays["rollout"])
            board.images("attention", step, drawn, text, VALIDATION)
        if "positions" in arrays:
            drawn = self._draw_similarity(arrays["positions"])
            board.images("position similarity", step, drawn, _SIMILARITY, VALIDATION)
        if "distance" in arrays:
            distance = arrays["distance"]
            uniform = inspection.uniform_distance(
                self._model.grid, self._model.config.patch_pixels, self._model.num_prefix_tokens
            )
            drawn = charts.distances(distance, uniform)[None] / 127.5 - 1
            board.images("attention distance", step, drawn, _DISTANCE, VALIDATION)
            means = {
                f"attention distance/layer {layer:02}": float(heads.mean())
                for layer, heads in enumerate(distance, start=1)
            }
            board.scalars(VALIDATION, step, means)

    def _read(self):
        """The images as the model reads them, float32 `[n, h, w, 3]`, and names of their labels.

        Images that cannot be decoded are left out here; an evaluation reports them.
        """
        source = self._data.source
        prepare = dataclasses.replace(self._data.preprocessing, dtype="float32")
        # From all of the data, which may be sorted by class.
        stored = source.read(_spread(source.num_examples, self._count))
        images, labels = [], []
        for image, label in zip(stored.images, stored.labels, strict=True):
            with contextlib.suppress(tf.errors.OpError):
                images.append(prepare(decode_image(image)))
                labels.append(short(", ".join(source.labels[x] for x in np.atleast_1d(label))))
        if not images:
            raise UserError(
                f"None of {counted(self._count, 'image')} of {source} can be read. Is it the right "
                "data set?"
            )
        return tf.stack(images), labels

    def _on_replicas(self, images):
        """`_arrays` of the first replica: all compute the same."""
        found = self._strategy.run(self._arrays, args=(images,))
        local = self._strategy.experimental_local_results
        return {name: local(value)[0] for name, value in found.items()}

    def _arrays(self, images):
        """Embeddings `[n, F]`, and what the model has of attention, positions and distance.

        "attention" is the mean over the heads, float32 `[8, L, rows, columns]`, and "rollout" is
        `[8, rows, columns]`; "positions" the table; "distance" the mean attention distance in
        pixels, `[L, heads]`.
        """
        model = self._model
        found = {"embeddings": tf.cast(self._features(images), tf.float32)}
        table = model.position_table()
        if table is not None:
            found["positions"] = tf.convert_to_tensor(table)
        if model.config.grid is not None:
            shown = tf.gather(images, _spread(images.shape[0], _IMAGES))
            maps = analysis.attention_maps.attention_maps(model, shown)
            found["attention"] = tf.reduce_mean(maps, axis=2)
            found["rollout"] = analysis.attention_rollout(model, shown)
            found["distance"] = analysis.attention_distance(model, shown)
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

    def _draw_attention(self, maps, rollout):
        """The images, each beside its attention in some layers and its rollout; a description."""
        shown = self._pixels(tf.gather(self._images, _spread(len(self._images), _IMAGES)))
        height, width = shown.shape[1:3]
        times = max(1, _SIDE // max(height, width))
        method = "nearest" if times > 1 else "area"
        scale = times if times > 1 else min(1.0, _SIDE / max(height, width))
        size = [max(1, round(side * scale)) for side in (height, width)]
        layers = _spread(maps.shape[1], _MOST_LAYERS)
        maps = np.concatenate([maps[:, layers], rollout[:, None]], axis=1)
        colored = charts.colors(inspection.to_unit_range(maps, axis=(2, 3)))[..., :3]
        columns = [tf.image.resize(shown, size, method)] + [
            tf.image.resize(colored[:, column].astype(np.float32), size, "nearest")
            for column in range(maps.shape[1])
        ]
        gap = [[0, 0], [0, 0], [0, _GAP], [0, 0]]
        wide = tf.concat([tf.pad(column, gap, constant_values=1.0) for column in columns], axis=2)
        names = ", ".join(str(layer + 1) for layer in layers)
        text = (
            "Image, then how much attention each patch gets: from the class token, or without one "
            f"from all patches, mean over the heads, in layers {names}; at the right, traced back "
            "through all layers (attention rollout, figure 6). Each map has its own scale: violet "
            "is its minimum, yellow its maximum."
        )
        return wide[:, :, :-_GAP] * 2 - 1, text

    def _draw_similarity(self, table):
        """One tile for each patch, up to 16 in a row: its similarity with all patches."""
        model = self._model
        maps = inspection.position_similarity(table, model.grid, model.num_prefix_tokens)
        rows, columns = model.grid
        maps = maps[_spread(rows, _MOST_TILES)][:, _spread(columns, _MOST_TILES)]
        colored = charts.colors((maps + 1) / 2)[..., :3]
        times = max(1, 2 * _SIDE // (len(maps) * rows))
        colored = colored.repeat(times, axis=2).repeat(times, axis=3)
        gap = [(0, 0)] * 2 + [(0, _GAP)] * 2 + [(0, 0)]
        padded = np.pad(colored, gap, constant_values=1)
        down, across, height, width, _ = padded.shape
        picture = padded.transpose(0, 2, 1, 3, 4).reshape(1, down * height, across * width, 3)
        return tf.constant(picture[:, :-_GAP, :-_GAP] * 2 - 1, tf.float32)


def _spread(count, most):
    """At most `most` indices below `count`, evenly from the first to the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))
