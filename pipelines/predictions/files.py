"""Writes results as files, which appear whole; an interrupted call goes on where it ended.

`FILE.partial` is a folder beside the file, with one writer:

    state.json     what is predicted, and how many images are done
    part-...       the lines of consecutive images, named after the index of the first

A part is written every few seconds, at the end of a shard and at a signal, then the state: parts
that it does not count are written again. Batches begin at the same images in every call, so the
bytes do not depend on interruptions. At the end the parts are joined.
"""

import hashlib
import itertools
import json
import logging
import os
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.errors import Interrupted, UserError
from pipelines.predictions import formats, results
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.lock import LOCKS, only_writer
from pipelines.runs.signals import Signals
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

_log = logging.getLogger(__name__)

# Seconds of work that a crash may cost.
_PART_SECONDS = 10.0
_STATE, _PART, _WHOLE = "state.json", "part-", "whole"
# An APP1 segment of a JPEG with the EXIF orientation 6, sideways.
_SIDEWAYS = b"\xff\xe1\0\x22Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"


class Written(NamedTuple):
    """What `write` has written.

    Attributes:
        count: number of images.
        failed: how many of them have no result.
        first_error: the reason for the first of these; empty if there is none.
    """

    count: int
    failed: int
    first_error: str


class Output(NamedTuple):
    """The files of results.

    Attributes:
        path: the path or URL that the user names.
        shards: number of files.
        overwrite: whether existing ones are replaced.
    """

    path: str
    shards: int = 1
    overwrite: bool = False

    @property
    def paths(self) -> list[str]:
        """The path of each file."""
        if self.shards == 1:
            return [self.path]
        stem, suffix = os.path.splitext(self.path)
        return [f"{stem}-{i:05}-of-{self.shards:05}{suffix}" for i in range(self.shards)]

    @property
    def partial(self) -> str:
        """The folder that holds what is done until the end."""
        return f"{self.path}.partial"

    def check(self):
        """Checks the names, before anything is computed.

        Raises:
            UserError: if the format is unknown, or a file is there and is not to be replaced.
        """
        formats.suffix(self.path)
        is_joining = _read_state(self.partial).get("joining", False)
        for path in self.paths:
            if storage.is_folder(path):
                raise UserError(f"--output {path} is a folder. Name a file.")
            if storage.exists(path) and not (self.overwrite or is_joining):
                raise UserError(
                    f"--output {path} is already there. Choose another name, or replace it with "
                    "--overwrite."
                )


def write(output, images, classify, labels, *, top, batch_size=results.BATCH_SIZE) -> Written:
    """Classifies images and writes the results, those of consecutive images into each file.

    Args:
        output: `Output`.
        images, classify, labels, top, batch_size: see `results.in_batches`.

    Raises:
        UserError: if the files cannot be written, or those of another call are not complete.
        InUseError: if another process writes them.
        Interrupted: after a signal.
    """
    request = {
        "--model": _fingerprint(classify, labels),
        "images": _digest([images.source.manifest(), images.source.content_stamp()]),
        "--top": top,
        "--shards": output.shards,
        "--batch_size": batch_size,
    }
    with only_writer(output.partial, "--output") as check_writer:
        output.check()
        parts = _Parts(output, request, check_writer)
        if not parts.state["joining"]:
            top = min(top, len(labels))
            _write_parts(parts, output, images, classify, labels, top, batch_size)
        return parts.join(min(top, len(labels)), images.source.num_examples)


def _write_parts(parts, output, images, classify, labels, top, batch_size):
    """Writes all parts that are missing."""
    count, done = images.source.num_examples, parts.state["done"]
    if done:
        _log.info(f"going on with {output.partial}: {done:,} of {count:,} images are done")
    limits = _limits(count, output.shards)
    ranges = [(max(start, done), stop) for start, stop in itertools.pairwise(limits) if stop > done]
    ends, kind, waiting, begun = set(limits), formats.suffix(output.path), [], time.monotonic()
    with Signals() as signals:
        for found in results.in_batches(
            images, classify, labels, top=top, batch_size=batch_size, ranges=ranges
        ):
            waiting += found
            done += len(found)
            try:
                signals.check()
            except Interrupted as received:
                parts.add(formats.lines(kind, waiting, top), waiting)
                raise Interrupted(
                    f"{received}: {done:,} of {count:,} images are done. Start the same command "
                    "again to go on."
                ) from None
            if done in ends or time.monotonic() - begun >= _PART_SECONDS:
                parts.add(formats.lines(kind, waiting, top), waiting)
                waiting, begun = [], time.monotonic()


