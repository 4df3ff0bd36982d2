"""Charts show the given values where their axes say, in colors of the page."""

import base64
import re

import matplotlib
import numpy as np
import pytest
import tensorflow as tf

from pipelines.reports import charts
from pipelines.reports.html_page import TEMPLATES
from tests.pipelines.reports.parsed_page import ParsedPage

_MINUS = "\N{MINUS SIGN}"


def _parsed(chart):
    return ParsedPage(TEMPLATES.get_template("blocks.html").module.chart(chart))


def _points(chart, number):
    """The marks of a curve, `[n, 2]`."""
    fill = f"fill: var(--s{number})"
    uses = [use for use in _parsed(chart).all("use") if use["style"].startswith(fill)]
    return np.array([[float(use["x"]), float(use["y"])] for use in uses])


def _ticks(chart):
    """`[n, 2]` of the horizontal, and of the vertical axis: positions and the numbers there."""
    label = r'text-anchor: {}[^"]*" x="([\d.]+)"[^>]*>([\d.,e{}]+)<'
    across = re.findall(label.format("middle", _MINUS), chart.elements)
    up = [text for _, text in re.findall(label.format("end", _MINUS), chart.elements)]
    lines = re.findall(r'<path d="M [\d.]+ ([\d.]+)[^"]*"[^>]*var\(--grid\)', chart.elements)
    pairs = (across, zip(lines, up, strict=True))
    return [np.array([(float(x), _value(text)) for x, text in axis]) for axis in pairs]


def _value(text):
    return float(text.replace(_MINUS, "-").replace(",", ""))


def test_curves_are_where_the_axes_say():
    """Reads values back from the positions of the axis labels."""
    x, y = [0, 30, 100, 1250], [2.31, 0.4, 0.75, 0.02]
    chart = charts.line_chart({"loss": (x, y)}, "step", "loss")
    points, ticks = _points(chart, 1), _ticks(chart)
    for axis, values in enumerate((x, y)):
        assert len(ticks[axis]) >= 4
        slope, start = np.polyfit(*ticks[axis].T, 1)
        scale = max(values) - min(values)
        np.testing.assert_allclose(slope * points[:, axis] + start, values, atol=1e-4 * scale)


@pytest.mark.parametrize("joined", [True, False])
def test_intervals_reach_to_both_sides(joined):
    """Ends beyond 0 and 100 % are cut off; points are where a logarithmic axis says."""
    points = [(10, 0.5, 0.1), (100, 0.9, 0.2), (1000, 0.7, 0.0)]
    chart = charts.interval_chart({"a": points}, "images", "accuracy", log=True, joined=joined)
    titles = ["a, images 10: 50%", "a, images 100: 90%", "a, images 1,000: 70%"]
    assert _parsed(chart).text("title") == titles
    (x0, y0), (x1, y1), (x2, y2), *legend = _points(chart, 1)
    assert len(legend) == (not joined)
    assert x1 - x0 == pytest.approx(x2 - x1)
    paths = [each for each in _parsed(chart).all("path") if "stroke: var(--s1)" in each["style"]]
    through = [[float(x) for x in re.findall(r"[\d.]+", each["d"])] for each in paths]
    assert (
        any(each == pytest.approx([x0, y0, x1, y1, x2, y2], abs=0.01) for each in through) is joined
    )
    scale = (y0 - y1) / 0.4
    spans = {each[0]: abs(each[1] - each[3]) / scale for each in through if each[0] == each[2]}
    assert [*spans] == pytest.approx([x0, x1, x2], abs=0.01)
    assert [*spans.values()] == pytest.approx([0.2, 0.3, 0.0], abs=1e-3)


@pytest.mark.parametrize("values", [[1.0, 1.0], [0.0, 0.0], [0.42, 0.99], [0.01, 0.3]])
def test_fractions_have_an_axis_within_0_and_100_percent(values):
    chart = charts.line_chart({"a": ([1, 5], values)}, "shots", "accuracy", percent=True)
    shown = [float(text) for text in re.findall(r">(-?[\d.]+)%<", chart.elements)]
    assert len(shown) >= 2 and min(shown) >= 0 and max(shown) <= 100


