"""Images that cannot be read or decoded (`data.bad_images`): who they are, and doing without them.

stop: the first one ends the run, which names it.
skip: its place in the batch stays, with a black image of weight 0, so that the order and the resume
    of a run remain exact; an evaluation does not count it. `BadImages` names it, once per run.

A JPEG that is cut off is bad where training needs more of it than there is: a random crop from its
upper part may well be decoded.
"""

import contextlib
import errno
import json
import os
import threading

import numpy as np
import tensorflow as tf

from pipelines.data.decoding import try_each
from pipelines.data.prefetch import ROWS_PER_READ
from pipelines.errors import DataError, RunError, first_line
from vit_tf.images.decoding import decode_image

# What a dataset raises when an example cannot be read or decoded.
INPUT_ERRORS = (
    tf.errors.InvalidArgumentError,
    tf.errors.DataLossError,
    tf.errors.NotFoundError,
    tf.errors.UnknownError,
)

# Images are decoded in groups, one after the other within each. Smaller ones cost more, and a few
# groups per core are in memory.
_GROUP = 32
_BLACK = -1.0

_SPOKEN = 10  # How many are named on the terminal.
_REMEMBERED_STEPS = 1000


class BadImages:
    """The images that a run leaves out; each is named once, whatever the number of epochs.

    Used by input pipelines, from threads of their own.

    Args:
        path: file for all of them, an object {"id", "name", "reason"} per line; None writes none.
            What is in it already counts as named, so a resumed run goes on with it.
        tell: called with a line for each of the first ten, and one about the rest.
        shown: path for messages, if the file is yet to be moved there.
    """

    def __init__(self, path=None, tell=print, shown=None):
        self._path, self.tell = path, tell
        self._shown = shown or path
        self._lock = threading.Lock()
        self._missing = {}  # step -> places in its batch
        self._failure = None
        self._names, self._cut_off = _read_names(path)
        self._spoken = len(self._names)

    @property
    def count(self):
        """Number of images that are named, by earlier starts of the run too."""
        return len(self._names)

    def add(self, source, ids, images):
        """Names images that are not named yet.

        Args:
            source: their `Source`.
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
                    reason = why_unreadable(image) or "a part of it cannot be decoded"
                    self._write({"id": int(example_id), "name": name, "reason": reason})
                    self._say(f"left out {name} (id {example_id}): {reason}")

    def miss(self, source, step, places, batch_size):
        """Notes places of a training batch that stay black.

        Raises:
            DataError: if none is left: training would go on without learning anything.
        """
        with self._lock:
            missing = self._missing.setdefault(step, set())
            missing.update(places)
            for old in [key for key in self._missing if key < step - _REMEMBERED_STEPS]:
                del self._missing[old]
            if len(missing) == batch_size:
                self._fail(
                    DataError(
                        f"Not one of the {batch_size} images of training batch {step} can be read, "
                        f"so there is nothing to learn from. Is {source} the right data set?"
                    )
                )

    def check(self):
        """Raises what ended an input pipeline, in place of TensorFlow's words for it."""
        if self._failure:
            raise self._failure from None

    def summary(self):
        """Returns a line for the end of a run, None if all images could be read."""
        if not self._names:
            return None
        place = f", named in {self._shown}" if self._shown else ""
        return f"images left out because they cannot be read: {len(self._names):,}{place}"

    def _fail(self, error):
        # A pipeline that has failed may be asked again, and fail for something later.
        self._failure = self._failure or error
        raise error from None

    def _say(self, line):
        self._spoken += 1
        if self._spoken <= _SPOKEN:
            self.tell(line)
        elif self._spoken == _SPOKEN + 1:
            place = f"; all are named in {self._shown}" if self._shown else ""
            self.tell(f"left out more images than {_SPOKEN}{place}")

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
            self._fail(RunError(f"{self._shown} cannot be written: {error.strerror}."))


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


def why_unreadable(image):
    """Returns what is wrong with the bytes of an image, None if they can be decoded."""
    if not image:  # See `files.FileSource`.
        return "it is empty, huge or cannot be opened"
    try:
        decode_image(tf.constant(image))
    except tf.errors.OpError as error:
        return first_line(error)
    return None


@tf.function(input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)
def can_decode(images):
    """Which of some encoded images `[n]` can be decoded, bool `[n]`."""

    def decode(image):
        # Nothing but the size is used, and it is not known before.
        return tf.cast(tf.size(decode_image(image)), tf.float32)

    return try_each(decode, images, (), tf.data.AUTOTUNE).get_single_element()[1]


def unreadable(source, example_id, reason):
    """Returns the `DataError` that names an image and says why it cannot be decoded."""
    return DataError(
        f"The image {source.describe(int(example_id))} (id {example_id}) cannot be decoded: "
        f"{reason}. Remove or replace it, or go on without such images: data.bad_images=skip."
    )


