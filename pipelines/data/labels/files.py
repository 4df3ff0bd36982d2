"""Reads files that list classes: of `--labels` and `--label_map`."""

import io
import json
import os

from pipelines.errors import UserError
from vit_tf.files import storage

# The names of ImageNet-21k's 21,843 classes have 0.5 MB.
_MOST_BYTES = 32 * 2**20


def read_class_file(path, flag, types, forms):
    """The lines of a UTF-8 text file, without spaces around them; or the value of a `.json` file.

    Only newlines end a line. Empty lines at the end are left out.

    Args:
        path: the file.
        flag: the flag that named it, for messages.
        types: the types of a JSON value, such as `list`, as for `isinstance`.
        forms: sentence about the forms of the file, for messages.

    Raises:
        UserError: if the file cannot be read, is too large, or holds something else.
    """
    named = f"{flag} {os.fspath(path)}"
    if not storage.is_file(path):
        raise UserError(f"{named} is not a file. {forms}")
    if storage.size_and_time(path)[0] > _MOST_BYTES:
        raise UserError(f"{named} has more than {_MOST_BYTES // 2**20} MiB. {forms}")
    try:
        text = io.TextIOWrapper(io.BytesIO(storage.read(path, _MOST_BYTES)), "utf-8-sig").read()
    except OSError as error:
        raise UserError(f"Cannot read {named}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{named} is not UTF-8 text. {forms}") from None
    if not os.fspath(path).endswith(".json"):
        return [line.strip() for line in text.rstrip().split("\n")]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{named} is not JSON: {error}. {forms}") from None
    if not isinstance(value, types):
        raise UserError(f"{named} holds {type(value).__name__}. {forms}")
    return value