def test_charts_name_their_curves_and_axes():
    curves = {"first": ([1, 2], [0.5, 0.975]), "$_2$ & <b>": ([1, 3], [0.6, 0.8])}
    chart = charts.line_chart(curves, "step", "accuracy", percent=True)
    page = _parsed(chart)
    (drawing,) = page.all("svg")
    assert drawing["role"] == "img" and drawing["aria-label"] == "accuracy over step"
    texts = page.text("text")
    assert {"first", "$_2$ & <b>", "step", "50%", "100%"} <= set(texts)
    assert len(_points(chart, 1)) == len(_points(chart, 2)) == 2
    assert page.text("title") == [
        "first, step 1: 50%",
        "first, step 2: 97.5%",
        "$_2$ & <b>, step 1: 60%",
        "$_2$ & <b>, step 3: 80%",
    ]


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.0213, 2.31), (0, 1000), (7, 7), (-3e-5, 2e-5), (99990, 100020)]
)
def test_points_are_between_the_first_and_the_last_tick(low, high):
    chart = charts.line_chart({"x": ([0, 1], [low, high])}, "step", "value")
    positions, points = _ticks(chart)[1][:, 0], _points(chart, 1)[:, 1]
    assert 3 <= len(positions) <= 11
    assert positions.min() - 0.1 <= points.min() <= points.max() <= positions.max() + 0.1


def test_a_chart_has_only_colors_of_the_page():
    """They change with the reader's setting; black marks what has no color of the page."""
    curves = {str(number): ([0, 1], [number, 1]) for number in range(charts.MAX_CURVES)}
    chart = charts.line_chart(curves, "x", "y")
    assert not re.findall(r"#[0-9a-f]{6}\b", re.sub(r'[#"]m?[0-9a-f]{10,}', "", chart.elements))
    style = TEMPLATES.get_template("report.css").render()
    used = set(re.findall(r"var\(--(\w+)\)", chart.elements))
    assert {"s1", "s2", "s3", "s4", "soft"} <= used
    assert used <= set(re.findall(r"--(\w+):", style))


def test_names_in_one_page_do_not_clash():
    drawn = [charts.line_chart({"a": ([0, 1], [0, 1])}, "x", name) for name in ("loss", "rate")]
    names = [set(re.findall(r'id="(\w+)"', chart.elements)) for chart in drawn]
    assert names[0] and names[0].isdisjoint(names[1])
    assert drawn[0] == charts.line_chart({"a": ([0, 1], [0, 1])}, "x", "loss")


def test_curves_that_cannot_be_drawn_are_refused():
    with pytest.raises(ValueError, match="same first dimension"):
        charts.line_chart({"a": ([0, 1], [0])}, "x", "y")
    with pytest.raises(IndexError):
        charts.line_chart({str(number): ([0], [0]) for number in range(17)}, "x", "y")


def test_each_of_many_curves_has_its_own_line():
    curves = {str(number): ([0, 1], [number, 1]) for number in range(4 * charts.MAX_CURVES)}
    chart = charts.line_chart(curves, "x", "y")
    lines = re.findall(r'<path d="M [^"]*" style="(fill: none; stroke[^"]*)"', chart.elements)
    drawn = [line for line in lines if "var(--s" in line]
    assert len(set(drawn[: len(curves)])) == len(curves)


def test_a_logarithmic_axis():
    y = [3.0, 400.0, 21.5]
    chart = charts.line_chart({"a": ([1, 2, 3], y)}, "x", "y", log=True)
    points, (_, ticks) = _points(chart, 1), _ticks(chart)
    slope, start = np.polyfit(ticks[:, 0], np.log(ticks[:, 1]), 1)
    np.testing.assert_allclose(np.exp(slope * points[:, 1] + start), y, rtol=1e-3)


