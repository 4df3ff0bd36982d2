"""Reports are well formed and self-contained, and show the given values."""

import base64
import html.parser
import re

import numpy as np
import pytest
import tensorflow as tf

from pipelines.reports import charts, html_page, pictures
from pipelines.reports.charts import Series
from pipelines.reports.html_page import Check

_VOID = {"meta", "img"}
_HOSTILE = "<script>alert(\"x\")</script> & 'quotes'"


class _Page(html.parser.HTMLParser):
    """Parses a page, checks that tags are nested properly, and stores what the tests check."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self._open = [], [], []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open and self._open.pop() == tag, f"</{tag}> closes no open tag"

    def handle_data(self, data):
        self.texts.append((self._open[-1] if self._open else None, data))

    def all(self, tag, **attrs):
        wanted = {name.rstrip("_"): value for name, value in attrs.items()}
        return [
            found for name, found in self.tags if name == tag and wanted.items() <= found.items()
        ]

    def text(self, *tags):
        return [data for tag, data in self.texts if tag in tags]


def _image(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (4, 4, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def whole_page():
    series = [Series("one", [0, 10, 20], [1.0, 0.5, 0.25]), Series("two", [5, 15], [0.9, 0.8])]
    checks = [
        Check(name="accuracy", value="97.3%", expected="at least 95%", passed=True),
        Check(name="speed", value="100 images/s"),
    ]
    return html_page.page(
        "Title",
        "Lead.",
        html_page.verdict(checks),
        html_page.tiles([("97.3%", "accuracy")]),
        html_page.section(
            "Steps", "Text.", html_page.steps(["one", "two"]), html_page.code("ls -l")
        ),
        html_page.section(
            "Pictures",
            "Text.",
            pictures.cards([pictures.example(_image(), "3", [("3", 0.75), ("8", 0.25)])]),
            html_page.row(
                html_page.figure("Filters", pictures.picture(_image(), 80, "filters"), "Caption."),
                html_page.figure("Loss", charts.line_chart(series, "step", "loss"), "Caption."),
            ),
            pictures.picture_table([("layer 1", [_image(1), _image(2)])], 40),
        ),
        html_page.check_table(checks),
        footer="made by a test",
    )


def test_page_is_well_formed_and_complete(whole_page):
    page = _Page(whole_page)
    assert whole_page.startswith("<!DOCTYPE html>")
    assert page.text("title")[0] == page.text("h1")[0] == "Title"
    assert page.text("h2") == ["Steps", "Pictures"]
    assert page.text("li") == ["one", "two"]
    assert page.text("pre") == ["ls -l"]
    assert page.text("footer") == ["made by a test"]
    assert len(page.all("img")) == 4


def test_page_loads_nothing_and_runs_nothing(whole_page):
    page = _Page(whole_page)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "base"})
    for _, attributes in page.tags:
        for name in ("src", "href", "srcset", "xlink:href", "data", "background"):
            assert attributes.get(name, "data:").startswith("data:")
        assert not any(name.startswith("on") for name in attributes)
    (style,) = page.text("style")
    assert "@import" not in style and "url(" not in style
    assert "http:" not in whole_page and "https:" not in whole_page


def test_page_has_a_dark_side(whole_page):
    """Each color of the style is defined for the light and the dark setting."""
    (style,) = _Page(whole_page).text("style")
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    names = [set(re.findall(r"(--[\w-]+):", text)) for text in (light, dark)]
    assert names[0] == names[1]
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) <= names[0]


def test_pictures_hold_the_pixels_they_were_given():
    image = _image()
    (attributes,) = _Page(pictures.picture(image, 80, "noise")).all("img")
    kind, data = attributes["src"].split(",")
    assert kind == "data:image/png;base64"
    decoded = tf.io.decode_png(base64.b64decode(data, validate=True)).numpy()
    np.testing.assert_array_equal(decoded, image)
    assert (attributes["width"], attributes["alt"]) == ("80", "noise")


@pytest.mark.parametrize(
    "build",
    [
        lambda text: html_page.page(text, text, footer=text),
        lambda text: html_page.section(text, text),
        lambda text: html_page.verdict([Check(name=text, value="", passed=False)]),
        lambda text: html_page.tiles([(text, text)]),
        lambda text: html_page.steps([text]),
        lambda text: html_page.code(text),
        lambda text: pictures.picture(_image(), 10, text),
        lambda text: html_page.figure(text, "", text),
        lambda text: pictures.example(_image(), text, [("0", 1.0)]),
        lambda text: pictures.example(_image(), "0", [(text, 1.0)]),
        lambda text: pictures.picture_table([(text, [_image()])], 10),
        lambda text: html_page.check_table([Check(name=text, value=text, expected=text)]),
        lambda text: html_page.table([text], []),
        lambda text: html_page.table(["a", "b"], [[text, "1"], ["c", text]]),
        lambda text: charts.line_chart([Series(text, [0], [1])], text, text),
    ],
)
def test_text_is_escaped_everywhere(build):
    page = build(_HOSTILE)
    assert "<script" not in page
    parsed = _Page(page)
    shown = [data for _, data in parsed.texts]
    shown += [value for _, attributes in parsed.tags for value in attributes.values()]
    assert any(_HOSTILE in text for text in shown)


def test_a_file_name_that_is_no_text_can_be_written():
    name = b"caf\xe9 & <b>.jpg".decode("utf-8", "surrogateescape")
    assert html_page.code(name).encode("utf-8") == b"<pre>caf? &amp; &lt;b&gt;.jpg</pre>"


def test_examples_are_marked_right_or_wrong():
    right = pictures.example(_image(), "3", [("3", 0.9), ("8", 0.1)])
    wrong = pictures.example(_image(), "3", [("8", 0.6), ("3", 0.4)])
    assert "right" in right and "wrong" not in right
    assert "wrong" in wrong and "right" not in wrong and "is 3" in wrong
    bars = [attributes["style"] for attributes in _Page(wrong).all("u")]
    assert bars == ["width:60.0%", "width:40.0%"]
    assert list(_Page(wrong).text("em")) == ["60.0%", "40.0%"]


def test_verdict_counts_only_what_is_judged():
    good = Check(name="accuracy", value="", passed=True)
    bad = Check(name="parity", value="", passed=False)
    shown = Check(name="speed", value="")
    assert "All 1 checks passed" in html_page.verdict([good, shown])
    failed = html_page.verdict([good, bad, shown])
    assert "1 of 2 checks failed: parity" in failed and "accuracy" not in failed
    table = html_page.check_table([good, bad, shown])
    assert re.findall("PASS|FAIL|shown only", table) == ["PASS", "FAIL", "shown only"]


def test_a_table_has_its_cells_in_order():
    table = _Page(html_page.table(["shots", "l2=1"], [["1", "90.0"], ["5", "95.0"]]))
    assert table.text("th") == ["shots", "l2=1"]
    assert table.text("td") == ["1", "90.0", "5", "95.0"]


def _points(chart, number):
    (curve,) = _Page(chart).all("polyline", class_=f"curve c{number}")
    return np.array([[float(value) for value in xy.split(",")] for xy in curve["points"].split()])


def test_curves_are_where_the_axes_say():
    """Reads values back from the positions of the axis labels."""
    x, y = [0, 30, 100, 250], [2.31, 0.4, 0.75, 0.02]
    chart = charts.line_chart([Series("loss", x, y)], "step", "loss")
    labels = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"([^>]*)>([\d.,]+)</text>', chart)
    by_x = [(float(a), float(value)) for a, _, rest, value in labels if "middle" in rest]
    by_y = [(float(b), float(value)) for _, b, rest, value in labels if "end" in rest]
    assert len(by_x) >= 4 and len(by_y) >= 4
    points = _points(chart, 1)
    for column, ticks, values in ((0, by_x, x), (1, by_y, y)):
        slope, start = np.polyfit(*zip(*ticks, strict=True), 1)
        scale = max(values) - min(values)
        np.testing.assert_allclose(slope * points[:, column] + start, values, atol=0.002 * scale)


def test_charts_name_their_curves_and_points():
    series = [Series("first", [1, 2], [0.5, 0.975]), Series("second", [1, 3], [0.6, 0.8])]
    chart = charts.line_chart(series, "step", "accuracy", percent=True)
    page = _Page(chart)
    assert page.text("span") == ["first", "second"]
    assert page.text("title") == [
        "first, step 1: 50%",
        "first, step 2: 97.5%",
        "second, step 1: 60%",
        "second, step 3: 80%",
    ]
    assert len(_points(chart, 2)) == 2


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0.0213, 2.31), (0, 1000), (7, 7), (-3e-5, 2e-5), (99990, 100020)]
)
def test_ticks_are_round_and_cover_the_values(low, high):
    chart = charts.line_chart([Series("x", [0, 1], [low, high])], "step", "value")
    points = _points(chart, 1)
    frame = charts.CHART
    assert (points[:, 1] >= frame["top"] - 0.1).all()
    assert (points[:, 1] <= frame["height"] - frame["bottom"] + 0.1).all()
    assert 3 <= len(re.findall('text-anchor="end"', chart)) <= 9


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="Received: 0"):
        charts.line_chart([], "x", "y")
    with pytest.raises(ValueError, match="Received: 5"):
        charts.line_chart([Series("a", [0], [0])] * 5, "x", "y")
    with pytest.raises(ValueError, match="'a'.* 2 and 1"):
        charts.line_chart([Series("a", [0, 1], [0])], "x", "y")
    with pytest.raises(ValueError, match="'a'.* 0 and 0"):
        charts.line_chart([Series("a", [], [])], "x", "y")
    with pytest.raises(ValueError, match="'a'.*finite"):
        charts.line_chart([Series("a", [0], [float("nan")])], "x", "y")
