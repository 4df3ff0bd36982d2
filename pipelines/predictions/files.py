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
import itertools
import logging
import os
import time
from typing import NamedTuple

import numpy as np

from pipelines.data.progress_lines import ProgressLines
from pipelines.distribution.engine.jobs import blocks
from pipelines.distribution.signals import Signals
from pipelines.errors import Interrupted, UserError, WorkerError
from pipelines.predictions import formats, job, parquet, results
from pipelines.runs.json_file import read_json, write_json
from pipelines.runs.lock import LOCKS, only_writer
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically

_log = logging.getLogger(__name__)

# Seconds of work that a crash may cost.
_PART_SECONDS = 10.0
_STATE, _PART, _WHOLE = "state.json", "part-", "whole"
# Suffix of a file of embeddings -> its format.
_EMBEDDINGS = {formats.ARRAY: formats.Embeddings, parquet.PARQUET: parquet.EmbeddingTable}


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
        path: the path or URL that the user names. Beside a .npy file is a table of its rows.
        shards: number of files.
        overwrite: whether existing ones are replaced.
        flag: the flag that names the path, for messages.
    """

    path: str
    shards: int = 1
    overwrite: bool = False
    flag: str = "--output"

    @property
    def paths(self) -> list[str]:
        """The path of each file, without the tables beside .npy files."""
        return [paths[0] for paths in self.files]

    @property
    def files(self) -> list[list[str]]:
        """The paths of the files of each shard."""
        stem, suffix = os.path.splitext(self.path)
        suffixes = [suffix, ".csv"] if suffix.lower() == formats.ARRAY else [suffix]
        numbers = [f"-{i:05}-of-{self.shards:05}" for i in range(self.shards)]
        return [[stem + x + y for y in suffixes] for x in (numbers if self.shards > 1 else [""])]

    @property
    def partial(self) -> str:
        """The folder that holds what is done until the end."""
        return f"{self.path}.partial"

    def check(self):
        """Checks the names, before anything is computed.

        Raises:
            UserError: if the format is unknown, or a file is there and is not to be replaced.
        """
        known = _EMBEDDINGS if self.flag == "--embed" else formats.SUFFIXES
        if formats.suffix(self.path, known, self.flag) == parquet.PARQUET:
            parquet.check_installed(self.path, self.flag)
        _check_folder(self.partial, self.flag)
        state = None if self.overwrite else _read_state(self.partial)
        may_exist = self.overwrite or (state is not None and state["joining"])
        for path in itertools.chain.from_iterable(self.files):
            if storage.is_folder(path):
                raise UserError(f"{self.flag} {path} is a folder. Name a file.")
            if storage.exists(path) and not may_exist:
                raise UserError(
                    f"{self.flag} {path} is already there. Choose another name, or replace it with "
                    "--overwrite."
                )


def write(output, images, model, *, batch_size=results.BATCH_SIZE, on=None) -> Written:
    """Applies a model to images and writes the results; each file gets consecutive images.

    Args:
        output: `Output`.
        images, model, batch_size: see `results.in_batches`.
        on: an engine, such as `ray_engine.RayEngine`, and the function that opens the model in its
            processes; None computes in this one.

    Raises:
        UserError: if the files cannot be written, or another call's files are not complete.
        InUseError: if another process writes them.
        Interrupted: after a signal.
        WorkerError: if the engine was lost.
    """
    kind = formats.suffix(output.path, (*formats.SUFFIXES, *_EMBEDDINGS))
    if kind in _EMBEDDINGS:
        form = _EMBEDDINGS[kind](model.size)
    else:
        form = formats.Predictions(kind, model.size)
    request = {
        "--model": job.fingerprint(model),
        "images": job.digest([images.source.manifest(), images.source.content_stamp()]),
        **({} if kind in _EMBEDDINGS else {"--top": model.top}),
        "--shards": output.shards,
        "--batch_size": batch_size,
    }

    def compute(ranges, check):
        if on is None:
            found = results.in_batches(images, model, batch_size=batch_size, ranges=ranges)
            return (job.to_rows(batch, form) for batch in found)
        engine, open_model = on
        digest = request["--model"]
        work = job.Predicting(images, open_model, form, batch_size, digest, engine.cores)
        return _with_progress(engine.map(work, blocks(ranges, batch_size), check), images, ranges)

    with only_writer(output.partial, output.flag) as check_writer:
        output.check()
        parts = _Parts(output, request, check_writer)
        count = images.source.num_examples
        if not (parts.are_complete and parts.done == count):
            _write_parts(parts, output, count, compute)
        return parts.join(form, count)


def _with_progress(found, images, ranges):
    """The same, with lines about the progress as `results.in_batches` has them."""
    total, done = sum(stop - start for start, stop in ranges), 0
    progress = ProgressLines(f"predicting {images.source}", total)
    for rows in found:
        yield rows
        done += rows.count
        progress.show(done)


def _write_parts(parts, output, count, compute):
    """Writes all parts that are missing.

    Args:
        parts: `_Parts`.
        output: `Output`.
        count: number of images.
        compute: a function of ranges of images, and of a function that it calls now and then;
            yields `Rows` that follow each other; none crosses the end of a range.
    """
    done = parts.done
    if done:
        _log.info(f"going on with {output.partial}: {done:,} of {count:,} images are done")
    limits = _limits(count, output.shards)
    ranges = [(max(start, done), stop) for start, stop in itertools.pairwise(limits) if stop > done]
    ends, waiting, begun = set(limits), [], time.monotonic()
    with Signals() as signals:
        try:
            for rows in compute(ranges, signals.check):
                waiting.append(rows)
                done += rows.count
                signals.check()
                if done in ends or time.monotonic() - begun >= _PART_SECONDS:
                    parts.add(job.joined(waiting))
                    waiting, begun = [], time.monotonic()
        except (Interrupted, WorkerError) as received:
            if waiting:
                parts.add(job.joined(waiting))
            if isinstance(received, WorkerError):
                raise
            raise Interrupted(
                f"{received}: {done:,} of {count:,} images are done. Start the same command "
                "again to go on."
            ) from None


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
        # The table beside or around an array has parts of its own.
        is_embeddings = os.path.splitext(output.path)[1].lower() in _EMBEDDINGS
        self._ends = ["", ".csv"] if is_embeddings else [""]
        there = set(storage.list_names(output.partial))
        whole = itertools.takewhile(there.issuperset, self._names())
        self._state["parts"] = self._state["parts"][: sum(1 for _ in whole)]
        self._save()
        for name in there.difference(*self._names()):
            if name.startswith(_PART):
                storage.remove(storage.join(output.partial, name))

    @property
    def done(self) -> int:
        """Number of images in all parts."""
        return sum(part["count"] for part in self._state["parts"])

    @property
    def are_complete(self) -> bool:
        """Whether only joining is left; some parts may be joined already."""
        return self._state["joining"]

    def add(self, rows):
        """Writes the next `Rows`."""
        self._check_writer()
        for name, content in zip(self._part_names(self.done), rows.contents, strict=True):
            path = storage.join(self._output.partial, name)
            write_atomically(path, lambda file, content=content: file.write(content))
        part = {"count": rows.count, "failed": rows.failed, "error": rows.error}
        self._state["parts"].append(part)
        self._save()

    def join(self, form, count) -> Written:
        """Makes the files of all parts in a format, and deletes the folder."""
        self._state["joining"] = True
        self._save()
        output, names, starts = self._output, list(self._names()), list(self._starts())
        shards = zip(output.files, itertools.pairwise(_limits(count, output.shards)), strict=True)
        for paths, limits in shards:
            first, end = (bisect.bisect_left(starts, limit) for limit in limits)
            # A shard without images has no parts.
            columns = [*zip(*names[first:end], strict=True)] or [()] * len(self._ends)
            columns = [[storage.join(output.partial, name) for name in own] for own in columns]
            writers = form.writers(columns, limits[1] - limits[0])
            for path, write_content in zip(paths, writers, strict=True):
                self._check_writer()
                _write_whole(path, write_content, output.partial)
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
        _check_folder(output.partial, output.flag)
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
        """The names of the files of each part."""
        return map(self._part_names, self._starts())

    def _part_names(self, start):
        return [f"{_PART}{start:012}{end}" for end in self._ends]

    def _save(self):
        self._check_writer()
        write_json(storage.join(self._output.partial, _STATE), self._state)


def _write_whole(path, write_content, partial):
    """Writes a file by way of the folder `partial`."""
    if storage.is_url(path):
        write_atomically(path, write_content)
        return
    # In the folder, so that a crash leaves nothing beside the file.
    whole = storage.join(partial, _WHOLE)
    write_atomically(whole, write_content)
    os.replace(whole, path)


def _check_folder(partial, flag):
    """Raises `UserError` if a folder for unfinished results is something else."""
    if not storage.exists(partial):
        return
    names = storage.list_names(partial) if storage.is_folder(partial) else [partial]
    if any(name not in LOCKS and not name.startswith((_STATE, _PART, _WHOLE)) for name in names):
        raise UserError(
            f"{partial} would hold unfinished results, but is something else. Move it away, or "
            f"choose another {flag}."
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
