"""Axes, intervals, marks and legend of `charts.line_chart` and `charts.interval_chart`."""

import textwrap

import numpy as np
from matplotlib.markers import CARETDOWN, CARETUP
from matplotlib.ticker import NullFormatter, NullLocator, StrMethodFormatter
from matplotlib.transforms import offset_copy

from pipelines.reports.drawing import TITLE

# Points between two curves beside each other, and between the first and the last of them.
_BESIDE, _MOST_BESIDE = 5, 24
# Points: about the width of the axes, and the least distance of two numbers below them.
_WIDTH, _APART = 320, 44
# Most values of `x` with numbers of their own on a logarithmic axis.
_MOST_NUMBERED = 8
# Width of a letter, and most letters of a name in a legend.
_LETTER, _MOST_LEGEND = 5.5, 62
# The vertical axis of fractions begins at 0 if one is below.
_NEAR_0 = 0.3
# Letters of a line beside a vertical axis.
_MOST_LETTERS = 32
# Most entries of a row of a legend.
_MOST_COLUMNS = 4


def place(axes, x, log, percent):
    """Sets scale, limits and numbers of the horizontal axis of the sorted values `x`."""
    if log:
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    write_numbers(axes.xaxis, percent)
    if log and len(x) > _MOST_NUMBERED:
        return
    if not log and all(isinstance(value, int) for value in x):
        axes.xaxis.get_major_locator().set_params(integer=True)
    scale = axes.xaxis.get_transform()
    places = scale.transform(np.array(x, float))
    beside = 0.04 * np.ptp(places) or 0.5
    low, high = places[0] - beside, places[-1] + beside
    axes.set_xlim(*scale.inverted().transform([low, high]))
    if log or len(x) == 1:
        shown = [0]
        for index, place in enumerate(places):
            if (place - places[shown[-1]]) / (high - low) * _WIDTH > _APART:
                shown.append(index)
        axes.set_xticks([x[index] for index in shown])
        axes.xaxis.set_minor_locator(NullLocator())


def name_places(axes, names):
    """Writes names below 0, 1, 2, ... of the horizontal axis, slanted if they are wide."""
    letters = max(int(_WIDTH / len(names) / _LETTER), 1)
    lines = [textwrap.wrap(name, letters, break_long_words=False) for name in names]
    if all(len(line) <= letters for each in lines for line in each):
        axes.set_xticks(range(len(names)), ["\n".join(each) for each in lines])
        height = 1.2 * axes.xaxis.label.get_size() * (max(map(len, lines)) - 1)
    else:
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
        height = 0.5 * _LETTER * max(map(len, names))
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.figure.set_figheight(axes.figure.get_figheight() + height / 72)


def shifts(axes, values):
    """Points by which each curve is drawn beside its `x`, so that equal ones have no common place.

    Args:
        values: the set of `x` of each curve.
    """
    common = [any(x & other for other in values if other is not x) for x in values]
    places = axes.xaxis.get_transform().transform(np.array(sorted(set().union(*values)), float))
    step = min(_BESIDE, _MOST_BESIDE / max(sum(common), 1))
    if len(places) > 1:  # Curves stay nearer to their own x than to the next one.
        gap = _WIDTH * np.diff(places).min() / np.ptp(places)
        step = min(step, 0.7 * gap / max(sum(common), 1))
    ranks = np.cumsum(common) - (1 + sum(common)) / 2
    return [step * rank if shifted else 0 for rank, shifted in zip(ranks, common, strict=True)]


