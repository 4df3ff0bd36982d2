"""The prediction of a range of images, as one piece of a batch job."""

import hashlib
import itertools
import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.errors import RunError
from pipelines.predictions import formats, results
from pipelines.predictions.images import Images

# An APP1 segment of a JPEG with the EXIF orientation 6, sideways.
_SIDEWAYS = b"\xff\xe1\0\x22Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"


class Rows(NamedTuple):
    """The results of consecutive images, as files have them.

    Attributes:
        count: number of images.
        failed: how many of them have no result.
        error: the reason for the first of these; empty if there is none.
        contents: what each file has of them.
    """

    count: int
    failed: int
    error: str
    contents: list[bytes]


def to_rows(found, form) -> Rows:
    """The `Rows` of a list of results of `results.in_batches` in a format of `formats`."""
    errors = [result["error"] for result in found if "error" in result]
    return Rows(len(found), len(errors), next(iter(errors), ""), form.contents(found))


def joined(rows) -> Rows:
    """Several `Rows` that follow each other as one."""
    counts, failed, errors, contents = zip(*rows, strict=True)
    error = next(filter(None, errors), "")
    return Rows(sum(counts), sum(failed), error, [*map(b"".join, zip(*contents, strict=True))])


class Predicting(NamedTuple):
    """A job for an engine, see `distribution.engine.jobs.Job`: `Rows` of ranges of images."""

    images: Images
    open_model: Callable  # opens the `Classifier` or `Embedder`
    form: formats.Predictions | formats.Embeddings
    batch_size: int
    digest: str  # `fingerprint` of the model where the command runs
    cores: int  # of each process

    def open(self):
        """See `Job.open`.

        Raises:
            RunError: if the model has other values than where the command runs.
        """
        model = self.open_model()
        if fingerprint(model) != self.digest:
            raise RunError(
                "The model gives other values here than where the command runs: the weights or the "
                "kind of processor differ. Use machines of one kind."
            )

        # Two calls on one core only take turns, each time with cold caches: 32.0 ms of CPU time for
        # an image in place of 30.0 (ViT-Ti/16 at 224 pixels, 2 processes on 2 cores, 2026-11-29).
        calls = min(results.CALLS, self.cores)

        def compute(block):
            found = results.in_batches(
                self.images,
                model,
                batch_size=self.batch_size,
                ranges=[(block.start, block.stop)],
                calls=calls,
            )
            return to_rows([*itertools.chain.from_iterable(found)], self.form)

        return compute


def fingerprint(model) -> str:
    """A hash of a model's answers to some images: of the weights, and of all that changes them."""
    noise = np.random.default_rng(0).integers(0, 256, [96, 64, 3], np.uint8)
    jpeg = tf.io.encode_jpeg(noise).numpy()
    large, small = (tf.io.encode_png(image).numpy() for image in (noise, noise[:4, :4]))
    probes = [large, small, jpeg, jpeg[:2] + _SIDEWAYS + jpeg[2:]]
    answers = model.call(tf.constant(probes))[model.output].numpy()
    return digest([getattr(model, "labels", None), answers.astype(np.float64).tolist()])


def digest(value) -> str:
    """A hash of a value that JSON can hold."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
