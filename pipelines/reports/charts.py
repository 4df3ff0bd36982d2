"""Charts and heat maps of matplotlib, for the macro `chart` of `templates/blocks.html`."""

import contextlib
import dataclasses
import io
import re
import textwrap
import warnings

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from pipelines.errors import counted

# The variables of `report.css` that replace these colors, so that charts have a dark side too.
_VARIABLES = {
    "#5b636d": "soft",
    "#dfe3e8": "line",
    "#e9ecf0": "grid",
    "#2a6fc9": "s1",
    "#c2570c": "s2",
    "#1d8a66": "s3",
    "#8a4fbf": "s4",
}
_SOFT, _LINE, _GRID, *_CURVES = _VARIABLES
_DASHES = ("-", "--", ":", "-.")
# Most curves in one chart that differ in color.
MAX_CURVES = len(_CURVES)
# Dash and color of each curve; the colors repeat with other dashes.
_LINES = [
    (_DASHES[(index + index // MAX_CURVES) % len(_DASHES)], _CURVES[index % MAX_CURVES])
    for index in range(len(_DASHES) * MAX_CURVES)
]
# Most curves in one chart.
MOST_LINES = len(_LINES)
# Letters of a line beside a vertical axis.
_MOST_LETTERS = 34
# Most classes of a confusion matrix with numbers in its cells, and with names beside it.
_MOST_NUMBERS, _MOST_NAMES = 20, 40
# How the name of a group begins whose rest is shown on hover: matplotlib has no titles.
_TITLE = "title: "
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.color": _SOFT,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "legend.fontsize": 10,
    "axes.labelcolor": _SOFT,
    "axes.edgecolor": _LINE,
    "xtick.color": _LINE,
    "xtick.labelcolor": _SOFT,
    "ytick.color": _LINE,
    "ytick.labelcolor": _SOFT,
    "grid.color": _GRID,
    "axes.axisbelow": True,
    "axes.autolimit_mode": "round_numbers",
    "axes.xmargin": 0,
    "axes.ymargin": 0,
    "legend.frameon": False,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing inside the page.

    Attributes:
        label: description for readers who cannot see it.
        width, height: in points.
        elements: the content of the SVG element; its text is escaped.
    """

    label: str
    width: float
    height: float
    elements: str


def line_chart(curves, x_label, y_label, percent=False, log=False, png=False) -> Chart:
    """Curves over one pair of axes, with a legend; the mark of a point shows its values on hover.

    Args:
        curves: name -> `(x, y)`, sequences of equal length; at most `MAX_CURVES`, or up to
            `MOST_LINES`; some lines have the same color.
        x_label: name of the horizontal axis.
        y_label: name of the vertical axis.
        percent: whether `y` are fractions, written as percentages; the axis is within 0 and 100 %.
        log: whether the vertical axis is logarithmic; then `y` are above 0.
        png: whether to return a PNG file instead, as bytes.

    Raises:
        ValueError: if a curve has more `x` than `y`, or fewer.
    """
    with matplotlib.rc_context(_STYLE):
        figure, axes = _curves_figure()
        for index, (x, y) in enumerate(curves.values()):
            dash, color = _LINES[index]
            axes.plot(x, y, dash, color=color, clip_on=False)
        if log:
            axes.set_yscale("log", base=2)
        if png:  # A page has it as the title.
            axes.set_ylabel(_wrapped(y_label))
        if all(isinstance(value, int) for x, _ in curves.values() for value in x):
            axes.xaxis.get_major_locator().set_params(integer=True)
        _finish_curves(figure, axes, list(curves), x_label, y_percent=percent)
        return _chart(figure, f"{y_label} over {x_label}", png)


def interval_chart(
    curves, x_label, y_label, *, log=False, joined=True, x_percent=False, png=False
) -> Chart:
    """Points with intervals, as in `line_chart`.

    Args:
        curves: name -> `(x, y, half)` of each point; `y` are fractions, and the interval reaches
            `half` to both sides; 0 draws none. At most `MOST_LINES`.
        x_label: name of the horizontal axis.
        y_label: name of the vertical axis.
        log: whether the horizontal axis is logarithmic.
        joined: whether lines join the points of a curve.
        x_percent: whether `x` are fractions too.
        png: as for `line_chart`.
    """
    with matplotlib.rc_context(_STYLE):
        figure, axes = _curves_figure()
        for index, points in enumerate(curves.values()):
            x, y, halves = (np.array(values, float) for values in zip(*points, strict=True))
            dash, color = _LINES[index]
            axes.plot(x, y, ls=dash if joined else "None", color=color, clip_on=False)
            low, high = np.clip(y - halves, 0, 1), np.clip(y + halves, 0, 1)
            axes.vlines(x, low, high, color=color, alpha=0.6, lw=1.2, clip_on=False)
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
        if png:
            axes.set_ylabel(_wrapped(y_label))
        _finish_curves(figure, axes, list(curves), x_label, x_percent=x_percent, y_percent=True)
        return _chart(figure, f"{y_label} over {x_label}", png)


def _curves_figure():
    figure = Figure((5.4, 3.0), layout="constrained")
    return figure, figure.subplots()


def _finish_curves(figure, axes, names, x_label, *, x_percent=False, y_percent=False):
    """Adds legend, axes and the marks of the points to the lines of a figure."""
    keys = axes.lines
    if any(line.get_linestyle() == "None" for line in keys):
        keys = [Line2D([], [], marker="o", ls="", ms=5, color=line.get_color()) for line in keys]
    figure.legend(keys, names, loc="outside upper left", ncols=MAX_CURVES)
    axes.set_xlabel(x_label)
    axes.grid(axis="y")
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.tick_params(length=0, pad=8)
    for axis, percent in ((axes.xaxis, x_percent), (axes.yaxis, y_percent)):
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        if percent:
            axis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
    write_x, write_y = (axis.get_major_formatter() for axis in (axes.xaxis, axes.yaxis))
    for name, line in zip(names, list(axes.lines), strict=True):
        for x, y in line.get_xydata():
            title = f"{_TITLE}{name}, {x_label} {write_x(x)}: {write_y(y)}"
            axes.plot(x, y, "o", ms=3.5, color=line.get_color(), clip_on=False, gid=title)
    if y_percent:  # The round numbers at the ends of the axis may be beyond any fraction.
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, 0.0), min(high, 1.0))


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
    with matplotlib.rc_context(_STYLE):
        figure = Figure((5.4, 5.0 * rows * height / (columns * width)), layout="compressed")
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0, hspace=0)
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis in axes.flat:
            axis.set_axis_off()
        for axis, values in zip(axes.flat, maps, strict=False):
            image = axis.imshow(values, vmin=low, vmax=high, interpolation="none")
        if bar:
            figure.colorbar(image, ax=axes, ticks=[low, (low + high) / 2, high], aspect=30)
        return _chart(figure, label)


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
    with matplotlib.rc_context(_STYLE):
        return _chart(_confusion_figure(counts, names, step), "confusion matrix", png)


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
    with matplotlib.rc_context(_STYLE | {"axes.autolimit_mode": "data"}):
        figure = Figure((5.4, 4.6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        above.plot([0, 1], [0, 1], "--", color=_SOFT, linewidth=1)
        for axes, heights, color in (
            (above, accuracy, _CURVES[0]),
            (below, images / images.sum(), _CURVES[2]),
        ):
            axes.bar(places, heights, 0.9 * width, color=color)
            axes.set_xlim(0, 1)
            axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
            axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.4g}%")
            axes.grid(axis="y")
            axes.spines[["left", "top", "right"]].set_visible(False)
            axes.tick_params(length=0, pad=6)
            for bar, title in zip(axes.patches, titles, strict=True):
                bar.set_gid(f"{_TITLE}{title}")
        above.set_ylim(0, 1)
        above.set_ylabel("accuracy")
        below.set_ylabel("images")
        below.set_xlabel("largest probability")
        return _chart(figure, "accuracy and number of images at each largest probability")


def heads_chart(values, y_label, line=None, png=False) -> Chart:
    """A point for every head over the layers, and the mean of each layer.

    Args:
        values: name -> float `[layers, heads]`; at most `MAX_CURVES`.
        y_label: name of the vertical axis.
        line: a value that a dashed line marks, or None.
        png: whether to return a PNG file instead, as bytes.
    """
    with matplotlib.rc_context(_STYLE):
        return _chart(_heads_figure(values, y_label, line), f"{y_label} of each head", png)


def _heads_figure(values, y_label, line=None):
    figure = Figure((5.4, 3.0), layout="constrained")
    axes = figure.subplots()
    for color, heads in zip(_CURVES, values.values(), strict=False):
        layers = np.arange(1, len(heads) + 1)
        axes.plot(layers, heads.mean(axis=1), color=color)
        # Points of two models do not cover each other.
        axes.plot(layers, heads, "o", ms=3, color=color, alpha=0.5, clip_on=False)
    if line is not None:
        axes.axhline(line, color=_SOFT, linestyle="--", linewidth=1)
    if len(values) > 1:
        means = axes.lines[:: 1 + next(iter(values.values())).shape[1]]
        figure.legend(means[: len(values)], list(values), loc="outside upper left", ncols=2)
    axes.set_xlabel("layer")
    axes.set_ylabel(_wrapped(y_label))
    axes.margins(x=0.03)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_ylim(0)
    axes.grid(axis="y")
    axes.spines[["left", "top", "right"]].set_visible(False)
    return figure


def colors(values):
    """The colors of `heat_maps`, float `[..., 4]` in [0, 1], of values in [0, 1]."""
    return matplotlib.colormaps["viridis"](values)


def _chart(figure, label, png=False):
    if png:
        return _png(figure)
    file = io.StringIO()
    # Parts that are used again have hashes as names: equal only if the parts are.
    with matplotlib.rc_context({"svg.hashsalt": label}), _without_font_warnings():
        figure.savefig(file, format="svg", transparent=True)
    # The head has addresses of XML name spaces and a style for the whole page.
    svg = file.getvalue().partition("</defs>")[2].rpartition("</svg>")[0]
    svg = re.sub(rf'<g id="{_TITLE}([^"]*)"', r"<g><title>\1</title", svg)
    # Names of groups, which nothing uses, would appear in every chart of a page.
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    for color, variable in _VARIABLES.items():
        svg = svg.replace(color, f"var(--{variable})")
    width, height = 72 * figure.get_size_inches()
    return Chart(label=label, width=width, height=height, elements=svg)


def _png(figure):
    file = io.BytesIO()
    with _without_font_warnings():
        figure.savefig(file, format="png", dpi=200, facecolor="white")
    return file.getvalue()


@contextlib.contextmanager
def _without_font_warnings():
    """Ignores names in scripts that matplotlib's font lacks: the browser draws the text."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font|.* does not support .* nat")
        yield


def _wrapped(label):
    """A label of a vertical axis in lines that are shorter than the axis."""
    return textwrap.fill(label, _MOST_LETTERS)
