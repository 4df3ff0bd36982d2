"""Writes docs/configuration.md from the configuration classes and their docstrings.

    python -m tests.configuration_page > docs/configuration.md

The text of a field is its entry below `Attributes:` in the docstring of its class. Loads no
framework.
"""

import dataclasses
import inspect
import re
import types
import typing

from pipelines.config import (
    Data,
    Experiment,
    FewShot,
    Masking,
    Model,
    Optimizer,
    Schedule,
    Train,
    config_paths,
)
from pipelines.config.augmentation import Augmentation
from pipelines.config.recipes import RECIPES
from vit_tf.config import AxialResNetConfig, ResNetConfig, StemConfig, ViTConfig
from vit_tf.config.variants import VARIANTS

_INTRO = """\
# Configuration

Every field of an experiment, by the path that `--set` takes: `--set train.steps=500`. Repeat
`--set` for more fields; a wrong name is answered with near ones. A run's `config.json` holds the
same paths as nested objects.

- `int,int` is two numbers, as in `model.image_size=224,160`; one number stands for both.
- `none` turns an optional field off.
- The defaults come from the classes. `--dry_run` prints the values of a run.
- Another `model.name` brings that model's own sizes; `model.image_size` stays as it is.

This page is written by `python -m tests.configuration_page > docs/configuration.md` from the
docstrings in `pipelines/config/` and `vit_tf/config/`; a test compares them.
"""
_VARIANTS_DEFAULT = "the model's own"
# Heading, start of the paths, class whose own fields the section lists.
_SECTIONS = (
    ("The run", "", Experiment),
    ("Model", "model.", Model),
    ("Model: ViTs and hybrids", "model.", ViTConfig),
    ("Model: the stem of a hybrid", "model.stem.", StemConfig),
    ("Model: ResNets", "model.", ResNetConfig),
    ("Model: AxialResNets", "model.", AxialResNetConfig),
    ("Data", "data.", Data),
    ("Data: augmentation of training images", "data.", Augmentation),
    ("Optimizer", "optimizer.", Optimizer),
    ("Learning rate", "schedule.", Schedule),
    ("Training", "train.", Train),
    ("Masked patch prediction", "masking.", Masking),
    ("Few-shot evaluation during training", "few_shot.", FewShot),
)


def paths() -> set[str]:
    """Every path that `--set` accepts for some model."""
    names = {type(config): name for name, config in VARIANTS.items()}
    return set().union(*map(config_paths, names.values()))


def attributes(cls) -> dict[str, str]:
    """The text of each entry below `Attributes:` in the docstring of a class."""
    section = re.search(r"^Attributes:\n((?: +.*\n?|\n)+)", inspect.getdoc(cls), re.MULTILINE)
    found, names = {}, []
    for line in section[1].splitlines() if section else []:
        entry = re.match(r" {4}(\w+(?:, \w+)*): (.*)", line)
        names = entry[1].split(", ") if entry else names
        for name in names:
            found[name] = f"{found.get(name, '')} {entry[2] if entry else line.strip()}".strip()
    return found


def rows(prefix, cls) -> list[tuple[str, str, str, str]]:
    """Path, type, default and text of each field that a class itself defines and `--set` takes."""
    texts, known, kinds = attributes(cls), paths(), typing.get_type_hints(cls)
    # Fields that the classes of the families have too are listed for `Model` only.
    shown = {f"model.{field.name}" for field in dataclasses.fields(Model)} - {"model.fields"}
    known -= shown if prefix == "model." and cls is not Model else set()
    return [
        (
            f"`{prefix}{field.name}`",
            type_name(kinds[field.name]),
            _default(cls, field),
            texts[field.name][0].upper() + texts[field.name][1:],
        )
        for field in dataclasses.fields(cls)
        if f"{prefix}{field.name}" in known and field.name in cls.__annotations__
    ]


def page() -> str:
    """The whole page."""
    parts = [_INTRO]
    for heading, prefix, cls in _SECTIONS:
        parts.append(
            f"\n## {heading}\n\n{_table(['path', 'type', 'default', ''], rows(prefix, cls))}"
        )
    recipes = sorted(
        (f"`{name}`", inspect.getdoc(recipe).split("\n")[0]) for name, recipe in RECIPES.items()
    )
    parts.append(f"\n## Recipes\n\nNames for `--experiment`.\n\n{_table(['name', ''], recipes)}")
    names = ", ".join(f"`{name}`" for name in VARIANTS)
    parts.append(f"\n## Names of models\n\nNames for `model.name`.\n\n{names}\n")
    return "".join(parts)


def type_name(kind) -> str:
    """The name of a type in the page."""
    # `Literal[...] | None` is the older kind of union.
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        return " or ".join(map(type_name, typing.get_args(kind)))
    if typing.get_origin(kind) is typing.Literal:
        return type_name(str)
    if typing.get_origin(kind) is tuple:
        return ",".join("..." if e is ... else type_name(e) for e in typing.get_args(kind))
    return {types.NoneType: "none", str: "text", bool: "true or false"}.get(kind, kind.__name__)


def as_text(value) -> str:
    """A value in the form that `--set` reads; long fractions with five digits."""
    if isinstance(value, tuple):
        return ",".join(map(as_text, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _default(cls, field):
    if field.name in getattr(cls, "size_fields", ()):
        return _VARIANTS_DEFAULT
    return f"`{as_text(field.default)}`" if field.default != () else "empty"


def _table(titles, lines):
    every = [titles, ["---"] * len(titles), *lines]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in every)


if __name__ == "__main__":
    print(page(), end="")
