"""Finds files that cannot be decoded by their first and last bytes (`data.scan`).

A file is decoded only if these bytes do not look like a whole image: a scan reads 2 kB of each good
file, and every file that it names cannot be decoded. A file that is damaged in the middle is not
found; `pipelines.batch --check` decodes all of them. 16-bit PNGs are decoded for their values.
"""

import functools
import logging
import os
from concurrent import futures
from typing import NamedTuple

import numpy as np

from pipelines.data.bad_images import NO_BYTES
from pipelines.data.decoding import NARROW, decode_error, is_deep, is_narrow
from pipelines.data.exif import is_turned
from pipelines.data.progress_lines import ProgressLines
from pipelines.data.sources.files import MAX_FILE_BYTES
from pipelines.data.sources.source import READERS, ROWS_PER_READ
from pipelines.errors import DataError, counted
from vit_tf.files import storage

_log = logging.getLogger(__name__)

# `data.scan=auto` scans at most this many files.
_MOST_FILES = 100_000
_END_BYTES = 1024
# 16-bit PNGs that a scan decodes: it reads their values, not only the ends of the files.
_MOST_DEEP = 1_000
# Bits for a pixel and compression, as a BMP stores them: uncompressed pixels of 8, 24 or 32 bits.
_BMP_KINDS = tuple(bytes([bits, 0, 0, 0, 0, 0]) for bits in (8, 24, 32))
# Files that the log names.
_MOST_NAMED = 100


def scan(sources, mode, is_skipping) -> str | None:
    """Scans the files of a run before its first step.

    Args:
        sources: `DataSource`s. Only files on local disks are scanned.
        mode: `data.scan`.
        is_skipping: whether images that cannot be decoded are left out; else they are an error.

    Returns:
        A sentence about the result; None if there is nothing to scan.

    Raises:
        DataError: if files cannot be decoded, after naming them in the log.
    """
    sources = [source for source in sources if _has_local_files(source)]
    total = sum(source.num_examples for source in sources)
    if not total or mode == "none":
        return None
    if mode == "auto" and total > _MOST_FILES:
        return (
            f"the {total:,} files are not scanned; data.scan=headers does it, and `python -m "
            "pipelines.batch --check` decodes them"
        )
    found = {each.name: each for source in sources for each in find_noted_files(source)}
    bad = {name: each.reason for name, each in found.items() if each.reason}
    turned = sum(each.is_turned for each in found.values())
    narrow = sum(each.is_narrow for each in found.values())
    files, note = counted(total, "file"), ""
    if turned:
        note = f"; {turned:,} with an EXIF orientation, see data.exif"
    if narrow:
        note += f"; {counted(narrow, '16-bit PNG')} with {NARROW}"
    if not bad:
        return f"scanned {files}: all begin and end as whole images{note}"
    if is_skipping:
        return f"scanned {files}: {len(bad):,} cannot be decoded (data.bad_images=skip){note}"
    for name, reason in list(bad.items())[:_MOST_NAMED]:
        _log.info(f"cannot be decoded: {name}: {reason}")
    named = "they are" if len(bad) <= _MOST_NAMED else f"the first {_MOST_NAMED} are"
    raise DataError(
        f"{len(bad):,} of {files} cannot be decoded; {named} named above. Remove or replace them, "
        "or leave them out: --set data.bad_images=skip."
    )


class NotedFile(NamedTuple):
    """A file that cannot be decoded, or about which a scan has something to say."""

    name: str
    reason: str | None  # why it cannot be decoded
    is_turned: bool
    is_narrow: bool  # 16 bits, and 8 bits keep little of them


def find_noted_files(source):
    """Yields the `NotedFile`s of a `DataSource`, each once; it reads 2 kB of the others."""
    seen, total = set(), source.num_examples
    examine = functools.partial(_examine, iter(range(_MOST_DEEP)))
    progress = ProgressLines(f"scanning the files of {source}", total)
    with futures.ThreadPoolExecutor(READERS) as readers:
        for start in range(0, total, ROWS_PER_READ):
            indices = np.arange(start, min(start + ROWS_PER_READ, total))
            ids = source.ids(indices).tolist()
            paths = source.locate(indices)["path"]
            for example_id, noted in zip(ids, readers.map(examine, paths), strict=True):
                if any(noted) and example_id not in seen:
                    seen.add(example_id)
                    yield NotedFile(source.describe(example_id), *noted)
            progress.show(int(indices[-1]) + 1)


def _has_local_files(source):
    return source.one_file_each and not storage.is_url(
        os.fsdecode(source.locate(np.arange(1))["path"][0])
    )


def _examine(deep, path):
    """`reason`, `is_turned` and `is_narrow` of a file, as far as its ends show.

    Args:
        deep: iterator with one element for each 16-bit PNG that may be decoded.
        path: the file.
    """
    if not path:
        return decode_error(b""), False, False
    if storage.is_url(os.fsdecode(path)):  # In a list of local files.
        return None, False, False
    try:
        with open(path, "rb") as file:
            if not (size := file.seek(0, os.SEEK_END)):
                return NO_BYTES, False, False
            file.seek(max(0, size - _END_BYTES))
            end = file.read(_END_BYTES)
            file.seek(0)
            start = file.read(_END_BYTES)
            file.seek(0)
            if not _is_whole(start, end, size):
                return decode_error(file.read(MAX_FILE_BYTES)), False, False
            looks = is_deep(start) and next(deep, None) is not None
            return None, is_turned(start), looks and is_narrow(file.read(MAX_FILE_BYTES))
    except OSError as error:
        return error.strerror, False, False


def _is_whole(start, end, size):
    """Whether a file begins and ends like a whole image."""
    if start.startswith(b"\xff\xd8\xff"):
        return b"\xff\xd9" in end  # Some cameras write more after the image.
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return b"IEND" in end
    if start.startswith((b"GIF87a", b"GIF89a")):
        return end.rstrip(b"\0").endswith(b";")
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return int.from_bytes(start[4:8], "little") + 8 <= size
    if start.startswith(b"BM"):  # Those of other kinds are not read.
        return int.from_bytes(start[2:6], "little") <= size and start[28:34] in _BMP_KINDS
    return False
