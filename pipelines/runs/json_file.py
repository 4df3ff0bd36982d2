"""Reads and writes JSON objects in files, which may be missing or damaged."""

import json
import os

from pipelines.errors import UserError
from vit_tf.files.atomic_file import write_atomically
from vit_tf.files.json_object import read_json_object


def read_json(path) -> dict:
    """Returns the JSON object in a file.

    Raises:
        UserError: if the file cannot be read, is too large or does not hold a JSON object.
    """
    try:
        values = read_json_object(path, "Restore or delete it.")
    except ValueError as error:
        raise UserError(str(error)) from None
    if values is None:
        raise UserError(f"Cannot read {os.fspath(path)}: there is no such file.")
    return {name: values.raw(name) for name in values}


def write_json(path, value):
    """Writes JSON atomically."""
    text = json.dumps(value, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
