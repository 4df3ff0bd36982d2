"""Reports are well formed and self-contained, and show the given values."""

import base64
import re

import jinja2
import numpy as np
import pytest
import tensorflow as tf

from pipelines.reports import charts
from pipelines.reports.check import Check
from pipelines.reports.html_page import TEMPLATES, short, write_page
from tests.pipelines.reports.parsed_page import ParsedPage

_HOSTILE = "<script>alert(\"x\")</script> & 'quotes'"
_BLOCKS = TEMPLATES.get_template("blocks.html").module


def _image(seed=0):
    return np.random.default_rng(seed).integers(0, 256, (4, 4, 3)).astype(np.uint8)


@pytest.fixture(scope="module")
def whole_page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    rows = [("layer 1", [_image(1), _image(2)]), (_HOSTILE, [_image(3)])]
    write_page(path, "reconstructions.html", lead="Lead.", explanation="Text.", rows=rows)
    return path.read_text(encoding="utf-8")


def test_page_is_well_formed_and_complete(whole_page):
    page = ParsedPage(whole_page)
    assert whole_page.startswith("<!DOCTYPE html>")
    assert page.text("title") == page.text("h1") == ["Masked patch prediction"]
    assert page.text("h2") == ["Reconstructions"] and page.text("p") == ["Lead.", "Text."]
    assert page.text("th") == ["layer 1", _HOSTILE] and "<script" not in whole_page
    assert [image["alt"] for image in page.all("img")] == ["layer 1", "layer 1", _HOSTILE]


def test_page_loads_nothing_and_runs_nothing(whole_page):
    ParsedPage(whole_page).check_self_contained()
    assert "http:" not in whole_page and "https:" not in whole_page


def test_page_has_a_dark_side(whole_page):
    """Each color of the style is defined for the light and the dark setting."""
    (style,) = ParsedPage(whole_page).text("style")
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    names = [set(re.findall(r"(--[\w-]+):", text)) for text in (light, dark)]
    assert names[0] == names[1]
    assert set(re.findall(r"var\((--[\w-]+)\)", style)) <= names[0]


def test_pictures_hold_the_pixels_they_were_given():
    image = _image()
    (attributes,) = ParsedPage(_BLOCKS.picture(image, 80, "noise")).all("img")
    kind, data = attributes["src"].split(",")
    assert kind == "data:image/png;base64"
    decoded = tf.io.decode_png(base64.b64decode(data, validate=True)).numpy()
    np.testing.assert_array_equal(decoded, image)
    assert (attributes["width"], attributes["alt"]) == ("80", "noise")


def test_floats_outside_the_range_are_clipped():
    (attributes,) = ParsedPage(_BLOCKS.picture([[[-1.0], [0.5], [2.0]]], 3, "")).all("img")
    decoded = tf.io.decode_png(base64.b64decode(attributes["src"].split(",")[1]))
    np.testing.assert_array_equal(decoded[..., 0], [[0, 127, 255]])


@pytest.mark.parametrize(
    "build",
    [
        lambda text: _BLOCKS.section(text, text, caller=str),
        lambda text: _BLOCKS.figure(text, text, caller=str),
        lambda text: _BLOCKS.verdict([Check(name=text, value="", passed=False)]),
        lambda text: _BLOCKS.tiles([(text, text)]),
        lambda text: _BLOCKS.picture(_image(), 10, text),
        lambda text: _BLOCKS.example(_image(), text, [("0", 1.0)]),
        lambda text: _BLOCKS.example(_image(), "0", [(text, 1.0)]),
        lambda text: _BLOCKS.example(_image(), "0", [("0", 1.0)], text, True),
        lambda text: _BLOCKS.picture_table([(text, [_image()])], 10),
        lambda text: _BLOCKS.check_table([Check(name=text, value=text, expected=text)]),
        lambda text: _BLOCKS.table([text], []),
        lambda text: _BLOCKS.table(["a", "b"], [[text, "1"], ["c", text]]),
        lambda text: _BLOCKS.chart(charts.line_chart({text: ([0], [1])}, text, text)),
    ],
)
def test_text_is_escaped_everywhere(build):
    page = build(_HOSTILE)
    assert "<script" not in page
    parsed = ParsedPage(page)
    shown = [data for _, data in parsed.texts]
    shown += [value for _, attributes in parsed.tags for value in attributes.values()]
    assert any(_HOSTILE in text for text in shown)


def test_a_file_name_that_is_no_text_can_be_written(tmp_path):
    name = b"caf\xe9 & <b>.jpg".decode("utf-8", "surrogateescape")
    write_page(tmp_path / "page", "reconstructions.html", lead=name, explanation="", rows=[])
    assert b">caf? &amp; &lt;b&gt;.jpg</p>" in (tmp_path / "page").read_bytes()


def test_a_missing_value_is_an_error(tmp_path):
    with pytest.raises(jinja2.UndefinedError, match="'explanation'.*undefined"):
        write_page(tmp_path / "page", "reconstructions.html", lead="", rows=[])
    assert not (tmp_path / "page").exists()


def test_examples_are_marked_right_or_wrong():
    right = _BLOCKS.example(_image(), "3", [("3", 0.9), ("8", 0.1)])
    wrong = _BLOCKS.example(_image(), "3", [("8", 0.6), ("3", 0.4)])
    assert "right" in right and "wrong" not in right
    assert "wrong" in wrong and "right" not in wrong and "is 3" in wrong
    bars = [attributes["style"] for attributes in ParsedPage(wrong).all("u")]
    assert bars == ["width:60.0%", "width:40.0%"]
    assert list(ParsedPage(wrong).text("em")) == ["60.0%", "40.0%"]


def test_an_example_can_be_judged_by_more_than_its_name():
    """Cut names may be equal; several labels are one text."""
    card = _BLOCKS.example(_image(), "a, b", [("a", 0.9)], "folder/a.png", True)
    assert "right" in card and "wrong" not in card and "folder/a.png" in card
    assert "wrong" in _BLOCKS.example(_image(), "x…", [("x…", 0.9)], "", False)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("tabby cat", "tabby cat"),
        ("  a\t\nb\x00\x1b[1mc ", "a b [1mc"),
        ("\u202eright\u2066 to left", "right to left"),
        (
            "\u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f469",
            "\u0645\u06cc\u200c\u062e \U0001f468\u200d\U0001f469",
        ),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 59 + "…"),
        ("\u200b \n", "(no name)"),
    ],
)
def test_names_are_short_and_on_one_line(name, shown):
    assert short(name) == shown and len(short(name * 1000, 7)) <= 9


def test_verdict_counts_only_what_is_judged():
    good = Check(name="accuracy", value="", passed=True)
    bad = Check(name="parity", value="", passed=False)
    shown = Check(name="speed", value="")
    assert "All 1 checks passed" in _BLOCKS.verdict([good, shown])
    failed = _BLOCKS.verdict([good, bad, shown])
    assert "1 of 2 checks failed: parity" in failed and "accuracy" not in failed
    table = _BLOCKS.check_table([good, bad, shown])
    assert re.findall("PASS|FAIL|shown only", table) == ["PASS", "FAIL", "shown only"]


def test_a_table_has_its_cells_in_order():
    table = ParsedPage(_BLOCKS.table(["shots", "l2=1"], [["1", "90.0"], ["5", "95.0"]]))
    assert table.text("th") == ["shots", "l2=1"]
    assert table.text("td") == ["1", "90.0", "5", "95.0"]