def add_intervals(axes, points, style, shift, percent):
    """Draws a line through points, and their intervals.

    Args:
        axes: of the chart.
        points: `(x, y, half)` of each.
        style: of the line.
        shift: points by which all are drawn beside their `x`.
        percent: whether `y` are fractions; arrows mark intervals that are cut at 0 and 1.
    """
    x, y, halves = (np.array(values, float) for values in zip(*points, strict=True))
    place = offset_copy(axes.transData, axes.figure, x=shift, units="points")
    # Drawn without the shift first: the limits of the axes are those of the values.
    (line,) = axes.plot(x, y, **style, markevery=[], clip_on=False)
    line.set_transform(place)
    color, has = style["color"], halves > 0
    x, low, high = x[has], (y - halves)[has], (y + halves)[has]
    least, most = (0, 1) if percent else (-np.inf, np.inf)
    ends = [(low, low < least, CARETDOWN), (high, high > most, CARETUP)]
    low, high = np.clip([low, high], least, most)
    bars = axes.vlines(x, low, high, color=color, alpha=0.7, lw=1.2, clip_on=False)
    bars.set(transform=place, in_layout=False)
    for values, is_cut, arrow in ends:
        for chosen, marker in ((~is_cut, "_"), (is_cut, arrow)):
            caps = axes.scatter(
                x[chosen], np.clip(values[chosen], least, most), 16, color=color, marker=marker,
                lw=1.2, clip_on=False,
            )  # fmt: skip
            caps.set_offset_transform(place)
            caps.set_in_layout(False)


def write_numbers(axis, percent):
    """Sets how an axis writes its numbers."""
    axis.set_major_formatter(_percents if percent else StrMethodFormatter("{x:,g}"))


def _percents(value, _=None):
    return f"{100 * value:.4g}%"


def finish_axes(axes, y_label, percent, png):
    """Sets the look of the axes, and the vertical one's numbers, limits and label."""
    axes.grid(axis="y")
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.tick_params(length=0, pad=8)
    write_numbers(axes.yaxis, percent)
    label = [wrapped(y_label)] * png  # A page has it as the title.
    if percent and axes.dataLim.y0 < _NEAR_0:
        axes.update_datalim([(0, 0)], updatex=False)
    if axes.get_yscale() == "linear":
        locator = axes.yaxis.get_major_locator()
        locator.set_params(nbins=7)
        axes.autoscale_view(scalex=False)
        # Fixed, since the height, which the numbers depend on, changes with the legend.
        numbers = locator.tick_values(*axes.get_ylim())
        if percent:  # The round numbers at the ends may be beyond any fraction.
            numbers = np.unique(np.clip(numbers, 0, 1))
        axes.set_yticks(numbers)
        axes.set_ylim(numbers[0], numbers[-1])
        label += [f"(axis from {_percents(numbers[0])})"] * bool(percent and numbers[0] > 0)
    axes.set_ylabel("\n".join(label))


def add_marks(axes, curves, x_label, lines=(), categories=None):
    """Draws the points of curves, which show their values on hover, as lines across do.

    Args:
        axes: their lines are those of the curves and the ones across.
        curves: by name.
        x_label: name of the horizontal axis.
        lines: name -> `y`.
        categories: names of `x` = 0, 1, 2, ... or None.
    """
    write_x, write_y = (axis.get_major_formatter() for axis in (axes.xaxis, axes.yaxis))
    drawn = list(axes.lines)
    for name, line in zip(curves, drawn, strict=False):
        for x, y in line.get_xydata():
            where = f"{x_label} {write_x(x)}" if categories is None else categories[int(x)]
            (mark,) = axes.plot(x, y, line.get_marker(), color=line.get_color())
            mark.set(transform=line.get_transform(), clip_on=False)
            mark.set_gid(f"{TITLE}{name}, {where}: {write_y(y)}")
    for name, line in zip(lines, drawn[len(curves) :], strict=True):
        line.set_gid(f"{TITLE}{name}: {write_y(lines[name])}")


def add_legend(figure, keys):
    """Adds a legend of `keys`, name -> line, above the axes, which keep their height."""
    if not keys:
        return
    for columns in range(_MOST_COLUMNS, 0, -1):
        names = [textwrap.fill(name, _MOST_LEGEND) for name in keys]
        legend = figure.legend(
            keys.values(),
            names,
            loc="outside upper left",
            ncols=columns,
            handlelength=2.8,
            columnspacing=1.2,
            handletextpad=0.6,
        )
        size = legend.get_window_extent()
        if size.width <= figure.bbox.width or columns == 1:
            break
        legend.remove()
    figure.set_figheight(figure.get_figheight() + size.height / figure.dpi)


def wrapped(label):
    """A label of a vertical axis in lines that are shorter than the axis."""
    return textwrap.fill(label, _MOST_LETTERS)
