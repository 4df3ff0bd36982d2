"""Lists of names in the configuration equal the names in the code."""

from pipelines.config.names import LAYOUTS
from vit_tf.families import FAMILIES


def test_layouts_are_those_of_the_families():
    assert set(LAYOUTS) == {layout for family in FAMILIES for layout in family.safetensors}
