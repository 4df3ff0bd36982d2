"""Pictures of images that masked patch prediction reconstructs, in TensorBoard and as a page."""

import dataclasses
import functools

import tensorflow as tf

from pipelines.data import pipeline
from pipelines.data.bad_images import INPUT_ERRORS, explain_input_error
from pipelines.data.order import EvalBatches
from pipelines.reports.html_page import write_page
from pipelines.reports.tensorboard import VALIDATION

_IMAGES = 8
_TAG = "masked patches"
_GAP = 2  # Pixels between two pictures in TensorBoard.


class Reconstructions:
    """The first images of a data set, corrupted as in an evaluation, and the model's predictions.

    Args:
        task: `MaskedPatches`.
        model: from `task.create_model`.
        strategy: the `tf.distribute.Strategy` of the model.
        data: `EvaluationData` or `TrainData`: its source and how images are prepared.
    """

    def __init__(self, task, model, strategy, data):
        self._task, self._strategy, self._data = task, strategy, data
        draw = functools.partial(task.pictures, model)
        # Every replica draws the same pictures.
        self._draw = tf.function(lambda batch: strategy.run(draw, args=(batch,)), autograph=False)
        self._batch = None

    def draw(self) -> dict:
        """`MaskedPatches.pictures` of the images, as NumPy arrays.

        Raises:
            UserError: if an image cannot be read.
        """
        if self._batch is None:
            self._batch = self._read()
        local = self._strategy.experimental_local_results
        return {name: local(value)[0].numpy() for name, value in self._draw(self._batch).items()}

    def _read(self):
        data, source = self._data, self._data.source
        size = min(_IMAGES, source.num_examples)
        dataset = pipeline.eval_dataset(
            source,
            batch_size=size,
            preprocessing=dataclasses.replace(data.preprocessing, dtype="float32"),
            skips_bad_images=data.bad_images is not None,
            max_batches=1,
        )
        try:
            return next(iter(dataset))
        except INPUT_ERRORS as error:
            skips = data.bad_images is not None
            raise explain_input_error(error, EvalBatches(source, size, 1), [0], skips) from None

    def show(self, board, step):
        """Writes one picture for each image to TensorBoard: all columns side by side.

        Args:
            board: `TensorBoard`.
            step: finished steps.
        """
        drawn = self.draw()
        columns = [tf.constant(value) for value in drawn.values()]
        gap = [[0, 0], [0, 0], [0, _GAP], [0, 0]]
        wide = tf.concat([tf.pad(x, gap, constant_values=1.0) for x in columns], axis=2)
        text = f"From left to right: {', '.join(drawn)}."
        board.images(_TAG, step, wide[:, :, :-_GAP] * 2 - 1, text, VALIDATION)

    def write_page(self, path, run):
        """Writes the pictures as one HTML file.

        Args:
            path: the file.
            run: the training in a line.
        """
        rows = self.draw().items()
        explanation = self._task.explanation()
        write_page(path, "reconstructions.html", lead=run, explanation=explanation, rows=rows)
