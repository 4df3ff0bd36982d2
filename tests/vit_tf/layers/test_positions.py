"""Position layers of every kind, and tables at other resolutions."""

import numpy as np
import pytest
import tensorflow as tf

from tests.tolerances import EPSILON
from tests.vit_tf import numpy_vit
from vit_tf.config.vit import POSITION_EMBEDDINGS
from vit_tf.layers import RelativeLogits
from vit_tf.layers.positions import POSITION_LAYERS, resize_position_table


def built(kind, grid=(2, 3), prefix=1, width=12):
    layer = POSITION_LAYERS[kind](grid, prefix)
    layer.build((None, prefix + grid[0] * grid[1], width))
    return layer


def test_every_kind_has_a_layer():
    assert POSITION_LAYERS.keys() == set(POSITION_EMBEDDINGS)


@pytest.mark.parametrize("kind", POSITION_LAYERS)
def test_a_layer_adds_its_table(kind):
    """The fused patch embedding adds the table itself, without calling the layer."""
    layer = built(kind)
    assert bool(layer.variables) == kind.startswith("learned")
    tokens = np.random.normal(size=(2, 7, 12)).astype("float32")
    added = tokens if layer.table is None else tokens + layer.table
    np.testing.assert_array_equal(layer(tokens, grid=(2, 3)), added)
    np.testing.assert_array_equal(layer(tokens), added)


@pytest.mark.parametrize("kind", ["sincos_2d", "rotary_2d", "none"])
def test_fixed_positions_fit_every_grid(kind):
    layer, other = built(kind), built(kind, grid=(3, 4))
    tokens = np.random.normal(size=(2, 13, 12)).astype("float32")
    np.testing.assert_array_equal(layer(tokens, grid=(3, 4)), other(tokens))


@pytest.mark.parametrize(
    ("kind", "advice"),
    [("learned_1d", "load_npz"), ("learned_2d", "load_npz"), ("relative", "cannot be resized")],
)
def test_learned_positions_fit_their_own_grid(kind, advice):
    """Also if the other grid has as many patches."""
    with pytest.raises(ValueError, match=rf"2 x 3.*\(3, 2\).*{advice}"):
        built(kind)(tf.zeros((2, 7, 12)), grid=(3, 2))


@pytest.mark.parametrize("prefix", [0, 1])
def test_the_vector_of_the_column_comes_first(prefix):
    """Patch (x, y): X[x], then Y[y]; a prefix token has a vector of its own."""
    layer = built("learned_2d", prefix=prefix)
    assert (layer.x.shape, layer.y.shape) == ((3, 6), (2, 6))
    x, y, table = np.array(layer.x), np.array(layer.y), np.array(layer.table)
    for row in range(2):
        for column in range(3):
            place = prefix + 3 * row + column
            np.testing.assert_array_equal(table[place], np.concatenate([x[column], y[row]]))
    if prefix:
        np.testing.assert_array_equal(table[:1], layer.prefix)
    assert len(layer.variables) == 2 + prefix


@pytest.mark.parametrize("prefix", [0, 1])
def test_sines_and_cosines_of_the_column_come_before_those_of_the_row(prefix):
    """Frequencies 1, 0.01 and 0.0001 at a width of 12; nothing is added to a prefix token."""
    table = built("sincos_2d", grid=(3, 4), prefix=prefix).table
    assert table.shape == (prefix + 12, 12) and not table[:prefix].any()
    row, column = 1, 3
    angles = [column * np.array([1, 0.01, 0.0001]), row * np.array([1, 0.01, 0.0001])]
    expected = [function(angle) for angle in angles for function in (np.sin, np.cos)]
    place = prefix + 4 * row + column
    np.testing.assert_allclose(table[place], np.concatenate(expected), rtol=1e-6)


def test_halves_need_an_even_width():
    with pytest.raises(ValueError, match="width 13 is odd"):
        built("learned_2d", width=13)


def test_relative_logits_depend_on_the_offset_only():
    """With equal queries: constant along diagonals, and the row of the table for each offset."""
    layer = RelativeLogits(heads=3, dtype="float64")
    query = np.random.default_rng(0).normal(size=12)
    logits = layer(np.broadcast_to(query, (2, 7, 12))).numpy()
    table = layer.table.numpy()
    assert table.shape == (13, 4) and logits.shape == (2, 3, 7, 7)
    for head, i, j in np.ndindex(3, 7, 7):
        expected = query[4 * head : 4 * head + 4] @ table[6 - (i - j)] / 2
        np.testing.assert_allclose(logits[:, head, i, j], expected, atol=1e-15)
    np.testing.assert_array_equal(logits[:, :, 1:, 1:], logits[:, :, :-1, :-1])


