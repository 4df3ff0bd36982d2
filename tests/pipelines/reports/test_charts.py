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


def _marks(chart):
    """Title -> shape, number of the color, and position of the mark of each point."""
    mark = (
        r'<g><title>([^<]*)</title>(?:(?!<title>).)*?<use xlink:href="(#\w+)" x="([\d.]+)" '
        r'y="([\d.]+)" style="fill: var\(--s(\d)\)"'
    )
    return {
        title: (shape, int(number), (float(x), float(y)))
        for title, shape, x, y, number in re.findall(mark, chart.elements, re.DOTALL)
    }


def _points(chart, number):
    """The marks of a curve, `[n, 2]`."""
    return np.array([place for _, color, place in _marks(chart).values() if color == number])


def _paths(chart, color):
    """The coordinates of each line of a color, and its style."""
    return [
        ([float(x) for x in re.findall(r"-?[\d.]+", path["d"])], path["style"])
        for path in _parsed(chart).all("path")
        if re.match(rf"fill: none.*stroke: var\(--{color}\)", path.get("style", ""))
    ]


def _ticks(chart):
    """`[n, 2]` of the horizontal, and of the vertical axis: positions and the numbers there."""
    label = r'text-anchor: {}[^"]*" x="([\d.]+)"[^>]*>([\d.,e{}]+%?)<'
    across = re.findall(label.format("middle", _MINUS), chart.elements)
    up = [text for _, text in re.findall(label.format("end", _MINUS), chart.elements)]
    lines = re.findall(r'<path d="M [\d.]+ ([\d.]+)[^"]*"[^>]*var\(--grid\)', chart.elements)
    pairs = (across, zip(lines, up, strict=True))
    return [np.array([(float(x), _value(text)) for x, text in axis]) for axis in pairs]


def _value(text):
    value = float(text.strip("%").replace(_MINUS, "-").replace(",", ""))
    return value / 100 if text.endswith("%") else value


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


def _read(ticks, position, log=False):
    """The value at a position, from the numbers at the axis."""
    places, values = ticks.T
    slope, start = np.polyfit(places, np.log(values) if log else values, 1)
    return np.exp(slope * position + start) if log else slope * position + start


@pytest.mark.parametrize("joined", [True, False])
def test_intervals_reach_to_both_sides(joined):
    """Ends beyond 0 and 100 % are cut off, which an arrow marks."""
    points = [(10, 0.5, 0.1), (100, 0.9, 0.2), (1000, 0.7, 0.0)]
    chart = charts.interval_chart({"a": points}, "images", "accuracy", log=True, joined=joined)
    titles = ["a, images 10: 50%", "a, images 100: 90%", "a, images 1,000: 70%"]
    assert _parsed(chart).text("title") == titles
    (x0, y0), (x1, y1), (x2, y2) = _points(chart, 1)
    assert x1 - x0 == pytest.approx(x2 - x1)
    through = [path for path, _ in _paths(chart, "s1")]
    assert (
        any(each == pytest.approx([x0, y0, x1, y1, x2, y2], abs=0.01) for each in through) is joined
    )
    scale = (y0 - y1) / 0.4
    spans = {
        each[0]: abs(each[1] - each[3]) / scale
        for each in through
        if len(each) == 4 and each[0] == each[2]
    }
    assert [*spans] == pytest.approx([x0, x1], abs=0.01)
    assert [*spans.values()] == pytest.approx([0.2, 0.3], abs=1e-3)
    ends = [use for use in _parsed(chart).all("use") if "; stroke: var(--s1)" in use["style"]]
    (arrow,) = [use for use in ends if [x["xlink:href"] for x in ends].count(use["xlink:href"]) < 2]
    assert float(arrow["x"]) == pytest.approx(x1) and len(ends) == 4
    assert _read(_ticks(chart)[1], float(arrow["y"])) == pytest.approx(1)


@pytest.mark.parametrize("log", [True, False])
def test_curves_with_a_common_x_are_beside_each_other(log):
    """Their distance is in points; the values on hover are the given ones."""
    curves = {
        "a": [(250, 0.5, 0.1), (64000, 0.8, 0.1)],
        "b": [(250, 0.5, 0.1), (64000, 0.8, 0.2)],
        "c": [(16000, 0.7, 0.1)],
    }
    chart = charts.interval_chart(curves, "images", "accuracy", log=log)
    assert [*_marks(chart)] == [
        f"{name}, images {x:,}: {100 * y:g}%" for name in curves for x, y, _ in curves[name]
    ]
    first, second, (third,) = (_points(chart, number) for number in (1, 2, 3))
    np.testing.assert_allclose(second - first, [[5, 0]] * 2, atol=0.01)
    across, _ = _ticks(chart)
    middle = (first + second)[:, 0] / 2
    np.testing.assert_allclose(_read(across, middle, log), [250, 64000], rtol=1e-3, atol=20)
    assert _read(across, third[0], log) == pytest.approx(16000, rel=1e-3)
    for color, points in (("s1", first), ("s2", second)):
        bars = [
            path[0] for path, _ in _paths(chart, color) if len(path) == 4 and path[0] == path[2]
        ]
        np.testing.assert_allclose(bars, points[:, 0], atol=0.01)


