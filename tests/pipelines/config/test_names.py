"""Lists of names in the configuration equal the names in the code."""

import typing

from pipelines.config.names import Layout
from vit_tf.families import FAMILIES


def test_layouts_are_those_of_the_families():
    assert set(typing.get_args(Layout)) == {
        layout for family in FAMILIES for layout in family.safetensors
    }
