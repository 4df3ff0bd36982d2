"""Fields of an AxialResNet: values that are refused, and sizes that follow from them."""

import pytest

import vit_tf
from vit_tf.config import AxialResNetConfig
from vit_tf.config.variants import get_variant


def test_sizes_of_a_variant():
    config = get_variant("AxialResNet-50M")
    assert (config.root_channels, config.channels, config.root_size) == (48, 1536, (56, 56))
    assert config.replace(image_size=(256, 96)).root_size == (64, 24)
    assert config.summary() == "3 + 4 + 6 + 3 axial units, width factor 0.75, on 224 x 224"
    assert (config.pooled, config.grid, config.epsilon) == (True, None, 1e-5)
    assert config.uses_batch_statistics
    grouped = config.replace(norm="group")
    assert (grouped.epsilon, grouped.uses_batch_statistics) == (1e-4, False)
    assert not get_variant("BiT-R50x1").uses_batch_statistics


@pytest.mark.parametrize("image_size", [224, (221, 224), (32, 64)])
def test_sides_that_all_stages_can_halve(image_size):
    """The root rounds up, so that 221 pixels have a feature map of 56, as 224."""
    assert get_variant("AxialResNet-26S").replace(image_size=image_size)


@pytest.mark.parametrize(
    "fields, error, words",
    [
        ({"image_size": 240}, ValueError, "60, 60.*multiples of 32"),
        ({"stage_depths": 3}, TypeError, "one number for each stage"),
        ({"stage_depths": ()}, ValueError, "1 to 5 stages"),
        ({"stage_depths": (1, 0, 1, 1)}, ValueError, "stage_depths.* 1 to"),
        ({"width": 0.3}, ValueError, "width.*0.125"),
        ({"heads": 7}, ValueError, "7 heads divide"),
        ({"heads": 0}, ValueError, "heads must be from 1 to"),
        ({"heads": 2**17 + 1}, ValueError, "heads.*131072"),
        ({"stage_depths": (1, 1025)}, ValueError, "stage_depths.*1024"),
        ({"num_classes": 2**24 + 1}, ValueError, "from 0 to 16777216"),
        ({"image_size": 2**14 + 32}, ValueError, "from 1 to 16384"),
        ({"norm": "layer"}, ValueError, "norm .*batch, group"),
        ({"batch_norm_epsilon": -1.0}, ValueError, "batch_norm_epsilon.* 0"),
        ({"batch_norm_momentum": 1.0}, ValueError, r"must be in \[0, 1\)"),
        ({"pixel_mean": (0.5, 0.5)}, ValueError, "pixel_mean.*three"),
        ({"pixel_deviation": (0.5, 0.0, 0.5)}, ValueError, "pixel_deviation.* 0"),
        ({"layers": 3}, ValueError, "field 'layers'"),
    ],
)
def test_illegal_fields(fields, error, words):
    with pytest.raises(error, match=words):
        get_variant("AxialResNet-26S").replace(**fields)


def test_dictionaries_are_read_back():
    config = AxialResNetConfig(stage_depths=(1, 2), norm="group", pixel_mean=(0.1, 0.2, 0.3))
    assert vit_tf.AxialResNetConfig.from_dict(config.to_dict()) == config