def test_close_points_stay_nearer_to_their_own_x():
    points = [(x, 0.5, 0.1) for x in range(41)]
    chart = charts.interval_chart({str(number): points for number in range(3)}, "x", "y")
    first, last = _points(chart, 1)[:, 0], _points(chart, 3)[:, 0]
    assert (last > first).all() and (last[:-1] < first[1:]).all()


@pytest.mark.parametrize("joined", [True, False])
def test_curves_differ_by_marker_dash_and_color(joined):
    names = [str(number) for number in range(charts.MOST_LINES)]
    curves = {name: [(0, 0.5, 0.1), (1, 0.6, 0.1)] for name in names}
    chart = charts.interval_chart(curves, "x", "y", joined=joined)
    marks = [mark[:2] for mark in _marks(chart).values()]
    assert len(set(marks)) == len(names)
    few = charts.interval_chart({name: curves[name] for name in names[:4]}, "x", "y", joined=joined)
    shapes = [shape for shape, *_ in _marks(few).values()]
    assert len(set(shapes)) == 4
    uses = re.findall(r'<use xlink:href="(#\w+)"', few.elements)
    assert uses[-4:] == shapes[::2]  # Those of the legend.
    dashes = {
        re.sub("var.*?\\)", "", style)
        for number in range(1, 5)
        for path, style in _paths(few, f"s{number}")
        if len(path) == 6  # A key of the legend.
    }
    assert len(dashes) == 4 * joined


def test_plain_numbers_are_not_cut():
    points = [(1, 2.5, 0.5), (2, 0.25, 0.5)]
    chart = charts.interval_chart({"a": points}, "epochs", "loss", percent=False)
    assert [*_marks(chart)] == ["a, epochs 1: 2.5", "a, epochs 2: 0.25"]
    assert "%" not in "".join(_parsed(chart).text("text"))
    _, up = _ticks(chart)
    bars = [(path[1], path[3]) for path, _ in _paths(chart, "s1") if path[0] == path[2]]
    np.testing.assert_allclose(
        [[_read(up, end) for end in bar] for bar in bars], [[2, 3], [-0.25, 0.75]], atol=1e-3
    )
    assert up[:, 0].min() <= min(min(bar) for bar in bars)


def test_lines_across_have_names_and_values():
    lines = {"chance": 0.1, "headroom": 0.95}
    chart = charts.interval_chart({"a": [(1, 0.5, 0.1)]}, "x", "accuracy", lines=lines)
    page = _parsed(chart)
    assert {"a", *lines} <= set(page.text("text"))
    assert page.text("title")[:2] == ["chance: 10%", "headroom: 95%"]
    drawn = [(path, style) for path, style in _paths(chart, "soft") if len(path) == 4]
    assert len({style for _, style in drawn}) == len(drawn) == 2
    values = [[_read(_ticks(chart)[1], path[place]) for place in (1, 3)] for path, _ in drawn]
    np.testing.assert_allclose(values, [[0.1] * 2, [0.95] * 2], atol=1e-4)


@pytest.mark.parametrize("names", [["none", "mixup", "<both>"], ["a" * 40, "bc", "d"]])
def test_categories_are_named_below_their_points(names):
    points = [(index, 0.5 + 0.1 * index, 0.05) for index in range(3)]
    options = {"categories": names, "lines": {"chance": 0.1}}
    chart = charts.interval_chart({"accuracy": points}, "", "accuracy", **options)
    page = _parsed(chart)
    assert [text for text in page.text("text") if text in names] == names
    assert "accuracy" not in page.text("text") and chart.label == "accuracy"
    titles = [f"accuracy, {name}: {50 + 10 * index}%" for index, name in enumerate(names)]
    assert page.text("title") == ["chance: 10%", *titles]
    assert not [path for path, _ in _paths(chart, "s1") if path[0] != path[2]]
    distances = np.diff(_points(chart, 1)[:, 0])
    assert distances[0] == pytest.approx(distances[1]) and distances[0] > 50


@pytest.mark.parametrize(("least", "begins"), [(0.25, 0), (0.36, 0), (0.88, 0.8), (0.97, 0.9)])
def test_the_axis_of_fractions_says_where_it_begins(least, begins):
    """The end of the interval counts, 10 % below the point."""
    points = [(1, least, 0.1), (2, 0.98, 0)]
    chart = charts.interval_chart({"a": points}, "x", "accuracy")
    first = _ticks(chart)[1][:, 1].min()
    note = [text for text in _parsed(chart).text("text") if "axis" in text]
    assert (first == 0) == (begins == 0)
    assert note == ([f"(axis from {100 * first:g}%)"] if begins else [])


def test_long_names_of_curves_stay_within_the_picture():
    names = [f"a name of a curve that has a number, {number}" for number in range(4)]
    one, four = (
        charts.line_chart({name: ([0, 1], [0, 1]) for name in some}, "x", "y")
        for some in (names[:1], names)
    )
    key = r'x="([\d.]+)" y="([\d.]+)"[^>]*>a name'
    places = np.array(re.findall(key, four.elements), float)
    assert (places[:, 0] + 5 * len(names[0]) < four.width).all()
    assert len(set(places[:, 1])) > 1 and four.height > one.height + 10
    short = charts.line_chart({name: ([0, 1], [0, 1]) for name in "abcd"}, "x", "y")
    assert short.height == one.height


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
