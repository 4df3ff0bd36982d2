"""Pictures of a model during its training, and embeddings of images, for TensorBoard."""

import contextlib
import dataclasses

import numpy as np
import tensorflow as tf

from pipelines.data.order import spread
from pipelines.errors import UserError, counted
from pipelines.reports import charts, pictures
from pipelines.reports.html_page import short
from pipelines.reports.tensorboard import VALIDATION
from vit_tf import analysis
from vit_tf.analysis import inspection

_IMAGES = 8  # with attention
_MOST_EMBEDDINGS, _AT_ONCE = 512, 32
_MOST_LAYERS = 3  # whose attention is drawn
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

    The images are spread evenly over the data set, and stay in memory as uint8. A model without
    attention maps, such as BiT, has embeddings only, and one without a position table no
    similarity.

    Args:
        model: of any family, built in `strategy.scope()`.
        features: maps images to embeddings `[b, F]`, such as `model.features`.
        strategy: the `tf.distribute.Strategy` of the model.
        data: `EvaluationData` or `TrainData`: its source and how images are prepared.
        count: number of images with embeddings; at most 512 are taken.
        on_tpu: whether the model is on TPU cores, which run compiled functions only.
    """

    def __init__(self, model, features, strategy, data, count, on_tpu=False):
        self._model, self._features, self._strategy, self._data = model, features, strategy, data
        self._count = min(count, _MOST_EMBEDDINGS, data.source.num_examples)
        # Tracing takes as long as ten calls, and a run has few calls.
        wrap = self._compiled if on_tpu else lambda function: function
        self._embed, self._explain = wrap(self._embedded), wrap(self._explained)
        self._pixels = None

    def show(self, board, step):
        """Writes the pictures and the embeddings.

        Args:
            board: `TensorBoard`.
            step: finished steps.

        Raises:
            UserError: if none of the images can be read.
        """
        if self._pixels is None:
            self._pixels, labels, thumbnails = self._read()
            board.embedded_images(thumbnails, labels)
        parts = range(0, len(self._pixels), _AT_ONCE)
        values = [self._embed(self._inputs(slice(i, i + _AT_ONCE))).numpy() for i in parts]
        board.embeddings(step, np.concatenate(values))
        eight = spread(len(self._pixels), _IMAGES)
        found = self._explain(self._inputs(eight))
        arrays = {name: value.numpy() for name, value in found.items()}
        for tag, (drawn, text) in self._drawn(eight, arrays).items():
            board.images(tag, step, drawn / 127.5 - 1, text, VALIDATION)
        means = {
            f"attention distance/layer {layer:02}": float(heads.mean())
            for layer, heads in enumerate(arrays.get("distance", ()), start=1)
        }
        board.scalars(VALIDATION, step, means)

    def _drawn(self, eight, arrays):
        """Tag -> the pictures of `_explained` arrays, uint8 `[n, h, w, 3]`, and what they show."""
        found, model = {}, self._model
        if "attention" in arrays:
            found["attention"] = _draw_attention(
                self._pixels[eight], arrays["attention"], arrays["rollout"]
            )
        if "positions" in arrays:
            drawn = self._draw_similarity(arrays["positions"])
            found["position similarity"] = drawn[None], _SIMILARITY
        if "distance" in arrays:
            uniform = inspection.uniform_distance(
                model.grid, model.config.patch_pixels, model.num_prefix_tokens
            )
            values = {"": arrays["distance"]}
            chart = charts.heads_chart(values, "distance in pixels", uniform, png=True)
            found["attention distance"] = tf.io.decode_png(chart).numpy()[None], _DISTANCE
        return found

    def _read(self):
        """The images before normalization, uint8 `[n, h, w, 3]`, their labels and thumbnails.

        Images that cannot be decoded are left out here; an evaluation reports them.
        """
        source, prepare = self._data.source, self._data.preprocessing
        # From all of the data, which may be sorted by class.
        stored = source.read(spread(source.num_examples, self._count))
        found = []
        for image, label in zip(stored.images, stored.labels, strict=True):
            with contextlib.suppress(tf.errors.OpError):
                pixels = prepare.seen(prepare.decode(image))
                name = short(", ".join(source.labels[one] for one in np.atleast_1d(label)))
                found.append((pixels.numpy(), name, pictures.shrunk(pixels, _THUMBNAIL)))
        if not found:
            raise UserError(
                f"None of {counted(self._count, 'image')} of {source} can be read. Is it the right "
                "data set?"
            )
        pixels, labels, thumbnails = zip(*found, strict=True)
        return np.stack(pixels), labels, np.stack(thumbnails)

    def _inputs(self, rows):
        """Some images as the model reads them, float32 `[b, h, w, 3]`."""
        prepare = dataclasses.replace(self._data.preprocessing, dtype="float32")
        return prepare.normalized(self._pixels[rows])

    def _compiled(self, function):
        """A function on the replicas, which all compute the same, that returns the first result."""

        @tf.function(autograph=False)
        def first(images):
            results = self._strategy.run(function, args=(images,))
            local = self._strategy.experimental_local_results
            return tf.nest.map_structure(lambda result: local(result)[0], results)

        return first

    def _embedded(self, images):
        return tf.cast(self._features(images), tf.float32)

    def _explained(self, images):
        """What the model has of attention, positions and distance.

        "attention" is the mean over the heads, float32 `[b, L, rows, columns]`, and "rollout" is
        `[b, rows, columns]`; "positions" the table; "distance" the mean attention distance in
        pixels, `[L, heads]`.
        """
        model, found = self._model, {}
        table = model.position_table()
        if table is not None:
            found["positions"] = tf.convert_to_tensor(table)
        if model.config.grid is not None:
            maps = analysis.attention_maps.attention_maps(model, images)
            found["attention"] = tf.reduce_mean(maps, axis=2)
            found["rollout"] = analysis.attention_rollout(model, images)
            found["distance"] = analysis.attention_distance(model, images)
        return found

    def _draw_similarity(self, table):
        """One tile for each patch, up to 16 in a row: its similarity with all patches."""
        model = self._model
        maps = inspection.position_similarity(table, model.grid, model.num_prefix_tokens)
        rows, columns = (spread(side, _MOST_TILES) for side in model.grid)
        return pictures.similarity(maps[rows][:, columns])


def _draw_attention(pixels, maps, rollout):
    """Images, each beside its attention in some layers and its rollout; and a description."""
    layers = spread(maps.shape[1], _MOST_LAYERS)
    colored = pictures.heats(np.concatenate([maps[:, layers], rollout[:, None]], axis=1))
    drawn = []
    for image, row in zip(pixels, colored, strict=True):
        image = pictures.shrunk(pictures.enlarged(image, _SIDE), _SIDE)
        stretched = tf.image.resize(row, image.shape[:2], "nearest").numpy()
        drawn.append(pictures.tiles(np.stack([image, *stretched]), 1 + len(row), _GAP))
    names = ", ".join(str(layer + 1) for layer in layers)
    text = (
        "Image, then how much attention each patch gets: from the class token, or without one "
        f"from all patches, mean over the heads, in layers {names}; at the right, traced back "
        "through all layers (attention rollout, figure 6). Each map has its own scale: violet "
        "is its minimum, yellow its maximum."
    )
    return np.stack(drawn), text
