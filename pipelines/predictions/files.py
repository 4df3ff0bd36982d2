"""Writes results as files, which appear whole; an interrupted call goes on where it ended.

`FILE.partial` is a folder beside the file, with one writer:

    state.json     what is predicted, and the number of images of each part
    part-...       the lines of consecutive images, named after the index of the first

A part is written every few seconds, at the end of a shard and at a signal, then the state: parts
that it does not count, or that are gone, are written again. Batches begin at the same images in
every call, so the bytes do not depend on interruptions. At the end the parts are joined.
"""

import bisect
import contextlib
import hashlib
import itertools
import json
import logging
import os
import time
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from pipelines.distribution.signals import Signals
from pipelines.errors import Interrupted, UserError
from pipelines.predictions import formats, results
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.lock import LOCKS, only_writer
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
        _check_folder(self.partial)
        state = None if self.overwrite else _read_state(self.partial)
        may_exist = self.overwrite or (state is not None and state["joining"])
        for path in self.paths:
            if storage.is_folder(path):
                raise UserError(f"--output {path} is a folder. Name a file.")
            if storage.exists(path) and not may_exist:
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
        if not (parts.are_complete and parts.done == images.source.num_examples):
            top = min(top, len(labels))
            _write_parts(parts, output, images, classify, labels, top, batch_size)
        return parts.join(min(top, len(labels)), images.source.num_examples)


def _write_parts(parts, output, images, classify, labels, top, batch_size):
    """Writes all parts that are missing."""
    count, done = images.source.num_examples, parts.done
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

    Raises:
        UserError: if the folder is something else, is damaged, or holds parts of another request.
    """

    def __init__(self, output, request, check_writer):
        self._output, self._check_writer = output, check_writer
        self._state = self._begun(request) or {"request": request, "parts": [], "joining": False}
        there = set(storage.list_names(output.partial))
        whole = itertools.takewhile(there.__contains__, self._names())
        self._state["parts"] = self._state["parts"][: sum(1 for _ in whole)]
        self._save()
        for name in there.difference(self._names()):
            if name.startswith(_PART):
                storage.remove(storage.join(output.partial, name))

    @property
    def done(self) -> int:
        """Number of images in all parts."""
        return sum(part["count"] for part in self._state["parts"])

    @property
    def are_complete(self) -> bool:
        """Whether nothing is left but to join them, of which some may be done."""
        return self._state["joining"]

    def add(self, lines, found):
        """Writes the lines of the next results."""
        self._check_writer()
        errors = [result["error"] for result in found if "error" in result]
        part = {"count": len(found), "failed": len(errors), "error": next(iter(errors), "")}
        path = storage.join(self._output.partial, _part_name(self.done))
        write_atomically(path, lambda file: file.write(lines))
        self._state["parts"].append(part)
        self._save()

    def join(self, top, count) -> Written:
        """Makes the files of all parts, and deletes the folder."""
        self._state["joining"] = True
        self._save()
        output, names, starts = self._output, list(self._names()), list(self._starts())
        shards = zip(output.paths, itertools.pairwise(_limits(count, output.shards)), strict=True)
        for path, limits in shards:
            first, end = (bisect.bisect_left(starts, limit) for limit in limits)
            own = [storage.join(output.partial, name) for name in names[first:end]]
            self._check_writer()
            _join(path, formats.header(formats.suffix(path), top), own, output.partial)
        parts = self._state["parts"]
        error = next((part["error"] for part in parts if part["error"]), "")
        written = Written(count, sum(part["failed"] for part in parts), error)
        # First the state: without it, what a crash leaves counts for nothing.
        storage.remove(storage.join(output.partial, _STATE))
        storage.remove_folder(output.partial)
        return written

    def _begun(self, request):
        """The state of an earlier call; None without one, or if it is replaced."""
        output = self._output
        _check_folder(output.partial)
        if output.overwrite:
            with contextlib.suppress(UserError):
                if (state := _read_state(output.partial)) and state["request"] == request:
                    return state
            return None
        state = _read_state(output.partial)
        if state is not None:
            differing = [x for x in request if state["request"].get(x) != request[x]]
            if differing:
                raise UserError(
                    f"{output.partial} holds the beginning of other predictions, with other "
                    f"{', '.join(differing)}. Repeat that command to finish them, or start over "
                    "with --overwrite."
                )
        return state

    def _starts(self):
        """The index of the first image of each part."""
        counts = [part["count"] for part in self._state["parts"]]
        return itertools.accumulate([0, *counts[:-1]]) if counts else []

    def _names(self):
        return map(_part_name, self._starts())

    def _save(self):
        self._check_writer()
        write_json(storage.join(self._output.partial, _STATE), self._state)


def _part_name(start):
    return f"{_PART}{start:012}"


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


def _check_folder(partial):
    """Raises `UserError` if a folder for unfinished results is something else."""
    if not storage.exists(partial):
        return
    names = storage.list_names(partial) if storage.is_folder(partial) else [partial]
    if any(name not in LOCKS and not name.startswith((_STATE, _PART, _WHOLE)) for name in names):
        raise UserError(
            f"{partial} would hold unfinished results, but is something else. Move it away, or "
            "choose another --output."
        )


def _read_state(partial):
    """The state in a folder of unfinished results; None if it has none.

    Raises:
        UserError: if it is damaged.
    """
    path = storage.join(partial, _STATE)
    if not storage.exists(path):
        return None
    state = read_json(path)
    if not _is_state(state):
        raise UserError(f"{path} is damaged. Delete {partial}, or start over with --overwrite.")
    return state


def _is_state(state):
    kinds = {"request": dict, "parts": list, "joining": bool}
    part_kinds = {"count": int, "failed": int, "error": str}
    return _has(state, kinds) and all(_has(part, part_kinds) for part in state["parts"])


def _has(value, kinds):
    """Whether a value is a dictionary of just these names and types."""
    return isinstance(value, dict) and kinds == {name: type(x) for name, x in value.items()}


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
