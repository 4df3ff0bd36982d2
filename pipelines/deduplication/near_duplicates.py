"""Near-duplicates between training images and test images, and the list of those to leave out.

The paper removes near-duplicates of all test images from its pre-training data, as BiT did (section
4.1); the detector is not published. This one compares perceptual hashes and embeddings.
"""

import csv
import dataclasses
import io
import logging
import os
import re

import numpy as np

from pipelines.config.data import Data
from pipelines.config.fields import check_local
from pipelines.data.exclusion import exclusion
from pipelines.data.labels.rules import RULES
from pipelines.data.sources.open import open_source, split_names, with_splits
from pipelines.deduplication import page
from pipelines.deduplication.buckets import Buckets, sorted_rows
from pipelines.deduplication.index import PLAIN, UNREADABLE, Index
from pipelines.deduplication.pairs import (
    NO_DISTANCE,
    Hashes,
    Searcher,
    near_by_hash,
    view_distances,
)
from pipelines.deduplication.perceptual_hash import hashes_of_files
from pipelines.errors import Interrupted, UserError, counted
from pipelines.predictions.images import find_images
from pipelines.runs.json_file import write_json
from vit_tf.files import storage
from vit_tf.files.atomic_file import write_atomically
from vit_tf.images import image_file

_log = logging.getLogger(__name__)

