"""Dataclasses from JSON and from text, checked field by field: what a person or a file may say."""

import dataclasses
import difflib
import math
import sys
import types
import typing
from typing import Any

from pipelines.errors import UserError

# Optional fields that know a value of this name, so that `none` cannot mean "not set" there.
_NONE_IS_A_VALUE = ("model.position_embedding",)

# The largest integer of any field: more than anyone needs, and far from where int64 ends.
_MOST = 2**40


def fields_of(cls, prefix="") -> list[tuple[str, Any]]:
    """All `(dotted path, type)` pairs of a dataclass and of those within it."""
    paths = []
    for name, kind in typing.get_type_hints(cls).items():
        if dataclasses.is_dataclass(kind):
            paths += fields_of(kind, f"{prefix}{name}.")
        else:
            paths.append((prefix + name, kind))
    return paths


def differences(old: dict, new: dict, prefix="") -> list[str]:
    """Readable `path: old -> new` for every leaf that differs between two `to_dict`s."""
    found = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            found += differences(before, after, f"{prefix}{key}.")
        elif before != after:
            found.append(f"{prefix}{key}: {before!r} -> {after!r}")
    return found


def parse(path, text, kind):
    """The JSON value of `text` read as `kind`."""
    options = _options(kind)
    if text.lower() == "none" and types.NoneType in options and path not in _NONE_IS_A_VALUE:
        return None
    wanted = next(option for option in options if option is not types.NoneType)
    try:
        if wanted is bool:
            return {"true": True, "false": False}[text.lower()]
        if typing.get_origin(wanted) is tuple:
            (element, *rest), length = typing.get_args(wanted), len(typing.get_args(wanted))
            values = [element(part) for part in text.strip("()[]").split(",") if part.strip()]
            if rest == [...]:
                return values
            if element is int and len(values) == 1:
                values *= length
            if len(values) != length:
                raise ValueError
            return values
        value = wanted(text)
        if wanted is float and not math.isfinite(value):
            raise ValueError
        return value
    except (KeyError, ValueError):
        raise UserError(f"{path} is of type {_type_name(kind)}. Received: {text!r}.") from None


def from_json(kind, value, path):
    """`value` from JSON checked and built as `kind`."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise UserError(f"{path or 'config.json'} must be an object. Received: {value!r}.")
        hints = typing.get_type_hints(kind)
        for name in value:
            if name not in hints:
                near = difflib.get_close_matches(name, hints, n=2)
                hint = f" Did you mean {' or '.join(near)}?" if near else ""
                raise UserError(f"Unknown config field {path}{name}.{hint}")
        return kind(**{k: from_json(hints[k], v, f"{path}{k}.") for k, v in value.items()})
    path = path.rstrip(".")
    for option in _options(kind):
        if typing.get_origin(option) is tuple:
            elements = typing.get_args(option)
            if elements[1:] == (...,) and isinstance(value, list | tuple):
                elements = elements[:1] * len(value)
            if isinstance(value, list | tuple) and len(value) == len(elements):
                pairs = zip(elements, value, strict=True)
                return tuple(from_json(element, part, path) for element, part in pairs)
        elif option is float and type(value) in (int, float):
            if abs(value) <= sys.float_info.max:  # Finite, also as a float.
                return float(value)
        elif type(value) is option:
            if option is int and abs(value) > _MOST:
                raise UserError(f"{path} is out of range. Expected at most 2^40 in size.")
            return value
    raise UserError(f"{path} is of type {_type_name(kind)}. Received: {value!r}.")


def _options(kind):
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _type_name(kind):
    names = ["none" if option is types.NoneType else str(option) for option in _options(kind)]
    return " or ".join(name.removeprefix("<class '").removesuffix("'>") for name in names)
