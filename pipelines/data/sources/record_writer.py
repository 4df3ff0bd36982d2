"""Writes any source as TFRecord files, in the format of `records.py`."""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import uuid
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.data.bad_images import BadImage, BadImages, find_bad_images
from pipelines.data.decoding import decoded_sizes
from pipelines.data.progress_lines import ProgressLines
from pipelines.data.sources.records import IMAGE, INFO_FILE, LABEL, TEXT
from pipelines.data.sources.source import ROWS_PER_READ, DataSource
from pipelines.errors import DataError, RunError
from vit_tf.files.atomic_file import write_atomically
from vit_tf.files.temporary import new_folder

# Lists the images that were left out, see `bad_images.BadImages`; next to the records.
BAD_FILE = "bad_images.jsonl"
# In a folder that is not finished: what is written, and the end of the names of notes about files.
_REQUEST, _NOTE = "request", ".done"


class WriteSummary(NamedTuple):
    """Size and number of the records that `write_records` wrote."""

    num_bytes: int
    counts: dict  # split -> number of records
    left_out: int  # number of images in `BAD_FILE`


class Shard(NamedTuple):
    """A file of records: examples `[start, stop)` of a split."""

    split: str
    name: str
    start: int
    stop: int


class Written(NamedTuple):
    """A file that is written: its records, and the images that were left out."""

    count: int
    bad: list[BadImage]


class WritingShards(NamedTuple):
    """A job for an engine, see `distribution.engine.jobs.Job`: its indices number `shards`."""

    sources: dict[str, DataSource]  # by split
    shards: list[Shard]
    folder: str
    skips: bool  # Images that cannot be decoded are left out; else the first one is an error.

    def open(self):
        """See `Job.open`; the result of a range is a list of `Written`."""
        return lambda block: [self._write(self.shards[number]) for number in block]

    def _write(self, shard):
        path = os.path.join(self.folder, shard.name)
        source, count, left_out = self.sources[shard.split], 0, []
        # A process that was lost may still write the same file.
        unfinished = os.path.join(self.folder, f".{shard.name}.{uuid.uuid4().hex}")
        with tf.io.TFRecordWriter(unfinished) as writer:
            for image, label in _decodable(source, shard, left_out if self.skips else None):
                writer.write(_record(image, np.atleast_1d(label), source.labels))
                count += 1
        with open(unfinished, "rb") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        return Written(count, left_out)


def write_records(
    sources, output, shards, bad_images, engine=None, check=lambda: None, locks=frozenset()
):
    """Writes sources as the splits of one folder.

    The files are written to a temporary folder, which is renamed at the end. Every image is decoded
    once, so that bad images are found here and not in training. Without an engine, no folder is
    left after an error; with one, files that are done are kept for the next call.

    Args:
        sources: mapping from the name of each split to its `DataSource`.
        output: folder to create; it must not exist. With an engine, all machines see it.
        shards: number of files of each split; a split with fewer examples has fewer files.
        bad_images: "stop", or "skip" to leave out images that cannot be decoded.
        engine: such as `ray_engine.RayEngine`; None writes in this process.
        check: called again and again; it may raise an error to stop.
        locks: with an engine, names of the files by which the caller locks `OUTPUT.partial`.

    Returns:
        `WriteSummary`.

    Raises:
        DataError: if the folder exists or cannot be written, the sources have different classes, an
            image cannot be decoded and `bad_images` is "stop", or no image of a split can be
            decoded.
    """
    output = os.path.abspath(output)
    labels = {source.labels for source in sources.values()}
    if len(labels) != 1:
        raise DataError(f"The splits {', '.join(sources)} have different classes.")
    if os.path.lexists(output):
        raise DataError(f"{output} is already there. Choose another --output, or remove it.")
    files = [shard for name, source in sources.items() for shard in _shards(source, name, shards)]
    with contextlib.ExitStack() as stack:
        try:
            os.makedirs(os.path.dirname(output), exist_ok=True)
            if engine is None:
                folder = stack.enter_context(_temporary(output))
            else:
                stamps = [[x.manifest(), x.content_stamp()] for x in sources.values()]
                folder = _begun(f"{output}.partial", [files, bad_images, stamps], locks)
        except OSError as error:
            raise DataError(
                f"{output} cannot be written: {error.strerror} ({error.filename})."
            ) from None
        job = WritingShards(sources, files, folder, bad_images == "skip")
        counts, left_out = _write_all(job, output, engine, check)
        _check_counts(sources, counts)
        multi_label = any(source.multi_label for source in sources.values())
        info = {
            "labels": list(*labels),
            **({"multi_label": True} if multi_label else {}),
            "splits": counts,
            "source": {name: source.manifest() for name, source in sources.items()},
        }
        content = json.dumps(info, indent=1).encode()
        write_atomically(os.path.join(folder, INFO_FILE), lambda file: file.write(content))
        _remove_others(folder, {INFO_FILE, BAD_FILE, *(shard.name for shard in files)})
        size = sum(os.path.getsize(entry.path) for entry in os.scandir(folder))
        os.rename(folder, output)
        sums = {name: sum(own.values()) for name, own in counts.items()}
        return WriteSummary(size, sums, left_out)


