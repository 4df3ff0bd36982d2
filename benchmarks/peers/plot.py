"""Draws the rates of all systems as bars, one chart for each model, batch and number of threads."""

import itertools

from benchmarks.peers.table import heading

_COLORS = {True: "#d1495b", False: "#8d99ae"}


def draw(rows, path):
    """Writes a picture; the end of `path` names the format, such as .svg or .png."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = grouped(rows)
    models = list(dict.fromkeys(model for model, _, _ in groups))
    columns = max(sum(key[0] == model for key in groups) for model in models)
    most = max(map(len, groups.values()))
    figure = Figure((5.2 * columns, (0.9 + 0.24 * most) * len(models)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(models), columns, squeeze=False)
    for line, model in zip(axes, models, strict=True):
        found = [(key, group) for key, group in groups.items() if key[0] == model]
        for axis, pair in itertools.zip_longest(line, found):
            if pair:
                _draw_group(axis, *pair)
            else:
                axis.set_axis_off()
    figure.savefig(path, dpi=120)


def grouped(rows):
    """`(model, batch, threads)` -> its rows, the fastest first."""
    groups = {}
    for row in rows:
        groups.setdefault((row["model"], row["batch"], row["threads"]), []).append(row)
    return {key: sorted(group, key=lambda x: -x["median"]) for key, group in groups.items()}


def _draw_group(axis, key, group):
    names = [row["system"] for row in group]
    medians = [row["median"] for row in group]
    bars = axis.barh(names, medians, color=[_COLORS[row["ours"]] for row in group])
    labels = [f"{row['median']:.3g} ({row['of_peak']:.0%})" for row in group]
    axis.bar_label(bars, labels, padding=3, fontsize=7)
    axis.set_title(heading(*key), fontsize=9)
    axis.set_xlabel("images per second, median (best as a fraction of the peak)", fontsize=7)
    axis.set_xlim(0, 1.3 * max(medians))
    axis.tick_params(labelsize=7)
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
