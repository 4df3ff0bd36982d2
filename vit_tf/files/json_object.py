"""Untrusted JSON files: read key by key, each value checked before it is used."""

import json
import math
import os
import reprlib

from vit_tf.files import storage

# The largest known files list 21,843 labels with descriptions, about 3 MB.
_MOST_BYTES = 32 * 2**20


class JsonObject:
    """A JSON object whose values are read with a given type; null counts as absent.

    Args:
        path: the file, for messages.
        values: the object.
        prefix: text before names in messages, such as "model_args.".
    """

    def __init__(self, path, values, prefix=""):
        self.path = path
        self._values = values
        self._prefix = prefix

    def __contains__(self, name):
        return self._values.get(name) is not None

    def __iter__(self):
        return iter(self._values)

    def error(self, name, expected, advice="Correct the file, or download it again."):
        """The `ValueError` for a value that cannot be used."""
        value = reprlib.repr(self._values.get(name))
        return ValueError(
            f"{self.path}: {self._prefix}{name} is {value}. Expected {expected}. {advice}"
        )

    def unsupported(self, name, expected):
        """The `ValueError` for a right file of a model that vit_tf does not have."""
        advice = "The file is right, but vit_tf does not have this model: choose another one."
        return self.error(name, expected, advice)

    def integer(self, name, default=None):
        """An integer of at least 0, or the default if the name is missing."""
        return self._get(name, default, "an integer from 0 on", _is_count)

    def number(self, name, default=None):
        """A finite number, or the default if the name is missing."""
        return self._get(name, default, "a finite number", _is_number)

    def flag(self, name, default=None):
        """True or False, or the default if the name is missing."""
        return self._get(name, default, "true or false", lambda value: isinstance(value, bool))

    def text(self, name, default=None):
        """A string, or the default if the name is missing."""
        return self._get(name, default, "a string", lambda value: isinstance(value, str))

    def numbers(self, name, count, default=None):
        """A tuple of `count` numbers; a single number in the file stands for all of them."""
        if _is_number(self._values.get(name)):
            return (self._values[name],) * count
        return self._tuple(name, default, f"{count} finite numbers", count, _is_number)

    def sides(self, name, default=None):
        """(height, width): two integers, or one for a square."""
        if _is_count(self._values.get(name)):
            return (self._values[name],) * 2
        return self._tuple(name, default, "an integer, or height and width", 2, _is_count)

    def section(self, name) -> "JsonObject":
        """The object at `name`; an empty one if it is absent."""
        values = self._get(name, {}, "a JSON object", lambda value: isinstance(value, dict))
        return JsonObject(self.path, values, f"{self._prefix}{name}.")

    def raw(self, name):
        """The value at `name` as it is, or None; the caller checks it."""
        return self._values.get(name)

    def _get(self, name, default, expected, is_right):
        value = self._values.get(name)
        if value is None:
            return default
        if not is_right(value):
            raise self.error(name, expected)
        return value

    def _tuple(self, name, default, expected, count, is_right):
        def is_tuple(value):
            return isinstance(value, list) and len(value) == count and all(map(is_right, value))

        value = self._get(name, default, expected, is_tuple)
        return value if value is None else tuple(value)


def read_json_object(path, advice="Restore it or download it again.") -> JsonObject | None:
    """The JSON object in a file, or None if there is no such file.

    Args:
        path: file name.
        advice: the end of the message about a file that cannot be used.

    Raises:
        ValueError: if the file is too large or does not hold a JSON object.
    """
    path = os.fspath(path)
    if not storage.exists(path):
        return None
    if not storage.is_file(path):
        raise ValueError(f"{path} is not a file. {advice}")  # A pipe can be endless.
    size, _ = storage.size_and_time(path)
    if size > _MOST_BYTES:
        raise ValueError(
            f"{path} has {size} bytes. Expected at most {_MOST_BYTES} in a configuration. {advice}"
        )
    try:
        values = json.loads(storage.read(path, _MOST_BYTES))
    except (ValueError, OSError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"{path} is not JSON ({reason}). {advice}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} holds {reprlib.repr(values)}. Expected a JSON object. {advice}")
    return JsonObject(path, values)


def _is_number(value):
    try:
        return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value)
    except OverflowError:  # an integer beyond the range of floats
        return False


def _is_count(value):
    return type(value) is int and value >= 0
