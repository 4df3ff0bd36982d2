"""Builds a report as one HTML file: pictures and curves inside, nothing loaded from elsewhere.

Every function takes plain values, escapes text, and returns HTML for `page`. The page follows the
reader's light or dark setting and runs no script.
"""

import base64
import dataclasses
import html
import math
import os
from collections.abc import Sequence

from vit_tf.analysis import inspection

CHART = {"width": 520, "height": 270, "left": 52, "right": 16, "top": 14, "bottom": 44}
# Curves that one chart can hold; colours and line styles stay apart for this many.
MAX_SERIES = 4

_STYLE = os.path.join(os.path.dirname(__file__), "report.css")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """A number of the run and what it should be; `passed=None` shows it without a judgement."""

    name: str
    value: str
    expected: str = ""
    passed: bool | None = None


@dataclasses.dataclass(frozen=True)
class Series:
    """One curve: `x` and `y` of equal length, finite."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def page(title, lead, *blocks, footer=""):
    """The whole file.

    Args:
        title: name of the report.
        lead: one or two sentences under it.
        *blocks: HTML from the functions below, in order.
        footer: versions, date and the like.
    """
    with open(_STYLE, encoding="utf-8") as file:
        style = file.read()
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{_text(title)}</h1>\n<p class="soft">{_text(lead)}</p>\n'
        + "\n".join(blocks)
        + f"\n<footer>{_text(footer)}</footer>\n</main>\n</body>\n</html>\n"
    )


def section(heading, text, *blocks):
    """A titled card with a paragraph and HTML blocks."""
    return f"<section>\n<h2>{_text(heading)}</h2>\n<p>{_text(text)}</p>\n" + (
        "\n".join(blocks) + "\n</section>"
    )


def row(*blocks):
    """Blocks side by side, one below the other on narrow screens."""
    return f'<div class="row">{"".join(blocks)}</div>'


def verdict(checks):
    """One line: did everything pass?"""
    judged = [check for check in checks if check.passed is not None]
    failed = [check.name for check in judged if not check.passed]
    if failed:
        text = f"✗ {len(failed)} of {len(judged)} checks failed: {', '.join(failed)}"
    else:
        text = f"✓ All {len(judged)} checks passed"
    return f'<p class="verdict {"fail" if failed else "pass"}">{_text(text)}</p>'


def tiles(items):
    """Headline numbers: `(value, label)` pairs."""
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{_text(value)}</b><span>{_text(label)}</span></div>'
            for value, label in items
        )
        + "</div>"
    )


def steps(items):
    """A numbered list of sentences."""
    return "<ol>" + "".join(f"<li>{_text(item)}</li>" for item in items) + "</ol>"


def code(text):
    """Commands to copy."""
    return f"<pre>{_text(text)}</pre>"


def picture(image, width, alt):
    """An image inside the page, enlarged without smoothing.

    Args:
        image: uint8 or float in [0, 1]; see `inspection.encode_png`.
        width: on the page, in CSS pixels.
        alt: what it shows, for readers who cannot see it.
    """
    data = base64.b64encode(inspection.encode_png(image)).decode("ascii")
    return (
        f'<img class="pixels" src="data:image/png;base64,{data}" width="{width}" '
        f'alt="{_text(alt)}">'
    )


def figure(title, content, caption):
    """Content with a title above and an explanation below."""
    title, caption = _text(title), _text(caption)
    return f"<figure><h3>{title}</h3>{content}<figcaption>{caption}</figcaption></figure>"


def cards(items):
    """Lays out `example`s in a grid."""
    return f'<div class="cards">{"".join(items)}</div>'


def example(image, label, probabilities):
    """A classified image, marked right or wrong.

    Args:
        image: see `picture`.
        label: its true class.
        probabilities: `(class, probability)` pairs, the most probable first.
    """
    said = probabilities[0][0]
    right = said == label
    mark = (
        '<span class="tag pass">✓ right</span>'
        if right
        else '<span class="tag fail">✗ wrong</span>'
    )
    bars = "".join(
        f'<div class="bar"><span>{_text(name)}</span>'
        f'<i><u style="width:{100 * share:.1f}%"></u></i><em class="number">{share:.1%}</em></div>'
        for name, share in probabilities
    )
    truth = "" if right else f'<div class="soft">is {_text(label)}</div>'
    return (
        f'<div class="example{"" if right else " wrong"}">'
        f"{picture(image, 112, f'a {label}, classified as {said}')}"
        f'<div class="head"><span class="said">{_text(said)}</span>{mark}</div>{truth}{bars}</div>'
    )


def picture_table(rows, width):
    """Rows of equal-sized pictures.

    Args:
        rows: `(name, images)` pairs.
        width: of each picture, in CSS pixels.
    """
    body = "".join(
        f'<tr><th scope="row">{_text(name)}</th>'
        + "".join(f"<td>{picture(image, width, name)}</td>" for image in images)
        + "</tr>"
        for name, images in rows
    )
    return f'<div class="scroll"><table class="maps">{body}</table></div>'


def check_table(checks):
    """All `Check`s with value, expectation and verdict."""
    verdicts = {
        True: '<span class="tag pass">✓ PASS</span>',
        False: '<span class="tag fail">✗ FAIL</span>',
        None: '<span class="soft">shown only</span>',
    }
    body = "".join(
        f'<tr><td>{_text(check.name)}</td><td class="number">{_text(check.value)}</td>'
        f'<td class="number soft">{_text(check.expected)}</td>'
        f"<td>{verdicts[check.passed]}</td></tr>"
        for check in checks
    )
    return (
        '<div class="scroll"><table><thead><tr><th>What</th><th>Measured</th><th>Expected</th>'
        f"<th></th></tr></thead><tbody>{body}</tbody></table></div>"
    )


def line_chart(series, x_label, y_label, percent=False):
    """Curves over one pair of axes, as inline SVG with a legend; points name themselves on hover.

    Args:
        series: up to `MAX_SERIES` `Series`.
        x_label: name of the horizontal axis.
        y_label: name of the vertical axis.
        percent: whether `y` are shares, written as percentages.

    Raises:
        ValueError: if there is nothing to draw, too much, or a value is not finite.
    """
    _check_series(series)
    spread_x = [value for one in series for value in one.x]
    spread_y = [value for one in series for value in one.y]
    x_ticks = _ticks(min(spread_x), max(spread_x))
    y_ticks = _ticks(min(spread_y), max(spread_y))
    c = CHART
    right, bottom = c["width"] - c["right"], c["height"] - c["bottom"]

    def at_x(value):
        return c["left"] + (right - c["left"]) * (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])

    def at_y(value):
        return bottom - (bottom - c["top"]) * (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    parts = []
    for tick in y_ticks:
        y = f"{at_y(tick):.1f}"
        parts.append(f'<line class="gridline" x1="{c["left"]}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(
            f'<text x="{c["left"] - 8}" y="{y}" dy="4" text-anchor="end">'
            f"{_number(tick, percent)}</text>"
        )
    for tick in x_ticks:
        parts.append(
            f'<text x="{at_x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">'
            f"{_number(tick)}</text>"
        )
    parts.append(f'<line class="axis" x1="{c["left"]}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(
        f'<text x="{(c["left"] + right) / 2}" y="{c["height"] - 6}" text-anchor="middle">'
        f"{_text(x_label)}</text>"
    )
    for number, one in enumerate(series, 1):
        points = [(at_x(x), at_y(y)) for x, y in zip(one.x, one.y, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline class="curve c{number}" points="{path}"/>')
        for (x, y), step, value in zip(points, one.x, one.y, strict=True):
            parts.append(
                f'<circle class="p{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>'
                f"{_text(one.name)}, {_text(x_label)} {_number(step)}: {_number(value, percent)}"
                "</title></circle>"
            )
    legend = "".join(
        f'<span><svg width="26" height="8" aria-hidden="true"><line class="curve c{number}" x1="1" '
        f'x2="25" y1="4" y2="4"/></svg>{_text(one.name)}</span>'
        for number, one in enumerate(series, 1)
    )
    return (
        f'<div class="legend">{legend}</div><svg class="chart" viewBox="0 0 {c["width"]} '
        f'{c["height"]}" role="img" aria-label="{_text(y_label)} over {_text(x_label)}">'
        f"{''.join(parts)}</svg>"
    )


def _check_series(series):
    if not 1 <= len(series) <= MAX_SERIES:
        raise ValueError(f"A chart holds 1 to {MAX_SERIES} series. Received: {len(series)}.")
    for one in series:
        if not len(one.x) or len(one.x) != len(one.y):
            raise ValueError(
                f"Series {one.name!r} needs as many x as y, at least one. Received: {len(one.x)} "
                f"and {len(one.y)}."
            )
        if not all(map(math.isfinite, [*one.x, *one.y])):
            raise ValueError(f"Series {one.name!r} has a value that is not finite.")


def _ticks(low, high):
    """4 to 8 round numbers whose first is at most `low` and whose last is at least `high`."""
    if low == high:
        low, high = low - 0.5, high + 0.5
    power = 10.0 ** math.floor(math.log10((high - low) / 5))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if (high - low) / (m * power) <= 6)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _number(value, percent=False):
    if percent:
        return f"{100 * value:.4g}%"
    return f"{value:,.0f}" if value == int(value) else f"{value:.4g}"


def _text(value):
    return html.escape(str(value))
