"""A figure of matplotlib as an SVG drawing in the colors of a page, or as a PNG file."""

import contextlib
import dataclasses
import io
import re
import warnings

import matplotlib

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
SOFT, _LINE, _GRID, *CURVES = _VARIABLES
# How the name of a group begins whose rest is shown on hover: matplotlib has no titles.
TITLE = "title: "
STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.color": SOFT,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "legend.fontsize": 10,
    "axes.labelcolor": SOFT,
    "axes.edgecolor": _LINE,
    "xtick.color": _LINE,
    "xtick.labelcolor": SOFT,
    "ytick.color": _LINE,
    "ytick.labelcolor": SOFT,
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


def finished(figure, label, png=False) -> Chart | bytes:
    """The drawing of a figure that was made within `STYLE`.

    Args:
        figure: with colors of this module only; an artist whose name (`gid`) begins with `TITLE`
            shows the rest of it on hover.
        label: description for readers who cannot see it.
        png: whether to return a PNG file instead, as bytes.
    """
    if png:
        return _png(figure)
    file = io.StringIO()
    # Parts that are used again have hashes as names: equal only if the parts are.
    with matplotlib.rc_context({"svg.hashsalt": label}), _without_font_warnings():
        figure.savefig(file, format="svg", transparent=True)
    # The head has addresses of XML name spaces and a style for the whole page.
    svg = file.getvalue().partition("</defs>")[2].rpartition("</svg>")[0]
    svg = re.sub(rf'<g id="{TITLE}([^"]*)"', r"<g><title>\1</title", svg)
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
