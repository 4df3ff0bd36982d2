"""Images that cannot be read or decoded (`data.bad_images`): naming them, and going on without.

stop: the first one ends the run, which names it.
skip: its place in the batch stays, with a black image of weight 0, so that the order and the resume
    of a run remain exact; an evaluation does not count it. `BadImages` names it, once per run.

A JPEG that is cut off is bad where training needs more of it than there is: a random crop from its
upper part may well be decoded.
"""

import contextlib
import errno
import itertools
import json
import os
import threading

import numpy as np
import tensorflow as tf

from pipelines.data.decoding import decode_error
from pipelines.data.prefetch import ROWS_PER_READ
from pipelines.errors import DataError, RunError

# What a dataset raises when an example cannot be read or decoded.
INPUT_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.UnknownError,
)

_MAX_LOGGED = 10  # Images that are named on the terminal.
_TRACKED_STEPS = 1000


class BadImages:
    """Record of the images that a run leaves out; each is named once in any number of epochs.

    Used by input pipelines, from threads of their own.

    Args:
        path: file for all of them, an object {"id", "name", "reason"} per line; None writes none.
            What is in it already counts as named, so a resumed run goes on with it.
        log: called with a line for each of the first ten, and one about the rest.
        final_path: path for messages, if the file is yet to be moved there.
    """

    def __init__(self, path=None, log=print, final_path=None):
        self._path, self.log = path, log
        self._final_path = final_path or path
        self._lock = threading.Lock()
        self._black = {}  # step -> positions in its batch
        # What has ended an input pipeline; TensorFlow passes on no more than its text.
        self.failure = None
        self._names, self._cut_off = _read_names(path)
        self._num_logged = len(self._names)

    @property
    def count(self):
        """Number of images that are named, by earlier starts of the run too."""
        return len(self._names)

    def record(self, source, ids, images):
        """Names images that are not named yet.

        Args:
            source: their `DataSource`.
            ids: int64 `[n]`.
            images: object `[n]`, their bytes.

        Raises:
            RunError: if the file cannot be written.
        """
        with self._lock:
            for example_id, image in zip(ids, images, strict=True):
                name = source.describe(int(example_id))
                if name not in self._names:
                    self._names.add(name)
                    reason = decode_error(image) or "a part of it cannot be decoded"
                    self._write({"id": int(example_id), "name": name, "reason": reason})
                    self._log(f"left out {name} (id {example_id}): {reason}")

    def record_evaluation(self, source, ids, images, steps, positions):
        """As `record`, of images of an evaluation, which counts them in no batch."""
        del steps, positions
        self.record(source, ids, images)

    def record_training(self, source, batch_size, ids, images, steps, positions):
        """As `record`, of images that stay black in training batches.

        Args:
            source, ids, images: as `record`.
            batch_size: examples in a global batch.
            steps: int64 `[n]`, the batch of each image.
            positions: int32 `[n]`, its place there.

        Raises:
            DataError: if a batch has no other image: training would go on without learning.
            RunError: if the file cannot be written.
        """
        self.record(source, ids, images)
        for step in np.unique(steps):
            self._blacken(source, batch_size, int(step), positions[steps == step].tolist())

    def _blacken(self, source, batch_size, step, positions):
        with self._lock:
            black = self._black.setdefault(step, set())
            black.update(positions)
            for old in [key for key in self._black if key < step - _TRACKED_STEPS]:
                del self._black[old]
            if len(black) == batch_size:
                self._fail(
                    DataError(
                        f"Not one of the {batch_size} images of training batch {step} can be read, "
                        f"so there is nothing to learn from. Is {source} the right data set?"
                    )
                )

    def summary(self):
        """Returns a line for the end of a run, None if all images could be read."""
        if not self._names:
            return None
        place = f", named in {self._final_path}" if self._final_path else ""
        return f"images left out because they cannot be read: {len(self._names):,}{place}"

    def _fail(self, error):
        # A pipeline that has failed may be asked again, and fail for something later.
        self.failure = self.failure or error
        raise error from None

    def _log(self, line):
        self._num_logged += 1
        if self._num_logged <= _MAX_LOGGED:
            self.log(line)
        elif self._num_logged == _MAX_LOGGED + 1:
            place = f"; all are named in {self._final_path}" if self._final_path else ""
            self.log(f"left out more images than {_MAX_LOGGED}{place}")

    def _write(self, record):
        if self._path is None:
            return
        # A line in one call, so that no other is mixed into it; what a crash or a full disk has cut
        # off ends here.
        line = ("\n" * self._cut_off + json.dumps(record) + "\n").encode()
        self._cut_off = False
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                if os.write(file, line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(file)
        except OSError as error:
            self._fail(RunError(f"{self._final_path} cannot be written: {error.strerror}."))


def _read_names(path):
    """Returns the names in a file of `BadImages`, and whether its last line is cut off."""
    names, line = set(), b"\n"
    if path is not None and os.path.exists(path):
        with open(path, "rb") as file:
            for line in file:
                try:
                    names.add(str(json.loads(line)["name"]))
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue
    return names, not line.endswith(b"\n")


def bad_image_error(source, example_id, reason):
    """Returns the `DataError` that names an image and says why it cannot be decoded."""
    return DataError(
        f"The image {source.describe(int(example_id))} (id {example_id}) cannot be decoded: "
        f"{reason}. Remove or replace it, or go on without such images: data.bad_images=skip."
    )


def explain_input_error(error, source, indices, bad_images=None):
    """The error to raise for a failed dataset, which names the bad image.

    Args:
        error: one of `INPUT_ERRORS`, as the dataset raised it.
        source, indices, bad_images: see `find_bad_image`.

    Returns:
        `RunError` or `DataError`: what `bad_images` has stopped the dataset for, or
        `find_bad_image` finds. Otherwise `error` itself.
    """
    if bad_images is not None and bad_images.failure:
        return bad_images.failure
    return find_bad_image(source, indices, bad_images) or error


def find_bad_image(source, indices, bad_images=None):
    """Finds what a dataset has stopped for.

    Args:
        source: a `DataSource`.
        indices: iterable of positions in the source, such as `pipeline.train_indices` of the failed
            step, or `range(source.num_examples)`.
        bad_images: the `BadImages` of a run that goes on without them; then only files that
            cannot be read at all count.

    Returns:
        `DataError` that names the first image that cannot be decoded and the reason, or says why
        the files cannot be read; None if neither is so.
    """
    if source.failure:  # Perhaps elsewhere in a window than these indices.
        return source.failure
    indices = iter(indices)
    while len(chunk := np.fromiter(itertools.islice(indices, ROWS_PER_READ), np.int64)):
        runs = np.split(chunk, np.flatnonzero(np.diff(chunk) != 1) + 1)
        try:
            examples = source.read([(int(run[0]), int(run[-1]) + 1) for run in runs])
        except DataError as error:
            return error
        for image, example_id in zip(examples.images, examples.ids, strict=True):
            if bad_images is None and (reason := decode_error(image)):
                return bad_image_error(source, example_id, reason)
    return None


@contextlib.contextmanager
def summary_at_end(bad_images):
    """Logs when a `with` block ends, however it does, how many images were left out.

    Args:
        bad_images: `BadImages`, or None, which logs nothing.
    """
    try:
        yield
    finally:
        if bad_images is not None and (line := bad_images.summary()):
            bad_images.log(line)
