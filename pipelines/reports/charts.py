"""Line charts as inline SVG, for `html_page.page`."""

import dataclasses
import math
from collections.abc import Sequence

from pipelines.reports.html_page import escape

# In CSS pixels: the size of a chart, and the margins around its axes.
CHART = {"width": 520, "height": 270, "left": 52, "right": 16, "top": 14, "bottom": 44}
# Most curves in one chart: `report.css` has as many colors and line styles.
MAX_SERIES = 4


@dataclasses.dataclass(frozen=True)
class Series:
    """One curve: `x` and `y` of equal length, finite."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def line_chart(series, x_label, y_label, percent=False):
    """Curves over one pair of axes, as inline SVG with a legend; points show values on hover.

    Args:
        series: up to `MAX_SERIES` `Series`.
        x_label: name of the horizontal axis.
        y_label: name of the vertical axis.
        percent: whether `y` are fractions, written as percentages.

    Raises:
        ValueError: if there is no series, a series without points, more than `MAX_SERIES`, or a
            value that is not finite.
    """
    _check_series(series)
    x_axis = _Axis(
        ticks=_ticks([value for one in series for value in one.x]),
        begin=CHART["left"],
        end=CHART["width"] - CHART["right"],
    )
    y_axis = _Axis(
        ticks=_ticks([value for one in series for value in one.y]),
        begin=CHART["height"] - CHART["bottom"],
        end=CHART["top"],
    )
    curves = [
        element
        for number, one in enumerate(series, 1)
        for element in _curve(number, one, x_axis, y_axis, x_label, percent)
    ]
    legend = "".join(
        f'<span><svg width="26" height="8" aria-hidden="true"><line class="curve c{number}" x1="1" '
        f'x2="25" y1="4" y2="4"/></svg>{escape(one.name)}</span>'
        for number, one in enumerate(series, 1)
    )
    return (
        f'<div class="legend">{legend}</div><svg class="chart" viewBox="0 0 {CHART["width"]} '
        f'{CHART["height"]}" role="img" aria-label="{escape(y_label)} over {escape(x_label)}">'
        f"{''.join([*_axes(x_axis, y_axis, x_label, percent), *curves])}</svg>"
    )


@dataclasses.dataclass(frozen=True)
class _Axis:
    """The ticks of an axis, and the pixels of the first and the last one."""

    ticks: list[float]
    begin: int
    end: int

    def pixel(self, value):
        offset = (self.end - self.begin) * (value - self.ticks[0])
        return self.begin + offset / (self.ticks[-1] - self.ticks[0])


def _axes(x_axis, y_axis, x_label, percent):
    """Grid lines, numbers, and the name of the horizontal axis."""
    left, right, bottom = x_axis.begin, x_axis.end, y_axis.begin
    for tick in y_axis.ticks:
        y = f"{y_axis.pixel(tick):.1f}"
        yield f'<line class="gridline" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield (
            f'<text x="{left - 8}" y="{y}" dy="4" text-anchor="end">{_number(tick, percent)}</text>'
        )
    for tick in x_axis.ticks:
        yield (
            f'<text x="{x_axis.pixel(tick):.1f}" y="{bottom + 18}" text-anchor="middle">'
            f"{_number(tick)}</text>"
        )
    yield f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    yield (
        f'<text x="{(left + right) / 2}" y="{CHART["height"] - 6}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )


def _curve(number, series, x_axis, y_axis, x_label, percent):
    """A line through the points, and for each point a circle with its values as the title."""
    points = [(x_axis.pixel(x), y_axis.pixel(y)) for x, y in zip(series.x, series.y, strict=True)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline class="curve c{number}" points="{path}"/>'
    for (x, y), step, value in zip(points, series.x, series.y, strict=True):
        yield (
            f'<circle class="p{number}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>'
            f"{escape(series.name)}, {escape(x_label)} {_number(step)}: {_number(value, percent)}"
            "</title></circle>"
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


def _ticks(values):
    """4 to 8 round numbers whose first and last enclose the values."""
    low, high = min(values), max(values)
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
