"""Records images that cannot be read or decoded, and optionally skips them (`data.bad_images`).

stop: the first bad image ends the run; the error names the image.
skip: a black image of weight 0 replaces the bad image in its batch. The order of the other images
    does not change, so a resumed run stays exact. An evaluation does not count the image.
    `BadImages` names the image once per run.

A truncated JPEG is bad only if training needs the missing bytes: a random crop of its upper rows
may be decoded without an error.
"""

import collections
import contextlib
import errno
import itertools
import json
import logging
import operator
import os
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.data.decoding import decode_error
from pipelines.data.sources.source import ROWS_PER_READ
from pipelines.distribution.group import current_group
from pipelines.errors import DataError, RunError

_log = logging.getLogger(__name__)

# Errors that a dataset raises if an example cannot be read or decoded.
INPUT_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.UnknownError,
    # Errors of remote files.
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.PermissionDeniedError,
    tf.errors.UnauthenticatedError,
    tf.errors.UnavailableError,
)

NO_BYTES = "it has no bytes"
# Seconds in which another worker may find an image that only it cannot read.
_LONGEST_SEARCH = 20.0
_MAX_LOGGED = 10  # Images named in the log; the file names all of them.


class BadImage(NamedTuple):
    """An image that cannot be decoded: where it is in its source, and why."""

    index: int
    id: int
    name: str
    reason: str

    def error(self):
        """Returns the `DataError` that names the image."""
        return DataError(
            f"The image {self.name} (id {self.id}) cannot be decoded: {self.reason}. Remove or "
            "replace it, or leave such images out: data.bad_images=skip."
        )