RECORD, PAIRS, EXCLUDE, INDEX = "dedup.json", "pairs.csv", "exclude.json", "index"
# Encoded images in memory at a time.
_ROWS = 256
# More than this share of at least so many images: near hashes say little then.
_MOST, _FEW = 0.5, 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What counts as a near-duplicate, and what the page shows.

    Attributes:
        most_bits: hashes that differ in at most so many of their 64 bits are near.
        least_cosine: embeddings with at least this cosine are near.
        show: picture pairs of each query on the page.
    """

    most_bits: int = 10
    least_cosine: float = 0.9
    show: int = 40


def near_duplicates(reference_folder, query_folder, max_distance=10):
    """The images of two folders whose perceptual hashes are near.

    Parts and mirror images are compared too, see `perceptual_hash`. Files that cannot be decoded,
    and images of one color, which have no hash, are left out; the log says how many.

    Args:
        reference_folder, query_folder: folders, or URLs, with images at any depth.
        max_distance: the most bits of 64 in which the nearest hashes of a pair differ, from 0.

    Returns:
        A list of `(query path, reference path, distance)`, sorted by query path, distance and
        reference path.

    Raises:
        UserError: if a folder does not exist or holds no image, or the distance is negative.
    """
    if max_distance < 0:
        raise UserError(f"max_distance={max_distance} is negative. Expected a number of bits.")
    references, reference = _hashed_files(reference_folder)
    queries, query = _hashed_files(query_folder)
    own, rows = near_by_hash(query, reference, max_distance)
    distances = view_distances(query.views, reference.views, own, rows).min(axis=0)
    pairs = zip(own.tolist(), rows.tolist(), distances.tolist(), strict=True)
    found = [(queries[one], references[other], distance) for one, other, distance in pairs]
    return sorted(found, key=lambda pair: (pair[0], pair[2], pair[1]))


def _hashed_files(folder):
    """The paths below a folder whose images have a hash, and their `Hashes`."""
    images = find_images([os.fspath(folder)])
    if images[0].error and images[0].path == os.fspath(folder):
        raise UserError(images[0].error)
    paths, hashes = [], []
    for start in range(0, len(images), _ROWS):
        part = images[start : start + _ROWS]
        own, _, is_hashed = hashes_of_files([_content(image) for image in part])
        paths += [image.path for image, good in zip(part, is_hashed, strict=True) if good]
        hashes.append(own[:, is_hashed])
    if left_out := len(images) - len(paths):
        _log.info(
            f"{folder}: {left_out:,} of {counted(len(images), 'image')} are left out: they cannot "
            "be decoded, or have one color"
        )
    views = np.concatenate(hashes, axis=1)
    return paths, Hashes(views, np.arange(len(paths)), Buckets(views[0], sorted_rows(views[0])))


def _content(image):
    try:
        return b"" if image.error else image_file.read_bytes(image.path)
    except ValueError:
        return b""


def open_named(text, data_dir, *, is_query):
    """Opens the `DataSource` that --reference or --query names.

    Args:
        text: a name as for `data.name`; a split may follow behind the last "@". Without one, a
            reference takes its training split and a query its evaluation split, and both take the
            split of a data set with only one.
        data_dir: folder of prepared TFDS data sets, or where relative paths start; or None.
        is_query: which of both it is.

    Raises:
        DataError: as `open_source`, and if the data set has no such split.
    """
    name, at, split = text.rpartition("@")
    if not at or "/" in split:  # No split has a slash, but a path may have an "@".
        name, split = text, ""
    if not split:
        names = split_names(name, data_dir)
        data = Data(name=name, data_dir=data_dir)
        if len(names) == 1:
            split = names[0]
        elif is_query:
            data = dataclasses.replace(data, train_split="train")
            split = with_splits(data, training=False)[0].eval_split
        else:
            data = dataclasses.replace(data, eval_split=None)
            split = with_splits(data, evaluation=False)[0].train_split
    # Any label will do, but where there are several rules, one has to be chosen.
    rules = RULES.get(re.split("[/:]", name)[0], {})
    return open_source(name, split, data_dir, next(iter(rules), None))


def check_output(output):
    """Raises `UserError` unless the folder is new, empty, or has the files of an earlier call."""
    check_local("--output", output)
    if not storage.exists(output):
        return
    if not storage.is_folder(output):
        raise UserError(f"--output {output} is a file. Name a directory.")
    names = storage.list_names(output)
    if names and not {RECORD, INDEX} & set(names):
        raise UserError(
            f"--output {output} is not empty, and has no {RECORD} of an earlier search. Name "
            "another directory."
        )


def run(
    reference, queries, settings, output, *, embedder=None, check=lambda: None, on=None
) -> dict:
    """Searches a reference for near-duplicates of queries, and writes all files.

    Args:
        reference: `DataSource` of the training images.
        queries: `DataSource`s of test images.
        settings: `Settings`.
        output: local folder.
        embedder: `embeddings.Embedder`, or None to compare hashes only.
        check: called again and again. It may raise `Interrupted`; then the next call goes on.
        on: see `Index.fill`.

    Returns:
        The content of `dedup.json`: "reference" and "queries", dicts with data, images, unreadable
        and plain; of a query also with_duplicates (its images that have some), reference_images
        (images of the reference that are some), pairs, and how many of them are mirrored and of
        parts; "excluded"; "model", "max_distance" and "min_cosine", None without a model.

    Raises:
        UserError, DataError, RunError: as `Index.fill`.
        Interrupted: from `check`.
    """
    folder = os.path.join(output, INDEX)

    def stop_if_asked():
        try:
            check()
        except Interrupted:
            raise Interrupted(
                f"Interrupted. Start the same command again: it goes on with the index in {folder}."
            ) from None

    searched = Index(reference, folder, embedder).fill(stop_if_asked, on)
    searcher = Searcher(searched, settings.most_bits, settings.least_cosine)
    found, rows = [], [np.zeros(0, np.int64)]
    for source in queries:
        query = Index(source, folder, embedder, is_query=True).fill(stop_if_asked, on)
        pairs = searcher.pairs(query, stop_if_asked, on and on[0])
        found.append((query, pairs))
        rows.append(pairs.reference)
        _log.info(
            f"{source}: {len(np.unique(pairs.query)):,} of {counted(source.num_examples, 'image')} "
            f"have near-duplicates among the {reference.num_examples:,} of {reference}"
        )
        if warning := _too_alike(pairs, source, settings.most_bits):
            _log.warning(f"warning: {warning}")
    excluded = np.unique(np.concatenate(rows))
    record = {
        "reference": _counts(searched),
        "queries": [_counts(query) | _pair_counts(pairs) for query, pairs in found],
        "excluded": len(excluded),
        "model": embedder.name if embedder else None,
        "max_distance": settings.most_bits,
        "min_cosine": settings.least_cosine if embedder else None,
    }
    ids = np.unique(reference.ids(excluded))
    write_json(os.path.join(output, EXCLUDE), exclusion(reference, ids))
    _write_pairs(os.path.join(output, PAIRS), reference, found)
    page.write(output, record, reference, found, settings.show)
    write_json(os.path.join(output, RECORD), record)
    return record


def _too_alike(pairs, source, most_bits):
    """A sentence if so many images have near-duplicates that most pairs are none; else None."""
    found, count = len(np.unique(pairs.query)), source.num_examples
    if count < _FEW or found <= _MOST * count:
        return None
    return (
        f"{found / count:.0%} of the images of {source} have near-duplicates. Unless the data sets "
        f"share these images, they are too small or too alike for --max_distance={most_bits}: look "
        "at the page, and lower --max_distance, or compare features too with --model."
    )


def _counts(index):
    states = np.asarray(index.states)
    return {
        "data": str(index.source),
        "images": len(states),
        "unreadable": int(np.sum(states == UNREADABLE)),
        "plain": int(np.sum(states == PLAIN)),
    }


def _pair_counts(pairs):
    return {
        "with_duplicates": len(np.unique(pairs.query)),
        "reference_images": len(np.unique(pairs.reference)),
        "pairs": len(pairs.query),
        "mirrored": int(np.sum(pairs.is_mirrored)),
        "parts": int(np.sum(pairs.is_part_of_query | pairs.is_part_of_reference)),
    }


def _write_pairs(path, reference, found):
    """Writes a table with a row for each pair."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["query", "reference", "distance", "cosine", "mirrored", "part_of"])
    for query, pairs in found:
        queries, references = query.source.ids(pairs.query), reference.ids(pairs.reference)
        parts = np.where(pairs.is_part_of_query, "query", "")
        parts = np.where(pairs.is_part_of_reference, "reference", parts)
        columns = pairs.distance, pairs.cosine, pairs.is_mirrored, parts
        for own, other, distance, cosine, is_mirrored, part in zip(
            queries.tolist(), references.tolist(), *columns, strict=True
        ):
            table.writerow(
                [
                    query.source.describe(own),
                    reference.describe(other),
                    "" if distance == NO_DISTANCE else int(distance),
                    "" if np.isnan(cosine) else f"{cosine:.4f}",
                    str(bool(is_mirrored)).lower(),
                    part,
                ]
            )
    content = text.getvalue().encode("utf-8", "replace")
    write_atomically(path, lambda file: file.write(content))


def text(record, output) -> str:
    """The result of `run` as lines for a terminal."""
    lines = [f"reference {_described(record['reference'])}"]
    for query in record["queries"]:
        lines += [
            f"query {_described(query)}",
            f"  {counted(query['with_duplicates'], 'image')} with near-duplicates: "
            f"{counted(query['pairs'], 'pair')}, {query['mirrored']:,} of them mirrored and "
            f"{query['parts']:,} with a part of an image, with "
            f"{counted(query['reference_images'], 'image')} of the reference",
        ]
    exclude = os.path.join(output, EXCLUDE)
    return "\n".join(
        [
            *lines,
            f"{counted(record['excluded'], 'training image')} to leave out: "
            f"--set data.exclude={exclude}",
            f"page: {os.path.join(output, page.PAGE)}",
        ]
    )


def _described(counts):
    notes = [f"{counts[name]:,} {name}" for name in ("unreadable", "plain") if counts[name]]
    return f"{counts['data']}: {counted(counts['images'], 'image')}" + "".join(
        f", {note}" for note in notes
    )
