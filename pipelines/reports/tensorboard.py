"""The files of a run for TensorBoard: curves, images, histograms, embeddings, configuration."""

import contextlib
import json
import math
import os
import time

import numpy as np
import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins import projector
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.plugins.image.metadata import create_summary_metadata
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from vit_tf.files.atomic_file import write_atomically

TRAIN, VALIDATION = "train", "validation"
# Files of the projector.
_EMBEDDINGS, _LABELS, _SPRITE = "embeddings.tsv", "embedded_labels.tsv", "embedded_images.png"

_DESCRIPTIONS = {
    "loss": "Mean loss per image: of the training steps since the last point, or of an evaluation.",
    "learning_rate": "Learning rate of the last step.",
    "gradient_norm": "Global norm of the gradient before clipping, of the last step.",
    "images_per_second": "Training images per second over all devices, without evaluations.",
    "data_wait": "Fraction of the time in which training waited for images.",
    "skipped": "Training steps since the last point that changed no weights.",
    "loss_scale": "Factor of the loss in the float16 backward pass.",
    "accuracy": "Fraction of the images whose label has the highest score.",
    "top_5_accuracy": "Fraction of the images whose label is among the five highest scores.",
    "precision_at_1": "Fraction of the images whose highest score belongs to one of their labels.",
    "mean_average_precision": "Mean over the classes of the average precision.",
    "patch_accuracy": "Fraction of the corrupted patches, or of their cells, whose color is found.",
    "psnr": "Peak signal-to-noise ratio of the predicted pixels in dB, mean of the images.",
    "examples": "Images of the evaluation.",
}


class TensorBoard:
    """The event files of a run.

    The folders `train` and `validation` use the same tags, so TensorBoard draws both in one chart.
    The folder above them holds the configuration, as text and as hyperparameters. For the HParams
    page a run is that folder, and its metrics come from the folders below.

    Every start of a run writes new files, which begin with a session start: TensorBoard then drops
    what earlier files have of later steps, so the curves of a resumed run do not double back.

    Call `restart` before anything else.

    Args:
        directory: folder of the event files.
    """

    def __init__(self, directory):
        # The projector reads files, not events.
        self._projector = os.path.join(directory, VALIDATION)
        self._writers = {
            name: EventFileWriter(os.path.join(directory, name)) for name in ("", TRAIN, VALIDATION)
        }

    def restart(self, step):
        """Begins at `step`: TensorBoard drops the points of later steps."""
        for writer in self._writers.values():
            # TensorBoard drops the points from the step of this event on.
            log = SessionLog(status=SessionLog.START)
            writer.add_event(Event(wall_time=time.time(), step=step + 1, session_log=log))
            writer.flush()

    def close(self):
        """Writes the remaining events and closes the files."""
        with contextlib.ExitStack() as stack:  # Closes all of them, also if one fails.
            for writer in self._writers.values():
                stack.callback(writer.close)

    def configuration(self, values):
        """Writes the configuration of the run.

        Args:
            values: `Experiment.to_dict()`.
        """
        text = f"```json\n{json.dumps(values, indent=2)}\n```"
        self._write("", 0, text_pb("configuration", text, "The resolved config.json of the run."))
        self._write("", 0, hparams_pb(_flat(values)))
        self._writers[""].flush()

    def scalars(self, folder, step, values):
        """Writes one point for each value.

        Args:
            folder: `TRAIN` or `VALIDATION`.
            step: finished steps.
            values: number by tag; a value of None is left out.
        """
        for tag, value in values.items():
            if value is not None:
                self._write(folder, step, scalar_pb(tag, value, _description(tag)))
        self._writers[folder].flush()

    def images(self, tag, step, images, description, folder=TRAIN):
        """Writes at most 16 images.

        Args:
            tag: name in TensorBoard.
            step: finished steps.
            images: float `[n, h, w, 3]` in [-1, 1].
            description: their content.
            folder: `TRAIN` or `VALIDATION`: where they are from.
        """
        pixels = tf.image.convert_image_dtype((images[:16] + 1) / 2, tf.uint8, saturate=True)
        height, width = pixels.shape[1:3]
        encoded = [tf.io.encode_png(image).numpy() for image in pixels]
        metadata = create_summary_metadata(display_name=None, description=description)
        tensor = make_tensor_proto([str(width).encode(), str(height).encode(), *encoded])
        value = Summary.Value(tag=tag, metadata=metadata, tensor=tensor)
        self._write(folder, step, Summary(value=[value]))
        self._writers[folder].flush()

    def embedded_images(self, thumbnails, labels):
        """Writes what the projector shows of each image.

        Args:
            thumbnails: uint8 `[n, h, w, 3]`.
            labels: names, one line each.
        """
        count, height, width, _ = thumbnails.shape
        side = math.ceil(math.sqrt(count))
        # A square of pictures, row by row, as the projector expects.
        sprite = np.full([side * side, height, width, 3], 255, np.uint8)
        sprite[:count] = thumbnails
        sprite = sprite.reshape(side, side, height, width, 3).transpose(0, 2, 1, 3, 4)
        png = tf.io.encode_png(sprite.reshape(side * height, side * width, 3)).numpy()
        self._write_file(_SPRITE, png)
        self._write_file(_LABELS, "".join(f"{label}\n" for label in labels).encode())
        self._thumbnail_size = width, height

    def embeddings(self, step, values):
        """Writes the embeddings of the images for the projector, in place of earlier ones.

        Args:
            step: finished steps.
            values: float `[n, F]`, of the images of `embedded_images`.
        """
        lines = ("\t".join(f"{value:.6g}" for value in row) for row in values.tolist())
        self._write_file(_EMBEDDINGS, "\n".join(lines).encode())
        config = projector.ProjectorConfig()
        shown = config.embeddings.add(
            tensor_name=f"embeddings of step {step}",
            tensor_path=_EMBEDDINGS,
            metadata_path=_LABELS,
        )
        shown.sprite.image_path = _SPRITE
        shown.sprite.single_image_dim.extend(self._thumbnail_size)
        projector.visualize_embeddings(self._projector, config)

    def _write_file(self, name, data):
        write_atomically(os.path.join(self._projector, name), lambda file: file.write(data))

    def histograms(self, step, weights):
        """Writes a histogram of each weight.

        Args:
            step: finished steps.
            weights: Keras variables.
        """
        for weight in weights:
            path = weight.path.partition("/")[2] or weight.path
            values = np.asarray(weight.value.numpy(), np.float32)
            self._write(TRAIN, step, histogram_pb(f"weights/{path}", values))
        self._writers[TRAIN].flush()

    def _write(self, folder, step, summary):
        event = Event(wall_time=time.time(), step=step, summary=summary)
        self._writers[folder].add_event(event)


class NoBoard:
    """Stands for the `TensorBoard` of a process that writes nothing."""

    def __getattr__(self, name):
        return lambda *arguments, **keywords: None


def _description(tag):
    if tag.startswith("attention distance/"):
        return "Mean attention distance of the heads of this layer, in pixels."
    if tag.startswith("few_shot_"):
        return "Accuracy of least squares on the features, from this many images of each class."
    return _DESCRIPTIONS.get(tag)


def _flat(values, prefix=""):
    """The leaves of nested dictionaries by dotted path, in types that HParams has."""
    found = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, str):
            # Names of files may have bytes that are not UTF-8.
            found[prefix + name] = value.encode(errors="backslashreplace").decode()
        elif isinstance(value, bool | int | float):
            found[prefix + name] = value
        else:
            found[prefix + name] = "none" if value is None else ",".join(map(str, value))
    return found