def _shards(source, split, shards):
    shards = min(shards, source.num_examples)
    limits = np.linspace(0, source.num_examples, shards + 1).round().astype(int).tolist()
    return [
        Shard(split, f"{split}-{number:05}-of-{shards:05}.tfrecord", start, stop)
        for number, (start, stop) in enumerate(itertools.pairwise(limits))
    ]


@contextlib.contextmanager
def _temporary(output):
    """A folder beside `output` that is gone after an error."""
    folder = new_folder(os.path.dirname(output), f".{os.path.basename(output)}.")
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _begun(folder, request, locks):
    """The folder that holds the files of earlier calls with the same request."""
    digest = hashlib.sha256(json.dumps(request).encode()).hexdigest().encode()
    path = os.path.join(folder, _REQUEST)
    if not os.path.lexists(folder):
        os.makedirs(folder)
    if os.path.isdir(folder) and not set(os.listdir(folder)) - locks:
        write_atomically(path, lambda file: file.write(digest))
    try:
        with open(path, "rb") as file:
            is_same = file.read() == digest
    except OSError:
        is_same = False
    if not is_same:
        raise DataError(
            f"{folder} would hold unfinished files, but is something else, or holds those of other "
            "data or flags. Repeat that command to finish them, or remove it."
        )
    return folder


def _write_all(job, output, engine, check):
    """Writes the files of `WritingShards` that are missing.

    Returns:
        Split -> name of a file -> number of records; and the number of images left out.
    """
    left_out = None
    if job.skips:
        final_path = os.path.join(output, BAD_FILE)
        path = os.path.join(job.folder, BAD_FILE)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # Of an earlier call: images are named in stored order.
        left_out = BadImages(path, final_path)
    counts = {shard.split: {} for shard in job.shards}
    total, done = sum(shard.stop - shard.start for shard in job.shards), 0
    progress = ProgressLines(f"writing {output}", total)
    for shard, written in zip(job.shards, _each_written(job, engine, check), strict=True):
        counts[shard.split][shard.name] = written.count
        if left_out is not None:
            left_out.add(written.bad)
        done += shard.stop - shard.start
        progress.show(done)
        check()
    return counts, left_out.count if left_out else 0


def _each_written(job, engine, check):
    """Yields `Written` for each file, in order."""
    if engine is None:
        write = job.open()
        for number in range(len(job.shards)):
            yield from write(range(number, number + 1))
        return
    notes = [os.path.join(job.folder, f"{shard.name}{_NOTE}") for shard in job.shards]
    found = [_read_note(path) for path in notes]
    missing = [range(i, i + 1) for i, written in enumerate(found) if written is None]
    written = engine.map(job, missing, check)
    for shard, path, known in zip(job.shards, notes, found, strict=True):
        if known is None:
            [known] = next(written)
            if not os.path.exists(os.path.join(job.folder, shard.name)):
                raise RunError(
                    f"{shard.name} was written on another machine, but is not in {job.folder} "
                    "here. Choose an --output in a folder that all machines share."
                )
            content = json.dumps(known).encode()
            write_atomically(path, lambda file, content=content: file.write(content))
        yield known


def _read_note(path):
    """What a note says about a file that is done; None without one."""
    try:
        with open(path, "rb") as file:
            count, bad = json.load(file)
        return Written(count, [BadImage(*each) for each in bad])
    except FileNotFoundError:
        return None


def _check_counts(sources, counts):
    for name, source in sources.items():
        if not any(counts[name].values()):
            raise DataError(
                f"None of the images of {source} can be decoded. Is it the right data set?"
            )


def _remove_others(folder, names):
    for name in set(os.listdir(folder)) - names:
        os.unlink(os.path.join(folder, name))


def _decodable(source, shard, left_out):
    """Yields image and label, or labels, of each example of a file that can be decoded.

    Args:
        source: the `DataSource`.
        shard: the `Shard`.
        left_out: a list that gets the `BadImage`s; None: the first one is an error.
    """
    for first in range(shard.start, shard.stop, ROWS_PER_READ):
        images, labels, _ = source.read(range(first, min(first + ROWS_PER_READ, shard.stop)))
        _, valid = decoded_sizes(tf.constant(list(images)))
        valid = valid.numpy()
        bad = find_bad_images(source, first + np.flatnonzero(~valid), are_known=True)
        if left_out is not None:
            left_out += bad
        elif one := next(bad, None):
            raise one.error()
        yield from ((images[row], labels[row]) for row in np.flatnonzero(valid))


def _record(image, labels, names):
    """Returns a serialized `tf.train.Example`; `names` has the name of every class."""
    texts = [names[label].encode() for label in labels]
    features = {
        IMAGE: tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
        LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=labels)),
        TEXT: tf.train.Feature(bytes_list=tf.train.BytesList(value=texts)),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return example.SerializeToString(deterministic=True)  # A map has no order of its own.
