"""Graphs of saved models name the ops: a definition only gains attributes with defaults."""

import json

import pytest

from tests.conftest import GOLDEN
from tests.custom_ops import definitions

OLD = json.loads((GOLDEN / "old" / "ops.json").read_text())


@pytest.fixture(scope="module")
def library():
    return definitions.of_library()


@pytest.mark.parametrize("name", OLD)
def test_a_definition_only_gains_attributes_with_defaults(library, name):
    old, new = dict(OLD[name]), dict(library[name])
    before, now = ({row["name"]: row for row in x.pop("attr", [])} for x in (old, new))
    assert new == old  # Inputs and outputs with their types.
    assert before.keys() <= now.keys()
    for attribute, row in now.items():
        if attribute not in before:
            assert "defaultValue" in row, attribute
        else:
            was, types = _without_types(before[attribute])
            assert was == _without_types(row)[0], attribute
            assert types <= _without_types(row)[1], attribute


def _without_types(row):
    """An attribute without the list of its allowed types, and that list as a set."""
    allowed = row.get("allowedValues", {}).get("list", {}).get("type", ())
    return {key: value for key, value in row.items() if key != "allowedValues"}, set(allowed)
