"""Verifies the file of published weights, step by step, and makes its record."""

import dataclasses
import datetime
import logging
import math
import os
import warnings

import numpy as np
import tensorflow as tf

import vit_tf
from pipelines.config.fields import differences
from pipelines.errors import counted
from pipelines.research.verification.array_checks import ArrayChecks
from pipelines.stored_models.parity import fixed_images
from vit_tf.pretrained.cache import digest
from vit_tf.pretrained.records import WeightsRecord
from vit_tf.weights import download_weights, open_checkpoint

_log = logging.getLogger(__name__)

# Listed sizes are rounded to two digits after the point, in GiB or MiB.
_SIZE_TOLERANCE = 0.01
# Outputs for each fixed image in a record.
_FIRST = 8
# Largest difference of these from recorded ones, relative to their norm: other processors round
# differently.
_REPEATED = 1e-4
# Sentences in an error.
_MOST_PROBLEMS = 5


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result for one file.

    Attributes:
        record: what identifies the file and its model, as JSON holds it.
        problems: one sentence for each difference from what the weights should be.
    """

    record: dict
    problems: list[str]


def verify(record: WeightsRecord) -> Verification:
    """Downloads published weights if they are not in the cache, and verifies them.

    Logs a line for each step.

    Args:
        record: the weights.

    Raises:
        vit_tf.pretrained.download.DownloadError: see `vit_tf.weights.find_weights`.
    """
    # GPUs would round float32 to 10 bits, more than outputs on other machines may differ.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    path = download_weights(record)
    found = {
        "sha256": digest(path),
        "size": os.path.getsize(path),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    _log.info(f"file: {found['size']:,} bytes, sha256 {found['sha256']}")
    problems = _size_problems(record, found["size"])
    loaded = None
    try:
        problems += _array_problems(record, path, found)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Values that are not finite are a problem already.
            loaded = vit_tf.load(path, dtype="float32")
    except ValueError as error:
        problems.append(str(error).rstrip("."))
    if loaded is not None and not problems:
        problems += _output_problems(record, loaded, found)
    return Verification(found, problems)


def _size_problems(record, size):
    least, most = record.size * (1 - _SIZE_TOLERANCE), record.most_bytes
    if record.listed_size is not None:
        most = record.size * (1 + _SIZE_TOLERANCE)
    if least <= size <= most:
        return []
    return [f"the file has {size:,} bytes, expected {least:,.0f} to {most:,.0f}"]


def _array_problems(record, path, found):
    """What is wrong with the arrays, apart from what `vit_tf.load` refuses: names and shapes."""
    with open_checkpoint(path) as file:
        config = file.config
        expected = record.config.to_dict()
        problems = [f"config: {line}" for line in differences(expected, config.to_dict())]
        problems += [
            f"{key} is of dtype {dtype}, expected float32"
            for key, dtype in file.dtypes.items()
            if dtype != np.float32
        ]
        checks = ArrayChecks(config.grid)
        for key in file.shapes:
            checks.add(key, file.read(key))
    found["arrays"] = len(file.shapes)
    parameters = sum(math.prod(shape) for shape in file.shapes.values())
    _log.info(f"arrays: {len(file.shapes)} with {parameters:,} weights, of a {record.model}")
    return problems + checks.problems


def _output_problems(record, loaded, found):
    images = fixed_images(loaded.model.config.image_size)
    logits = np.asarray(loaded.model(images, training=False), np.float64)
    first, norms = logits[:, :_FIRST], np.linalg.norm(logits, axis=1)
    found["outputs"] = {
        "first": [[float(f"{value:.6g}") for value in row] for row in first],
        "norms": [float(f"{value:.6g}") for value in norms],
    }
    _log.info(f"fixed images: norms of the logits {norms[0]:.6g} and {norms[1]:.6g}")
    if not np.isfinite(logits).all():
        return ["the logits of the fixed images are not finite"]
    if (before := record.verified) is None:
        return []
    gaps = [*np.abs(norms - before.norms) / norms]
    gaps += [*np.abs(first - np.array(before.first)).max(axis=1) / norms]
    if max(gaps) <= _REPEATED:
        return []
    return [
        f"the logits of the fixed images differ by {max(gaps):.1e} of their norm from the recorded "
        f"ones (allowed: {_REPEATED:.0e})"
    ]


def summary(problems) -> str:
    """The problems of a file as the end of a sentence."""
    shown = "; ".join(problems[:_MOST_PROBLEMS])
    more = len(problems) - _MOST_PROBLEMS
    return shown + (f"; and {counted(more, 'more problem')}" if more > 0 else "")
