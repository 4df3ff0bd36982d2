"""Reads fields of dataclasses from JSON and from text, and checks their types and choices."""

import dataclasses
import functools
import math
import sys
import types
import typing
from typing import Any

from pipelines.errors import UserError
from vit_tf.config.near_names import did_you_mean
from vit_tf.files.storage import is_url

# Optional fields that have a value "none", so that `none` does not mean "not set" there.
_NONE_IS_A_VALUE = ("model.position_embedding",)

# The largest integer of any field: larger than any useful value, and far below the int64 limit.
MAX_INT = 2**40


# Python evaluates the annotations of a class anew in each call.
_type_hints = functools.cache(typing.get_type_hints)


def field_types(cls) -> dict[str, Any]:
    """Returns the type of each field of a dataclass and of nested dataclasses, by dotted path."""
    found, hints = {}, _type_hints(cls)
    for field in dataclasses.fields(cls):
        name, kind = field.name, hints[field.name]
        section = next(filter(dataclasses.is_dataclass, _options(kind)), None)
        if section is None:
            found[name] = kind
        else:
            found |= {f"{name}.{path}": inner for path, inner in field_types(section).items()}
    return found


def differences(old: dict, new: dict, prefix="") -> list[str]:
    """Returns a line `path: old -> new` for every leaf that differs between two dictionaries."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if before != after and {type(before), type(after)} <= {dict, types.NoneType}:
            found += differences(before or {}, after or {}, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key}: {before!r} -> {after!r}")
    return found


def parse(path, text, kind):
    """Reads `text` as a value of type `kind`; returns the value as JSON holds it.

    Raises:
        UserError: if the text cannot be read as this type.
    """
    options = _options(kind)
    if text.lower() == "none" and types.NoneType in options and path not in _NONE_IS_A_VALUE:
        return None
    wanted = next(option for option in options if option is not types.NoneType)
    try:
        if wanted is bool:
            return {"true": True, "false": False}[text.lower()]
        if typing.get_origin(wanted) is tuple:
            return _parse_tuple(text, wanted)
        if choices_of(wanted):
            return text
        value = _integer(text) if wanted is int else wanted(text)
        if wanted is float and not math.isfinite(value):
            raise ValueError
        return value
    except (KeyError, ValueError):
        raise UserError(f"{path} is of type {_type_name(kind)}. Received: {text!r}.") from None


def _integer(text):
    """Reads an integer, also in the form `1e5`; ValueError for other numbers."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
        if not value.is_integer():
            raise
        return int(value)


def _parse_tuple(text, kind):
    (element, *rest), length = typing.get_args(kind), len(typing.get_args(kind))
    # In a text, brackets are part of a pattern.
    text = text if element is str else text.strip("()[]")
    read = _integer if element is int else element
    values = [read(part.strip()) for part in text.split(",") if part.strip()]
    if rest == [...]:
        return values
    if element is int and len(values) == 1:
        values *= length
    if len(values) != length:
        raise ValueError
    return values


def from_json(kind: Any, value: Any, path: str) -> Any:
    """Checks a value from JSON against `kind` and returns it as this type.

    Args:
        kind: a dataclass or the type of a field.
        value: the JSON value.
        path: dotted path of the value, for messages; empty, or ends with a dot.

    Raises:
        UserError: for an unknown field or a value of another type.
    """
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return kind(**fields_from_json(kind, value, path))
    path = path.rstrip(".")
    for option in _options(kind):
        if typing.get_origin(option) is tuple:
            elements = typing.get_args(option)
            if elements[1:] == (...,) and isinstance(value, list | tuple):
                elements = elements[:1] * len(value)
            if isinstance(value, list | tuple) and len(value) == len(elements):
                pairs = zip(elements, value, strict=True)
                return tuple(from_json(element, part, path) for element, part in pairs)
        elif option is float and isinstance(value, int | float) and type(value) is not bool:
            if abs(value) <= sys.float_info.max:  # The integer fits into a float.
                return float(value)
        elif type(value) is (str if choices_of(option) else option):
            if isinstance(value, int) and abs(value) > MAX_INT:
                raise UserError(f"{path} is out of range. Expected at most 2^40 in size.")
            return value
    raise UserError(f"{path} is of type {_type_name(kind)}. Received: {value!r}.")


def fields_from_json(cls: Any, value: Any, path: str) -> dict[str, Any]:
    """Returns the fields of a dataclass from a JSON object; arguments and errors as `from_json`."""
    if not isinstance(value, dict):
        raise UserError(f"{path or 'config.json'} must be an object. Received: {value!r}.")
    hints = _type_hints(cls)
    for name in value:
        if name not in hints:
            raise UserError(f"Unknown config field {path}{name}.{did_you_mean(name, hints)}")
    return {k: from_json(hints[k], v, f"{path}{k}.") for k, v in value.items()}


def choices_of(kind) -> tuple[str, ...]:
    """The values of a `Literal`, also of an optional one; () for other types."""
    found = [option for option in _options(kind) if typing.get_origin(option) is typing.Literal]
    return typing.get_args(found[0]) if found else ()


def check_choices(section, prefix="", synonyms=None):
    """Checks the fields of a dataclass that have a `Literal` type.

    Args:
        section: the dataclass.
        prefix: start of the paths of its fields, such as "data.", for the message.
        synonyms: see `near_names`.

    Raises:
        UserError: if a field has a value of another type.
    """
    kinds = _type_hints(type(section))
    for name, choices in _choices(type(section)).items():
        optional = (None,) if types.NoneType in _options(kinds[name]) else ()
        if (value := getattr(section, name)) not in (*choices, *optional):
            hint = did_you_mean(value, choices, synonyms=synonyms)
            raise UserError(
                f"{prefix}{name} must be one of {', '.join(choices)}. Received: {value!r}.{hint}"
            )


@functools.cache
def _choices(cls):
    """The choices of each field of a dataclass that has some."""
    kinds = _type_hints(cls)
    return {name: choices for name, kind in kinds.items() if (choices := choices_of(kind))}


def check_local(name, path):
    """Raises `UserError` if `path`, the value of `name`, is a URL."""
    if is_url(path):
        raise UserError(f"{name} must be on a local disk. Received: {path!r}.")


def check_at_least(path, value, minimum):
    """Raises `UserError` if `value` is less than `minimum`."""
    check(path, value, value >= minimum, f"at least {minimum}")


def check_fraction(path, value):
    """Raises `UserError` unless `value` is a fraction of something, and not 0."""
    check(path, value, 0 < value <= 1, "above 0 and at most 1")


def check(path, value, holds, expected):
    """Raises `UserError` about the field `path` unless `holds`; `expected` follows "must be"."""
    if not holds:
        raise UserError(f"{path} must be {expected}. Received: {value}.")


def _options(kind):
    # `Literal[...] | None` is a `typing.Union`.
    is_union = typing.get_origin(kind) in (types.UnionType, typing.Union)
    return typing.get_args(kind) if is_union else (kind,)


def _type_name(kind):
    options = [str if choices_of(option) else option for option in _options(kind)]
    names = ["none" if option is types.NoneType else str(option) for option in options]
    return " or ".join(name.removeprefix("<class '").removesuffix("'>") for name in names)
