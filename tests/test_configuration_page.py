"""docs/configuration.md is up to date and describes every field."""

import re

import pytest

from pipelines.config import Experiment, config_paths, override
from pipelines.config.fields import parse
from pipelines.errors import UserError
from tests import configuration_page
from tests.checkout import ROOT

MODELS = ("R50+ViT-B/16", "BiT-R50x1", "AxialResNet-26S")
PAGE = (ROOT / "docs" / "configuration.md").read_text()
ROWS = re.findall(r"^\| `([\w.]+)` \| (.+?) \| (.+?) \| (.+) \|$", PAGE, re.MULTILINE)


def test_the_page_is_what_the_classes_say():
    assert configuration_page.page() == PAGE, (
        "Run: python -m tests.configuration_page > docs/configuration.md"
    )


def test_every_path_has_a_row():
    shown = [path for path, *_ in ROWS]
    assert set(shown) == set().union(*map(config_paths, MODELS))
    # Several families have these fields.
    twice = {path for path in shown if shown.count(path) > 1}
    residual = {"model.stage_depths", "model.width", "model.group_norm_epsilon"}
    assert twice == {"model.head_bias", "model.heads"} | residual


def test_defaults_are_written_as_they_are_read():
    known = {path: kind for name in MODELS for path, kind in config_paths(name).items()}
    for path, _, default, _ in ROWS:
        if default.startswith("`"):
            value = parse(path, default.strip("`"), known[path])
            text = configuration_page.as_text(tuple(value) if isinstance(value, list) else value)
            assert f"`{text}`" == default


@pytest.mark.parametrize("model", MODELS)
def test_the_text_of_a_field_names_its_choices(model):
    base = override(Experiment(), [f"model.name={model}"])
    found = {}
    for path, kind, _, text in ROWS:
        if kind.startswith("text") and path in config_paths(model) and path != "model.name":
            try:
                override(base, [f"{path}=no such choice"])
            except UserError as error:
                named = re.search(r"one of (.*?)\. ?(?:Received|$)", str(error))
                if named is None:  # A text of a certain form.
                    assert path == "train.profile"
                    continue
                found[path] = set(re.findall(r"\w+", named[1]))
                assert found[path] <= set(re.findall(r"\w+", text)), path
    assert {"train.loss", "data.crop", "schedule.decay", "model.dtype"} <= found.keys()


def test_attributes_are_read_from_a_docstring():
    class Example:
        """One line.

        Attributes:
            first: a text that goes on
                in the next line.
            second, third: two: at once.

        Raises:
            ValueError: never.
        """

    assert configuration_page.attributes(Example) == {
        "first": "a text that goes on in the next line.",
        "second": "two: at once.",
        "third": "two: at once.",
    }
