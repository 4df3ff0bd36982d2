"""JSON objects on disk, which may be missing or damaged."""

import json

from pipelines.errors import UserError
from vit_tf.checkpoints.atomic_file import write_atomically


def read_json(path) -> dict:
    """The JSON object in a file.

    Raises:
        UserError: if the file cannot be read or holds anything else.
    """
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}). Restore or delete it.") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object. Restore or delete it.")
    return value


def write_json(path, value):
    """Writes JSON, all of it or nothing."""
    text = json.dumps(value, indent=1) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))
