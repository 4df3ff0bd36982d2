"""Which files in folders are not read; counts files that are no images, so that none is lost."""

import collections
import os


def is_hidden(name) -> bool:
    """Whether a file or folder is not looked at inside of folders: `._1.jpg` of macOS, `.cache`."""
    return name.startswith(".") or name == "__MACOSX"


def count_by_suffix(paths) -> dict[str, int]:
    """The number of files by suffix in lower case."""
    ends = (os.path.splitext(path)[1].lower() for path in paths)
    return dict(collections.Counter(end or "without suffix" for end in ends))


def skipped_files(sources) -> dict[str, int]:
    """The number of files that are no images by suffix, in the splits of some `DataSource`s."""
    by_split = {split: counts for source in sources for split, counts in source.skipped().items()}
    total = collections.Counter()
    for counts in by_split.values():
        total.update(counts)
    return dict(total)


def describe_skipped(counts) -> str:
    """A line about files that are not read, from their number by suffix."""
    shown = ", ".join(f"{count:,} {end}" for end, count in counts.items())
    return f"files that are not read: {shown}"
