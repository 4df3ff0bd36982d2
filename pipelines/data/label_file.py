"""Reads the file of `--labels`: the names of a model's classes, in the order of its outputs."""

import json
import os

from pipelines.data.labels import is_unicode
from pipelines.errors import UserError

# ImageNet-21k's names have 0.5 MB.
_MOST_BYTES = 32 * 2**20


def read_label_file(path) -> tuple[str, ...]:
    """The names in a file: one per line or, if its name ends in .json, a JSON list; in UTF-8.

    Raises:
        UserError: if the file cannot be read, is too large or empty, or a name is empty or no text.
    """
    text = _read(path)
    if os.fspath(path).endswith(".json"):
        names = _json_list(text, path)
    else:
        names = [line.strip() for line in text.rstrip().split("\n")]
    if names in ([], [""]):
        raise UserError(
            f"--labels {path} is empty. Expected one name per line, or a JSON list in a .json file."
        )
    for place, name in enumerate(names, start=1):
        if not isinstance(name, str) or not name.strip() or not is_unicode(name):
            raise UserError(
                f"--labels {path}: name {place} is {str(name)[:80]!r}. Expected text, and no empty "
                "lines."
            )
    return tuple(names)


def check_count(labels, num_classes):
    """Raises `UserError` unless there is one name for each class."""
    if len(labels) != num_classes:
        raise UserError(
            f"--labels has {len(labels):,} names, the model has {num_classes:,} classes."
        )


def _json_list(text, path):
    try:
        names = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"--labels {path} is not a JSON list: {error}.") from None
    if not isinstance(names, list):
        raise UserError(f"--labels {path} is not a JSON list: it holds {type(names).__name__}.")
    return names


def _read(path):
    if not os.path.isfile(path):
        raise UserError(f"--labels {path} is not a file.")
    if os.path.getsize(path) > _MOST_BYTES:
        raise UserError(f"--labels {path} has more than {_MOST_BYTES // 2**20} MiB.")
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise UserError(f"Cannot read --labels {path}: {reason}.") from None