class _Parts:
    """The folder of an `Output` that is not complete, which this process alone writes.

    Args:
        output: the `Output`.
        request: what is predicted: name -> value that JSON can hold.
        check_writer: see `only_writer`.

    Attributes:
        state: content of `state.json`.

    Raises:
        UserError: if the folder is something else, or holds parts of another request.
    """

    def __init__(self, output, request, check_writer):
        self._output, self._check_writer = output, check_writer
        new = {"request": request, "done": 0, "failed": 0, "first_error": "", "joining": False}
        self.state = _read_state(output.partial) or new
        if self.state.keys() != new.keys():
            raise UserError(f"{output.partial}/{_STATE} is damaged. Delete {output.partial}.")
        begun = self.state["request"]
        if differing := [name for name in request if begun.get(name) != request[name]]:
            if not output.overwrite:
                raise UserError(
                    f"{output.partial} holds the beginning of other predictions, with other "
                    f"{', '.join(differing)}. Repeat that command to finish them, or start over "
                    "with --overwrite."
                )
            self.state = new
        self._save()
        for number in self._numbers():
            if number >= self.state["done"]:
                storage.remove(self._path(number))

    def add(self, lines, found):
        """Writes the lines of the next results."""
        self._check_writer()
        write_atomically(self._path(self.state["done"]), lambda file: file.write(lines))
        errors = [result["error"] for result in found if "error" in result]
        self.state["done"] += len(found)
        self.state["failed"] += len(errors)
        self.state["first_error"] = self.state["first_error"] or next(iter(errors), "")
        self._save()

    def join(self, top, count) -> Written:
        """Makes the files of all parts, and deletes the folder."""
        self.state["joining"] = True
        self._save()
        output, numbers = self._output, sorted(self._numbers())
        shards = zip(output.paths, itertools.pairwise(_limits(count, output.shards)), strict=True)
        for path, (start, stop) in shards:
            own = [self._path(number) for number in numbers if start <= number < stop]
            self._check_writer()
            _join(path, formats.header(formats.suffix(path), top), own, output.partial)
        written = Written(count, self.state["failed"], self.state["first_error"])
        # First the state: without it, what a crash leaves counts for nothing.
        storage.remove(storage.join(output.partial, _STATE))
        storage.remove_folder(output.partial)
        return written

    def _numbers(self):
        names = storage.list_names(self._output.partial)
        found = (name.removeprefix(_PART) for name in names if name.startswith(_PART))
        return [int(number) for number in found if number.isdecimal()]

    def _path(self, number):
        return storage.join(self._output.partial, f"{_PART}{number:012}")

    def _save(self):
        self._check_writer()
        write_json(storage.join(self._output.partial, _STATE), self.state)


def _join(path, header, parts, partial):
    """Writes a file that has the content of some parts in the folder `partial`."""

    def copy(file):
        file.write(header)
        for part in parts:
            file.writelines(storage.chunks(part))

    if storage.is_url(path):
        write_atomically(path, copy)
        return
    # In the folder, so that a crash leaves nothing beside the file.
    whole = storage.join(partial, _WHOLE)
    write_atomically(whole, copy)
    os.replace(whole, path)


def _read_state(partial):
    """The state of a folder; empty if it has none.

    Raises:
        UserError: if it is a folder of something else, or damaged.
    """
    if not storage.exists(partial):
        return {}
    path = storage.join(partial, _STATE)
    if storage.is_folder(partial) and storage.exists(path):
        return read_json(path)
    names = storage.list_names(partial) if storage.is_folder(partial) else [partial]
    if any(name not in LOCKS and not name.startswith((_STATE, _PART, _WHOLE)) for name in names):
        raise UserError(
            f"{partial} would hold unfinished results, but is something else. Move it away, or "
            "choose another --output."
        )
    return {}


def _limits(count, shards):
    """The index of the first image of each file, and the number of images."""
    return np.linspace(0, count, shards + 1).round().astype(int).tolist()


def _fingerprint(classify, labels):
    """A hash of a model's answers to some images: of the weights, and of all that changes them."""
    noise = np.random.default_rng(0).integers(0, 256, [96, 64, 3], np.uint8)
    jpeg = tf.io.encode_jpeg(noise).numpy()
    large, small = (tf.io.encode_png(image).numpy() for image in (noise, noise[:4, :4]))
    probes = [large, small, jpeg, jpeg[:2] + _SIDEWAYS + jpeg[2:]]
    answers = classify(tf.constant(probes))["probabilities"].numpy()
    return _digest([labels, answers.astype(np.float64).tolist()])


def _digest(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