def test_relative_logits_refuse_another_number_of_tokens():
    layer = RelativeLogits(heads=3)
    layer.build((None, 7, 12))
    with pytest.raises(ValueError, match="7 tokens.* 6 tokens"):
        layer(tf.zeros((2, 6, 12)))


def test_resize_vectors():
    grid = np.arange(4.0).reshape(4, 1)
    resized = resize_position_table(grid, (2, 2), (3, 3), num_prefix_tokens=0)
    expected = [[0, 0.5, 1], [1, 1.5, 2], [2, 2.5, 3]]
    np.testing.assert_array_equal(resized.reshape(3, 3), expected)

    table = np.concatenate([[[77.0]], np.arange(49.0).reshape(49, 1)])
    resized = resize_position_table(table, (7, 7), (12, 12))
    grid = resized[1:].reshape(12, 12)
    assert resized[0, 0] == 77
    np.testing.assert_allclose(grid[0, :4], [0, 0.5454545, 1.0909091, 1.6363636], atol=1e-7)
    assert grid[5, 5] == pytest.approx(21.8181818, abs=1e-7)
    assert grid[-1, -1] == 48


@pytest.mark.parametrize(
    "old, new", [(7, 12), (14, 24), (14, 32), (16, 27), (16, 37), (24, 14), (12, 7), (14, 28)]
)
def test_resize_equals_scipy_zoom(old, new):
    """The call in the reference code, for sizes at which its boundary mode is accurate."""
    from scipy import ndimage

    table = np.random.default_rng(old * new).uniform(-1, 1, (1 + old * old, 5)).astype(np.float32)
    grid = table[1:].reshape(old, old, 5)
    zoomed = ndimage.zoom(grid, (new / old, new / old, 1), order=1).reshape(-1, 5)
    resized = resize_position_table(table, (old, old), (new, new))
    assert resized.dtype == np.float32
    assert np.abs(resized[1:] - zoomed).max() <= 2 * EPSILON["float32"]
    np.testing.assert_array_equal(resized[0], table[0])


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize(
    "source, target", [((2, 3), (3, 2)), ((2, 5), (7, 3)), ((1, 4), (3, 6)), ((3, 4), (1, 1))]
)
def test_resize_of_rectangular_grids(source, target, prefix):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(prefix + source[0] * source[1], 4))
    resized = resize_position_table(table, source, target, prefix)
    expected = numpy_vit.resize_positions(table, source, target, prefix)
    np.testing.assert_allclose(resized, expected, atol=1e-14)
    same = resize_position_table(table, source, source, prefix)
    np.testing.assert_array_equal(same, table)


def test_bicubic_resize_equals_torch():
    """The values of torch 2.14.1 for `interpolate(mode="bicubic", align_corners=False)`."""
    table = np.array([[-1.0], [0], [1], [4], [9], [16], [25], [36], [49], [64]])
    resized = resize_position_table(table, (3, 3), (2, 5), 1, "bicubic")
    expected = [-1, 0.88359375, 1.62475, 3.23828125, 5.9318125, 7.78496875]
    expected += [29.06146875, 33.8003125, 42.05078125, 51.38125, 57.23209375]
    np.testing.assert_allclose(resized[:, 0], expected, rtol=1e-12)
    same = resize_position_table(table, (3, 3), (3, 3), 1, "bicubic")
    np.testing.assert_array_equal(same, table)


@pytest.mark.parametrize(
    ("source", "target"),
    [((37, 37), (16, 16)), ((5, 3), (7, 3)), ((4, 9), (9, 2)), ((2, 1), (1, 4))],
)
def test_bicubic_resize_with_antialiasing_equals_pillow(source, target):
    """The filter of Pillow, which torch copies for `antialias=True`."""
    from PIL import Image

    table = np.random.default_rng(0).normal(size=(1 + source[0] * source[1], 3)).astype("float32")
    resized = resize_position_table(table, source, target, 1, "bicubic_antialias")
    np.testing.assert_array_equal(resized[0], table[0])
    for channel in range(3):
        image = Image.fromarray(table[1:, channel].reshape(source))
        expected = np.asarray(image.resize(target[::-1], Image.Resampling.BICUBIC))
        received = resized[1:, channel].reshape(target)
        np.testing.assert_allclose(received, expected, rtol=0, atol=2e-6)
    same = resize_position_table(table, source, source, 1, "bicubic_antialias")
    np.testing.assert_allclose(same, table, rtol=0, atol=1e-7)


def test_resize_refuses_a_table_of_another_size():
    with pytest.raises(ValueError, match="2 x 3 .*7 rows.*: 6"):
        resize_position_table(np.zeros((6, 4)), (2, 3), (4, 4))
