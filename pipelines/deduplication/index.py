"""The index of a data set on disk: the hash and, with a model, the embedding of every image.

A folder holds `index.json` (for which data, and how many images are done) and arrays in files of
their full size, which are filled in stored order: after an interruption, the next call goes on. The
arrays are mapped into memory, not read, so they may be larger than it. When all images are done,
files with the sorted buckets follow. Per image of a reference: 161 bytes for hashes and 16 for
their buckets; with a model 2 for each feature, and 24 for the buckets.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable
from concurrent import futures
from typing import NamedTuple

import numpy as np

from pipelines.data.progress_lines import ProgressLines
from pipelines.data.sources.source import DataSource
from pipelines.deduplication import embeddings, perceptual_hash
from pipelines.deduplication.buckets import QUARTERS, Buckets, sorted_rows
from pipelines.distribution.engine.jobs import blocks
from pipelines.errors import RunError, UserError
from pipelines.runs.json_file import read_json, write_json
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

# Encoded images in memory at a time; twice as many while the next ones are read.
_ROWS = 512
# Changes when the same images get other numbers.
_VERSION = 2
# States of an image.
UNREADABLE, PLAIN, HASHED = 0, 1, 2


class Numbers(NamedTuple):
    """What an index has of `n` images: its attributes `states`, `hashes` and `embeddings`."""

    states: np.ndarray
    hashes: np.ndarray
    embeddings: np.ndarray | None


def numbers_of(contents, embedder, views) -> Numbers:
    """The `Numbers` of encoded images.

    Args:
        contents: the bytes of each file, an object array `[n]`.
        embedder: `embeddings.Embedder`, or None.
        views: 2 to embed the mirror images too, else 1.
    """
    hashes, is_readable, is_hashed = perceptual_hash.hashes_of_files(contents)
    states = np.where(is_readable, np.where(is_hashed, HASHED, PLAIN), UNREADABLE)
    embedded = None
    if embedder:
        embedded = np.stack([embedder(contents, is_mirrored=x == 1) for x in range(views)], axis=1)
    return Numbers(states.astype(np.uint8), hashes, embedded)


class Indexing(NamedTuple):
    """A job for an engine, see `distribution.engine.jobs.Job`: `Numbers` of ranges of images."""

    source: DataSource
    open_embedder: Callable | None
    digest: str | None  # of the embedder where the command runs
    views: int  # as for `numbers_of`

    def open(self):
        """See `Job.open`.

        Raises:
            UserError: if the model is another one than where the command runs.
        """
        embedder = self.open_embedder() if self.open_embedder else None
        if embedder and embedder.digest != self.digest:
            raise UserError(f"{embedder.name} has other weights here than where the command runs.")

        def compute(block):
            parts = [range(i, min(i + _ROWS, block.stop)) for i in block[::_ROWS]]
            found = [numbers_of(self.source.read(x).images, embedder, self.views) for x in parts]
            states, hashes, embedded = zip(*found, strict=True)
            return Numbers(
                np.concatenate(states),
                np.concatenate(hashes, axis=1),
                np.concatenate(embedded) if embedder else None,
            )

        return compute


class Index:
    """The hashes and embeddings of a `DataSource`.

    Args:
        source: the `DataSource`.
        folder: the folder of all indices; this one is in a folder below, named after the data and
            the model, so that other data or another model never meet old numbers.
        embedder: `embeddings.Embedder`, or None.
        is_query: whether mirror images are embedded too; a search needs them of one side.

    Attributes:
        source: as given.
        states: uint8 `[n]`: `UNREADABLE`, `PLAIN` (without a hash) or `HASHED`.
        hashes: uint64 `[VIEWS, n]`, see `perceptual_hash.hashes_of_files`.
        embeddings: float16 `[n, 1 or 2, F]`, rows of length 1; None without a model.
    """

    def __init__(self, source, folder, embedder=None, is_query=False):
        self.source, self._embedder, self._is_query = source, embedder, is_query
        described = [_VERSION, source.manifest(), source.content_stamp(), is_query]
        described.append(embedder.digest if embedder else None)
        self._key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
        self._folder = os.path.join(folder, self._key[:16])
        count = source.num_examples
        shape = [perceptual_hash.VIEWS, count]
        self._shapes = {"states": ([count], np.uint8), "hashes": (shape, np.uint64)}
        if embedder:
            shape = [count, 1 + is_query, embedder.size]
            self._shapes["embeddings"] = (shape, np.float16)
        self.embeddings = None

    def fill(self, check=lambda: None, on=None):
        """Computes what is not there yet, group by group: after any end, the next call goes on.

        Args:
            check: called after every group of images; it may raise an error to stop.
            on: an engine, such as `ray_engine.RayEngine`, and the function that opens the embedder
                in its processes, or None without a model. None computes in this process.

        Returns:
            The `Index` itself.

        Raises:
            UserError: if the folder cannot be written.
            DataError: if the files of the data set cannot be read.
            RunError: if the disk is full, or an embedding is not finite.
        """
        total = self.source.num_examples
        try:
            done = self._open()
        except OSError as error:
            kind = RunError if error.errno == errno.ENOSPC else UserError
            raise kind(f"Cannot write to {self._folder}: {error.strerror}.") from None
        progress = ProgressLines(f"indexing {self.source}", total)
        progress.show(done)
        if on is None:
            groups = [range(i, min(i + _ROWS, total)) for i in range(done, total, _ROWS)]
            found = self._computed_here(groups)
        else:
            engine, open_embedder = on
            groups = blocks([(done, total)], _ROWS)
            digest = self._embedder.digest if self._embedder else None
            job = Indexing(self.source, open_embedder, digest, 1 + self._is_query)
            found = engine.map(job, groups, check)
        for rows, numbers in zip(groups, found, strict=True):
            self._add(rows, numbers)
            progress.show(rows.stop)
            check()
        return self

    def _computed_here(self, groups):
        """Yields the `Numbers` of groups of images; reads the next group at the same time."""
        with futures.ThreadPoolExecutor(1) as reader:
            reads = [reader.submit(self.source.read, rows) for rows in groups[:1]]
            for number in range(len(groups)):
                contents = reads.pop().result().images
                if number + 1 < len(groups):
                    reads.append(reader.submit(self.source.read, groups[number + 1]))
                yield numbers_of(contents, self._embedder, 1 + self._is_query)

    def _open(self):
        """Maps the arrays, which are created unless they are there; returns how many are done."""
        storage.make_folders(self._folder)
        mode, done = "r+", self._done()
        if done is None:
            mode, done = "w+", 0
        for name, (shape, dtype) in self._shapes.items():
            path = self._path(name)
            mapped = np.lib.format.open_memmap(path, mode, dtype, shape=tuple(shape))
            setattr(self, name, mapped)
            if mode == "w+" and hasattr(os, "posix_fallocate"):
                # Writing a mapped page for which the disk has no space would kill the process.
                with open(path, "r+b") as file:
                    os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
        if mode == "w+":
            self._write_done(0)
        return done

    def _done(self):
        """The number of images that are done, or None if the files belong to another index."""
        try:
            record = read_json(self._path("index", "json"))
            arrays = {
                name: np.load(self._path(name), mmap_mode="r", allow_pickle=False)
                for name in self._shapes
            }
        except (ValueError, OSError):
            return None
        done = record.get("done")
        is_right = record.get("key") == self._key and type(done) is int
        for name, (shape, dtype) in self._shapes.items():
            is_right &= (list(arrays[name].shape), arrays[name].dtype) == (shape, np.dtype(dtype))
        return done if is_right and 0 <= done <= self.source.num_examples else None

    def _add(self, rows, numbers):
        place = slice(rows.start, rows.stop)
        self.hashes[:, place], self.states[place] = numbers.hashes, numbers.states
        if self._embedder:
            self.embeddings[place] = numbers.embeddings
        for name in self._shapes:
            getattr(self, name).flush()
        self._write_done(rows.stop)

    def _write_done(self, done):
        record = {"data": str(self.source), "key": self._key, "done": done}
        write_json(self._path("index", "json"), record)

    def hash_buckets(self):
        """`Buckets` of the hashes of view 0, and the row of each of their keys."""
        rows = np.flatnonzero(self.states == HASHED)
        keys = self.hashes[0, rows]
        return Buckets(keys, self._sorted("hash_buckets", keys)), rows

    def embedding_buckets(self):
        """`Buckets` of the signs of the embeddings, the row of each key, and the mean embedding."""
        rows = np.flatnonzero(self.states != UNREADABLE)
        count = len(rows)
        size = self.embeddings.shape[2]
        mean = self._kept(
            "mean", [size], np.float32, lambda: embeddings.mean(self.embeddings, rows)
        )
        keys = self._kept(
            "embedding_keys",
            [count],
            np.uint64,
            lambda: embeddings.sign_keys(self.embeddings, rows, 0, mean),
        )
        return Buckets(keys, self._sorted("embedding_buckets", keys)), rows, mean

    def _sorted(self, name, keys):
        return self._kept(name, [QUARTERS, len(keys)], np.uint32, lambda: sorted_rows(keys))

    def _kept(self, name, shape, dtype, make):
        """An array in a file, mapped; if it is not there, it is made and written."""
        path = self._path(name)
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            if (list(found.shape), found.dtype) == (shape, np.dtype(dtype)):
                return found
        except (ValueError, OSError):
            pass
        made = make()
        write_atomically(path, lambda file: np.save(file, made))
        return made

    def _path(self, name, suffix="npy"):
        return os.path.join(self._folder, f"{name}.{suffix}")
