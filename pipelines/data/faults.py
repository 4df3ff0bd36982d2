"""Checks a data set: decodes every image, finds faults of its folders or list, and equal files."""

import collections
import hashlib
from typing import Any

import numpy as np
import tensorflow as tf

from pipelines.data.bad_images import find_bad_images
from pipelines.data.decoding import NARROW, decoded_sizes, is_narrow
from pipelines.data.exif import is_turned
from pipelines.data.labels.class_sizes import size_warnings
from pipelines.data.progress_lines import ProgressLines
from pipelines.data.skipped_files import describe_skipped, skipped_files
from pipelines.data.sources.files import FileRules
from pipelines.data.sources.open import choose_splits, open_split, split_names
from pipelines.data.sources.source import DataSource
from pipelines.errors import DataError, counted

# Encoded images in memory at a time.
_ROWS = 128
# Lines of one kind that the text shows; JSON has all.
_MOST_LINES = 20


def open_sources(data) -> tuple[list[DataSource], list[str]]:
    """Opens the splits of training and evaluation in spite of faults of the folders or the list.

    Args:
        data: `config.data.Data`.

    Returns:
        The `DataSource`s, and a sentence about each fault.

    Raises:
        DataError: if no split can be opened.
    """
    faults = []
    names = split_names(data.name, data.data_dir, FileRules(fault=faults.append))
    try:
        data = choose_splits(data, evaluation=False, names=names)
        splits = [data.train_split, data.eval_split]
    except DataError as error:
        faults.append(str(error))
        splits = names
    sources = []
    for split in filter(None, splits):
        try:
            sources.append(open_split(data, split, faults.append))
        except DataError as error:
            faults.append(str(error))
    faults = [*dict.fromkeys(faults)]
    if not sources:
        raise DataError(" ".join(faults))
    return sources, faults


def find_faults(sources, faults=()) -> dict:
    """Reads and decodes every image of some splits.

    Args:
        sources: `DataSource`s of one data set; the first is for training, the second, if there
            is one, of evaluation.
        faults: sentences about faults of the folders or the list.

    Returns:
        Dict that JSON can hold. faults: those. splits: for each source its name, number of images,
        images of each class by name (an example with several labels counts for each), and the
        smallest, median and largest shorter side of the images in pixels. unreadable: name and
        reason. sideways: names of JPEGs whose EXIF orientation is not 1. narrow: names of 16-bit
        PNGs whose values are so near to each other that little is left of them, see `is_narrow`.
        equal: groups of files with the same bytes, each with names, classes and splits. skipped:
        the number of files that are no images, by suffix. warnings: see `size_warnings`.

    Raises:
        DataError: if the files cannot be read.
    """
    report: dict[str, Any] = {"faults": [*faults], "splits": []}
    report |= {"unreadable": [], "sideways": [], "narrow": []}
    twins = collections.defaultdict(list)
    for source in sources:
        counts, sides = collections.Counter(), []
        progress = ProgressLines(f"decoding {source}", source.num_examples)
        for start in range(0, source.num_examples, _ROWS):
            indices = np.arange(start, min(start + _ROWS, source.num_examples))
            images, labels, ids = source.read(indices)
            shapes, valid = (x.numpy() for x in decoded_sizes(tf.constant(images)))
            names = [_name(source, example_id) for example_id in ids]
            sides += shapes[valid].min(axis=1).tolist()
            for bad in find_bad_images(source, indices[~valid], are_known=True):
                name = _name(source, bad.id)
                report["unreadable"].append({"name": name, "reason": bad.reason})
            for name, image, label in zip(names, images, labels, strict=True):
                classes = [source.labels[each] for each in np.atleast_1d(label)]
                counts.update(classes)
                if is_turned(image):
                    report["sideways"].append(name)
                if is_narrow(image):
                    report["narrow"].append(name)
                if image:
                    digest = hashlib.blake2b(image, digest_size=16).digest()
                    twins[digest].append((name, classes, source.split))
            progress.show(int(indices[-1]) + 1)
        report["splits"].append(_split(source, counts, sides))
    report["equal"] = [
        dict(zip(("names", "classes", "splits"), map(list, zip(*group, strict=True)), strict=True))
        for group in twins.values()
        if len({name for name, *_ in group}) > 1
    ]
    report["skipped"] = skipped_files(sources)
    report["warnings"] = size_warnings(*sources) if len(sources) == 2 else []
    return report


def _name(source, example_id):
    """The name of an example; the report names the data set once."""
    return source.describe(int(example_id)).removesuffix(f" of {source.name}")


def _split(source, counts, sides):
    smallest, median, largest = np.percentile(sides, [0, 50, 100]).tolist() if sides else [0] * 3
    return {
        "split": str(source),
        "images": source.num_examples,
        "classes": {label: counts[label] for label in source.labels},
        "shorter_side": {"smallest": smallest, "median": median, "largest": largest},
    }


def format_faults(report) -> str:
    """Returns the result of `find_faults` as text."""
    lines = []
    for split in report["splits"]:
        sizes = sorted(split["classes"].items(), key=lambda item: -item[1])
        side = split["shorter_side"]
        lines += [
            f"{split['split']}: {counted(split['images'], 'image')} of {len(sizes):,} classes",
            f"  shorter side: {side['smallest']:,.0f} to {side['largest']:,.0f} pixels, median "
            f"{side['median']:,.0f}",
            *_shown([f"{name}: {count:,}" for name, count in sizes]),
        ]
    lines += _part("faults of the folders or the list", report["faults"])
    unreadable = [f"{bad['name']}: {bad['reason']}" for bad in report["unreadable"]]
    lines += _part("images that cannot be decoded", unreadable)
    lines += _part(
        "images with an EXIF orientation, which data.exif=apply turns", report["sideways"]
    )
    if report["narrow"]:
        lines += _part(f"16-bit PNGs with {NARROW}", report["narrow"])
    lines += _part("groups of equal files", [_equal(group) for group in report["equal"]])
    if report["skipped"]:
        lines.append(describe_skipped(report["skipped"]))
    lines += report["warnings"]
    return "\n".join(lines)


def _equal(group):
    classes = {tuple(names) for names in group["classes"]}
    notes = ["different classes"] * (len(classes) > 1)
    notes += ["different splits"] * (len(set(group["splits"])) > 1)
    return " = ".join(group["names"]) + f" ({', '.join(notes)})" * bool(notes)


def _part(heading, found):
    return [f"{heading}: {len(found):,}", *_shown(sorted(found))]


def _shown(lines):
    shown = [f"  {line}" for line in lines[:_MOST_LINES]]
    left = len(lines) - len(shown)
    return shown + [f"  and {left:,} more; --json has all"] * bool(left)
