"""Draws docs/inference.png from the table "ViT-B/16 at 224 on AMX" of docs/benchmarks.md.

usage: python -m docs.pictures.inference
"""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

PAGE, HEADING, PICTURE = "docs/benchmarks.md", "### ViT-B/16 at 224 on AMX", "docs/inference.png"
OURS, COLORS = "this project", {True: "#2563b0", False: "#b8c4d6"}


def rows(page):
    """The rows of the table below the heading: system, dtype, rates with a batch of 1 and of 8."""
    section = page.split(HEADING)[1].split("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [(system, dtype, float(one), float(eight)) for system, dtype, one, eight in cells]


def draw(found, path):
    """Writes the chart: a panel for each batch size, bars grouped by dtype."""
    figure = Figure((12, 4.2), dpi=100, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle("ViT-B/16, images per second on two CPU cores (longer is better)", fontsize=17)
    dtypes = list(dict.fromkeys(dtype for _, dtype, *_ in found))
    # A gap of half a bar separates the dtypes.
    places = [i + 0.6 * dtypes.index(row[1]) for i, row in enumerate(found)]
    for batch, axis in enumerate(figure.subplots(1, 2, sharey=True)):
        rates = [row[2 + batch] for row in found]
        bars = axis.barh(places, rates, color=[COLORS[row[0] == OURS] for row in found])
        axis.bar_label(bars, [f"{rate:g}" for rate in rates], padding=4, fontsize=14)
        axis.set_title(("one image at a time", "eight images at a time")[batch], fontsize=15)
        axis.set_yticks(places, [f"{system}, {dtype}" for system, dtype, *_ in found], fontsize=14)
        for label, row in zip(axis.get_yticklabels(), found, strict=False):
            label.set_fontweight("bold" if row[0] == OURS else "normal")
        axis.set_xlim(0, 1.15 * max(rates))
        axis.set_xticks([])
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
    axis.invert_yaxis()
    figure.savefig(path, metadata={"Software": None})


if __name__ == "__main__":
    with open(PAGE, encoding="utf-8") as file:
        draw(rows(file.read()), PICTURE)