def find_unreadable(source, indices, bad_images=None):
    """Finds what a dataset has stopped for.

    Args:
        source: a `Source`.
        indices: positions in the source, such as `pipeline.train_indices` of the failed step, or
            `range(source.num_examples)`.
        bad_images: the `BadImages` of a run that goes on without them; then only files that
            cannot be read at all count.

    Returns:
        `DataError` that names the first image that cannot be decoded and the reason, or says why
        the files cannot be read; None if neither is so.
    """
    if source.failure:  # Perhaps in another part of a window than these indices.
        return source.failure
    indices = np.asarray(indices, np.int64)
    for start in range(0, len(indices), ROWS_PER_READ):
        part = indices[start : start + ROWS_PER_READ]
        runs = np.split(part, np.flatnonzero(np.diff(part) != 1) + 1)
        try:
            examples = source.read([(int(run[0]), int(run[-1]) + 1) for run in runs])
        except DataError as error:
            return error
        for image, example_id in zip(examples.images, examples.ids, strict=True):
            if bad_images is None and (reason := why_unreadable(image)):
                return unreadable(source, example_id, reason)
    return None


def decode_all(dataset, prepare, batch_size, image_size, note):
    """Decodes the images of a dataset; those that cannot be become black, with weight 0.

    Costs 5 % more time of a core than a dataset that stops at them (1.06 against 1.01 ms for a JPEG
    of ImageNet's size with Inception crop, in batches of 32), and 7 % with batches above `_GROUP`,
    which are copied once more.

    Args:
        dataset: of examples with image (bytes), seed, weight, id, position, step.
        prepare: maps the bytes and the seed of an example to a float32 image.
        batch_size: of the batches that are returned.
        image_size: (height, width) of the result.
        note: called as `note(ids, images, steps, positions)` with what was bad, as NumPy arrays.

    Returns:
        Dataset of batches with image, float32 `[batch_size, height, width, 3]`, and without seed
        and step.
    """
    shape = (*image_size, 3)
    group = min(_GROUP, batch_size)

    def attempt(rows):
        rows = dict(rows)
        columns = {"image": rows["image"], "seed": rows.pop("seed")}
        tried = try_each(lambda row: prepare(row["image"], row["seed"]), columns, shape)
        return tried.map(lambda image, whole: {**rows, "decoded": image, "whole": whole})

    def told(ids, images, steps, positions, whole):
        bad = ~whole
        note(ids[bad], images[bad], steps[bad], positions[bad])
        return whole

    def settle(rows):
        image, whole, weight = (rows.pop(key) for key in ("decoded", "whole", "weight"))
        columns = [rows["id"], rows.pop("image"), rows.pop("step"), rows["position"], whole]

        def without_bad():
            good = tf.numpy_function(told, columns, tf.bool)[:, None, None, None]
            return tf.where(good, image, _BLACK), tf.where(whole, weight, 0.0)

        image, weight = tf.cond(tf.reduce_all(whole), lambda: (image, weight), without_bad)
        image = tf.ensure_shape(image, [rows["id"].shape[0], *shape])
        return {**rows, "image": image, "weight": weight}

    dataset = dataset.batch(group, drop_remainder=group == batch_size)
    # A parallel map: each of the datasets has one element. `Dataset.get_single_element` in a map
    # would do as well, but op determinism then allows one thread.
    dataset = dataset.interleave(
        attempt,
        cycle_length=tf.data.AUTOTUNE,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    # Not parallel, so that images are named in the order in which they come.
    dataset = dataset.map(settle)
    return dataset if group == batch_size else dataset.rebatch(batch_size, drop_remainder=True)


def explain_input_error(error, source, indices, bad_images=None):
    """Raises what a failed dataset has stopped for, with the name of the bad image.

    Args:
        error: one of `INPUT_ERRORS`, as the dataset raised it.
        source: the `Source` that the dataset reads.
        indices: iterable of positions in the source, see `find_unreadable`.
        bad_images: the `BadImages` of a run that goes on without them, or None.

    Raises:
        RunError, DataError: what `bad_images` has stopped the dataset for, or `find_unreadable`
            finds. Otherwise `error` itself.
    """
    if bad_images is not None:
        bad_images.check()
    indices = np.fromiter(indices, np.int64)
    raise find_unreadable(source, indices, bad_images) or error from None


@contextlib.contextmanager
def summary_at_end(bad_images):
    """Says when a `with` block ends, however it does, how many images were left out.

    Args:
        bad_images: `BadImages`, or None, which says nothing.
    """
    try:
        yield
    finally:
        if bad_images is not None and (line := bad_images.summary()):
            bad_images.tell(line)