class BadImages:
    """Records the images that a run leaves out, each image once in any number of epochs.

    Logs each of the first ten images, and once if there are more.

    Args:
        path: file that lists all the images, a JSON object {"id", "name", "reason"} per line. None
            writes no file. Images in an existing file count as named, so a resumed run appends.
        final_path: path of the file in messages, if the file will be moved there later.
    """

    def __init__(self, path=None, final_path=None):
        self._path = path
        self._final_path = final_path or path
        self._names, self._cut_off = _read_names(path)
        self._num_logged = len(self._names)
        self._lost = 0

    @property
    def count(self):
        """Number of recorded images, including earlier starts of the run."""
        return len(self._names)

    def record(self, source, indices):
        """Records images that are known to be bad; images with a record are ignored.

        Args:
            source: the `DataSource` of the images, which are read again.
            indices: integers `[n]`.

        Raises:
            DataError: if the files cannot be read.
            RunError: if the file cannot be written.
        """
        names = [source.describe(int(example_id)) for example_id in source.ids(indices)]
        new = [x for x, name in zip(indices, names, strict=True) if name not in self._names]
        self.add(find_bad_images(source, new, are_known=True))

    def add(self, found):
        """Records `BadImage`s; images with a record are ignored. Errors of `record`."""
        for bad in found:
            if bad.name not in self._names:
                self._names.add(bad.name)
                self._write({"id": bad.id, "name": bad.name, "reason": bad.reason})
                self._tell(f"left out {bad.name} (id {bad.id}): {bad.reason}")

    def record_slots(self, batches, slots):
        """Like `record`, for images in slots of global batches.

        Args:
            batches: `order.TrainBatches` or `EvalBatches`.
            slots: pairs of the index of a batch and a slot in it, sorted.
        """
        for batch, own in itertools.groupby(slots, operator.itemgetter(0)):
            self.record(batches.source, batches.indices(batch)[[slot for _, slot in own]])

    def lose(self, count):
        """Counts images that were left out when only their number is known."""
        if count and not self._lost:
            _log.info("left out more images at a time than can be named")
        self._lost += count

    def summary(self):
        """Returns a line for the end of a run; None if no image was bad."""
        if not self._names:
            return None
        place = f", named in {self._final_path}" if self._final_path else ""
        more = f"; {self._lost:,} times one that is not named" * bool(self._lost)
        return f"images left out because they cannot be read: {len(self._names):,}{place}{more}"

    def _tell(self, line):
        self._num_logged += 1
        if self._num_logged <= _MAX_LOGGED:
            _log.info(line)
        elif self._num_logged == _MAX_LOGGED + 1:
            place = f"; all are named in {self._final_path}" if self._final_path else ""
            _log.info(f"left out more than {_MAX_LOGGED} images{place}")

    def _write(self, record):
        if self._path is None:
            return
        # One write per line, so that lines of other threads cannot mix with it. A line that a crash
        # or a full disk has truncated is ended first.
        line = ("\n" * self._cut_off + json.dumps(record) + "\n").encode()
        self._cut_off = False
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            try:
                if os.write(file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(file)
        except OSError as error:
            raise RunError(f"{self._final_path} cannot be written: {error.strerror}.") from None


def _read_names(path):
    """Returns the names in a file of `BadImages`, and whether its last line is truncated."""
    names, line = set(), b"\n"
    if path is not None and os.path.exists(path):
        with open(path, "rb") as file:
            for line in file:
                try:
                    names.add(str(json.loads(line)["name"]))
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue
    return names, not line.endswith(b"\n")


def find_bad_images(source, indices, are_known=False):
    """Yields the `BadImage`s among the examples at some indices of a `DataSource`.

    Args:
        source: the `DataSource`.
        indices: iterable of integers.
        are_known: whether all are known to be bad. An image with a part that cannot be
            decoded does not fail here.

    Raises:
        DataError: if the files cannot be read.
    """
    for index, example_id, image in _images(source, indices):
        reason = decode_error(image) or ("some of it cannot be decoded" if are_known else None)
        if not image and source.one_file_each and source.locate(np.array([index]))["path"][0]:
            reason = NO_BYTES  # A file that cannot be read has no path.
        if reason:
            yield BadImage(int(index), int(example_id), source.describe(int(example_id)), reason)


def _images(source, indices):
    """Yields index, id and bytes of the images at some indices; errors as for `read`."""
    indices = iter(indices)
    while len(chunk := np.fromiter(itertools.islice(indices, ROWS_PER_READ), np.int64)):
        images, _, ids = source.read(chunk)
        yield from zip(chunk, ids, images, strict=True)


def explain_input_error(error, batches, numbers, skips_bad_images=False):
    """Returns the error to raise for a failed dataset; it names the bad image.

    Args:
        error: one of `INPUT_ERRORS`, raised by the dataset.
        batches: its `order.TrainBatches` or `EvalBatches`.
        numbers: the batches in which it may have failed, a sequence of their indices.
        skips_bad_images: whether bad images are left out; then only errors from reading the files
            are found.

    Returns:
        `DataError` with the first image that cannot be decoded and the reason, or with the reason
        why the files cannot be read, also for examples that were read along; `WorkerError` if
        the end of another worker was the cause; `error` itself if all images can be read and
        decoded.
    """
    if (cause := current_group().cause(error)) is not error:
        return cause
    source = batches.source
    if source.failure:  # The failed read may have been of other indices in the same window.
        return source.failure
    indices = itertools.chain.from_iterable(map(batches.indices, numbers))
    indices = (index for index in indices if index >= 0)
    try:
        if skips_bad_images:
            collections.deque(_images(source, indices), maxlen=0)
        elif bad := next(find_bad_images(source, indices), None):
            return bad.error()
        read_along = itertools.chain.from_iterable(batches.read_along(numbers))
        collections.deque(_images(source, read_along), maxlen=0)
    except DataError as failure:
        return failure
    return current_group().cause(error, _LONGEST_SEARCH)


@contextlib.contextmanager
def summary_at_end(bad_images):
    """At the end of a `with` block, also after an error, logs how many images were left out.

    Args:
        bad_images: `BadImages`; None logs nothing.
    """
    try:
        yield
    finally:
        if bad_images is not None and (line := bad_images.summary()):
            _log.info(line)
