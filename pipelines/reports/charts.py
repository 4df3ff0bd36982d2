"""Charts and heat maps of matplotlib, for the macro `chart` of `templates/blocks.html`."""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from pipelines.errors import counted
from pipelines.reports import chart_parts as parts
from pipelines.reports.drawing import CURVES, SOFT, STYLE, TITLE, Chart, finished

_DASHES, _MARKERS = ("-", "--", ":", "-."), "os^DvPX<"
# Most curves in one chart that differ in color.
MAX_CURVES = len(CURVES)
# Most curves in one chart.
MOST_LINES = len(_DASHES) * MAX_CURVES
# Dash, color and marker of each curve; the colors repeat with other dashes and markers.
_LINES: list[dict[str, Any]] = [
    {
        "ls": _DASHES[(index + index // MAX_CURVES) % len(_DASHES)],
        "color": CURVES[index % MAX_CURVES],
        "marker": _MARKERS[(index + index // len(_MARKERS)) % len(_MARKERS)],
    }
    for index in range(MOST_LINES)
]
# Of dashed lines across the chart, in order.
_LEVELS = ((0, (6, 3)), (0, (2, 2)), (0, (8, 2, 2, 2)), (0, (1, 3)))
_CURVES_STYLE = STYLE | {"font.size": 10, "lines.markersize": 5, "lines.markeredgewidth": 0}
# Most classes of a confusion matrix with numbers in its cells, and with names beside it.
_MOST_NUMBERS, _MOST_NAMES = 20, 40


def line_chart(curves, x_label, y_label, percent=False, log=False, png=False) -> Chart:
    """Curves over one pair of axes, with a legend; the mark of a point shows its values on hover.

    Args:
        curves: name -> `(x, y)`, sequences of equal length; at most `MAX_CURVES`, or up to
            `MOST_LINES`; some lines have the same color.
        x_label: name of the horizontal axis.
        y_label: name of the vertical axis.
        percent: whether `y` are fractions, written as percentages; the axis is within 0 and 100 %,
            and says where it begins if not at 0.
        log: whether the vertical axis is logarithmic; then `y` are above 0.
        png: whether to return a PNG file instead, as bytes.

    Raises:
        ValueError: if a curve has more `x` than `y`, or fewer.
    """
    with matplotlib.rc_context(_CURVES_STYLE):
        figure = Figure((5.4, 2.7), layout="constrained")
        axes = figure.subplots()
        for index, (x, y) in enumerate(curves.values()):
            axes.plot(x, y, **_LINES[index], markevery=[], clip_on=False)
        if log:
            axes.set_yscale("log", base=2)
        if all(isinstance(value, int) for x, _ in curves.values() for value in x):
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel(x_label)
        parts.write_numbers(axes.xaxis, False)
        parts.finish_axes(axes, y_label, percent, png)
        parts.add_marks(axes, curves, x_label)
        parts.add_legend(figure, dict(zip(curves, axes.lines, strict=False)))
        return finished(figure, f"{y_label} over {x_label}", png)


def interval_chart(  # noqa: PLR0913 - each is one property of the picture
    curves, x_label, y_label, *, log=False, joined=True, x_percent=False, percent=True,
    lines=None, categories=None, png=False,
) -> Chart:  # fmt: skip
    """Points with intervals, as in `line_chart`.

    Curves with a common `x` are drawn a few points beside each other.

    Args:
        curves: name -> `(x, y, half)` of each point; the interval reaches `half` to both sides; 0
            draws none. At most `MOST_LINES`.
        x_label: name of the horizontal axis.
        y_label: name of the vertical axis.
        log: whether the horizontal axis is logarithmic.
        joined: whether lines join the points of a curve.
        x_percent: whether `x` are fractions too.
        percent: whether `y` are fractions, as for `line_chart`; an arrow marks an interval that
            is cut at 0 or 100 %.
        lines: name -> `y` of a dashed line across the chart, such as chance; at most 4.
        categories: names of `x` = 0, 1, 2, ...; then no lines join the points.
        png: as for `line_chart`.
    """
    lines = lines or {}
    with matplotlib.rc_context(_CURVES_STYLE):
        figure = Figure((5.4, 2.7), layout="constrained")
        axes = figure.subplots()
        values = [{x for x, *_ in points} for points in curves.values()]
        parts.place(axes, sorted(set().union(*values)), log, x_percent)
        if categories is not None:
            parts.name_places(axes, categories)
        shifts = parts.shifts(axes, values)
        for index, (points, shift) in enumerate(zip(curves.values(), shifts, strict=True)):
            style = _LINES[index] | ({} if joined and categories is None else {"ls": "None"})
            parts.add_intervals(axes, points, style, shift, percent)
        for index, y in enumerate(lines.values()):
            axes.axhline(y, ls=_LEVELS[index], lw=1.2, color=SOFT, zorder=1)
        axes.set_xlabel(x_label)
        parts.finish_axes(axes, y_label, percent, png)
        parts.add_marks(axes, curves, x_label, lines, categories)
        keys = dict(zip([*curves, *lines], axes.lines, strict=False))
        if categories is not None and len(curves) == 1:
            del keys[next(iter(curves))]
        parts.add_legend(figure, keys)
        return finished(figure, f"{y_label} over {x_label}" if x_label else y_label, png)


def heat_maps(maps, columns, label, low, high, bar=False) -> Chart:
    """Maps side by side, row after row, from dark violet (`low`) over green to yellow (`high`).

    Args:
        maps: float `[n, h, w]`.
        columns: maps per row; the last row may be shorter.
        label: description for readers who cannot see them.
        low: value of the darkest color.
        high: value of the brightest color.
        bar: whether a bar shows the colors of the values.
    """
    rows = -(-len(maps) // columns)
    height, width = maps.shape[1:]
    with matplotlib.rc_context(STYLE):
        figure = Figure((5.4, 5.0 * rows * height / (columns * width)), layout="compressed")
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for axis, values in zip(axes.flat, maps, strict=False):
            image = axis.imshow(values, vmin=low, vmax=high, interpolation="none")
        if bar:
            figure.colorbar(image, ax=axes, ticks=[low, (low + high) / 2, high], aspect=30)
        return finished(figure, label)


def confusion_matrix(counts, names, step=1, png=False) -> Chart:
    """A confusion matrix: rows are labels, columns predicted classes.

    The color is the share of the images of a row, on a square-root scale: few confusions are
    visible too. Up to 20 classes have the numbers in the cells, up to 40 their names beside them.

    Args:
        counts: int `[m, m]`.
        names: of the classes, short ones; not read if there are more than 40.
        step: number of classes that share a row, for the indices on the axes.
        png: whether to return a PNG file instead, as bytes.
    """
    with matplotlib.rc_context(STYLE):
        return finished(_confusion_figure(counts, names, step), "confusion matrix", png)


def _confusion_figure(counts, names, step):
    classes = len(counts)
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = Figure((5.4, 5.0), layout="constrained")
    axes = figure.subplots()
    axes.imshow(np.sqrt(share), vmin=0, vmax=1, interpolation="none")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("label")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    if classes <= _MOST_NAMES:
        size = min(9, 200 / classes)
        is_short = all(len(name) <= 2 for name in names)
        axes.set_xticks(range(classes), names, fontsize=size, rotation=0 if is_short else 90)
        axes.set_yticks(range(classes), names, fontsize=size)
    else:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda place, _: f"{place * step:,.0f}")
    if classes <= _MOST_NUMBERS:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                color = "#1a1d21" if share[row, column] > 0.4 else "#ffffff"
                axes.text(
                    column, row, f"{count:,}", color=color, fontsize=min(9, 100 / classes),
                    ha="center", va="center",
                )  # fmt: skip
    return figure


def reliability(bins) -> Chart:
    """The accuracy at each confidence above the diagonal, and the share of images below.

    Args:
        bins: "images", "accuracy" and "confidence" of equal bins of the confidence, see
            `pipelines.evaluation.report.calibration`.
    """
    images, accuracy, confidence = (bins[name] for name in ("images", "accuracy", "confidence"))
    count = len(images)
    places, width = (np.arange(count) + 0.5) / count, 1 / count
    titles = [
        f"{100 * i / count:.0f} to {100 * (i + 1) / count:.0f}%: {counted(int(images[i]), 'image')}"
        f", accuracy {100 * accuracy[i]:.1f}%, mean probability {100 * confidence[i]:.1f}%"
        for i in range(count)
    ]
    with matplotlib.rc_context(STYLE | {"axes.autolimit_mode": "data"}):
        figure = Figure((5.4, 4.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        above.plot([0, 1], [0, 1], "--", color=SOFT, linewidth=1)
        for axes, heights, color in (
            (above, accuracy, CURVES[0]),
            (below, images / images.sum(), CURVES[2]),
        ):
            axes.bar(places, heights, 0.9 * width, color=color)
            axes.set_xlim(0, 1)
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
            axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
            axes.grid(axis="y")
            axes.spines[["left", "top", "right"]].set_visible(False)
            axes.tick_params(length=0, pad=6)
            for bar, title in zip(axes.patches, titles, strict=True):
                bar.set_gid(f"{TITLE}{title}")
        above.set_ylim(0, 1)
        above.set_ylabel("accuracy")
        below.set_ylabel("images")
        below.set_xlabel("largest probability")
        return finished(figure, "accuracy and number of images at each largest probability")


def heads_chart(values, y_label, line=None, png=False) -> Chart:
    """A point for every head over the layers, and the mean of each layer.

    Args:
        values: name -> float `[layers, heads]`; at most `MAX_CURVES`.
        y_label: name of the vertical axis.
        line: a value that a dashed line marks, or None.
        png: whether to return a PNG file instead, as bytes.
    """
    with matplotlib.rc_context(STYLE):
        return finished(_heads_figure(values, y_label, line), f"{y_label} of each head", png)


def _heads_figure(values, y_label, line=None):
    figure = Figure((5.4, 3.0), layout="constrained")
    axes = figure.subplots()
    for color, heads in zip(CURVES, values.values(), strict=False):
        layers = np.arange(1, len(heads) + 1)
        axes.plot(layers, heads.mean(axis=1), color=color)
        # Points of two models do not cover each other.
        axes.plot(layers, heads, "o", ms=3, color=color, alpha=0.5, clip_on=False)
    if line is not None:
        axes.axhline(line, color=SOFT, linestyle="--", linewidth=1)
    if len(values) > 1:
        means = axes.lines[:: 1 + next(iter(values.values())).shape[1]]
        figure.legend(means[: len(values)], list(values), loc="outside upper left", ncols=2)
    axes.set_xlabel("layer")
    axes.set_ylabel(parts.wrapped(y_label))
    axes.margins(x=0.03)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(0)
    axes.grid(axis="y")
    axes.spines[["left", "top", "right"]].set_visible(False)
    return figure


def colors(values):
    """The colors of `heat_maps`, float `[..., 4]` in [0, 1], of values in [0, 1]."""
    return matplotlib.colormaps["viridis"](values)