def test_heat_maps_have_the_colors_of_their_values():
    maps = np.linspace(-1, 1, 12).reshape(3, 2, 2)
    chart = charts.heat_maps(maps, 2, "three maps", -1, 1)
    page = _parsed(chart)
    assert page.all("svg")[0]["aria-label"] == "three maps"
    images = page.all("image")
    assert len(images) == 3
    places = [image["transform"].strip("matrix()").split()[-2:] for image in images]
    x, y = np.array(places, float).T
    assert x[0] == x[2] < x[1] and y[0] == y[1] < y[2]
    for image, values in zip(images, maps, strict=True):
        data = image["xlink:href"].split(",")[1]
        pixels = tf.io.decode_png(base64.b64decode(data)).numpy()
        corners = pixels[[0, 0, -1, -1], [0, -1, 0, -1], :3] / 255
        expected = matplotlib.colormaps["viridis"]((values.reshape(-1) + 1) / 2)[:, :3]
        np.testing.assert_allclose(corners, expected, atol=0.01)


def test_a_confusion_matrix_has_its_numbers_names_and_colors():
    counts = np.array([[8, 2, 0], [0, 0, 0], [1, 1, 2]])
    page = _parsed(charts.confusion_matrix(counts, ["<a>", "b", "c"]))
    texts = page.text("text")
    for name in ("<a>", "b", "c"):
        assert texts.count(name) == 2
    assert [text for text in texts if text.isdigit()] == ["8", "2", "1", "1", "2"]
    (image,) = page.all("image")
    pixels = tf.io.decode_png(base64.b64decode(image["xlink:href"].split(",")[1])).numpy()
    side = len(pixels) // 3
    middle = pixels[side // 2 :: side, side // 2 :: side, :3] / 255
    shares = counts / [[10], [1], [4]]
    np.testing.assert_allclose(middle, charts.colors(np.sqrt(shares))[..., :3], atol=0.01)
    picture = tf.io.decode_png(
        charts.confusion_matrix(counts, ["<a>", "\u732b", "c"], png=True)
    ).numpy()
    assert picture.shape == (1000, 1080, 3 + 1) and (picture[0, 0] == 255).all()


def test_a_matrix_of_many_classes_has_indices():
    counts = np.eye(50, dtype=int)
    texts = _parsed(charts.confusion_matrix(counts, [], step=100)).text("text")
    assert {"0", "1,000", "4,000", "label", "predicted class"} <= set(texts)
    few = _parsed(charts.confusion_matrix(np.eye(30, dtype=int), ["name"] * 30)).text("text")
    assert few.count("name") == 60 and "1" not in few


def test_reliability_has_a_bar_for_each_bin():
    bins = {"images": [1, 0, 3], "accuracy": [1.0, 0.0, 0.5], "confidence": [0.2, 0.0, 0.9]}
    chart = charts.reliability({name: np.array(values) for name, values in bins.items()})
    titles = _parsed(chart).text("title")
    first = "0 to 33%: 1 image, accuracy 100.0%, mean probability 20.0%"
    assert titles[0] == titles[3] == first and len(titles) == 6
    fills = re.findall(r'<path d="([^"]*)"[^>]*style="fill: var\(--s1\)"', chart.elements)
    bars = [np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", path), float) for path in fills]
    heights = [np.ptp(bar[:, 1]) for bar in bars]
    assert heights == pytest.approx([heights[0], 0, heights[0] / 2], abs=0.01)


def test_distances_are_points_between_the_axes():
    heads = {"": np.array([[1.0, 9.0], [4.0, 6.0]])}
    png = charts.heads_chart(heads, "distance in pixels", 5.0, png=True)
    picture = tf.io.decode_png(png, channels=3).numpy()
    # The mean of both layers is on the dashed line.
    blue = np.argwhere((picture == [0x2A, 0x6F, 0xC9]).all(axis=-1))
    assert np.ptp(blue[:, 0]) <= 6 and np.ptp(blue[:, 1]) > 0.7 * picture.shape[1]


def test_a_bar_shows_the_values_of_the_colors():
    maps = np.zeros((2, 3, 3))
    assert _parsed(charts.heat_maps(maps, 1, "maps", -1, 1)).text("text") == []
    bar = _parsed(charts.heat_maps(maps, 1, "maps", -1, 1, bar=True))
    assert bar.text("text") == [f"{_MINUS}1", "0", "1"]


def test_colors_are_those_of_the_heat_maps():
    np.testing.assert_allclose(
        charts.colors([0.0, 1.0])[:, :3], [[0.267, 0.005, 0.329], [0.993, 0.906, 0.144]], atol=1e-3
    )
