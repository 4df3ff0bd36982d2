"""From times to the rows of the table.

A row is a dict: `model`, `batch`, `threads`, `system`, `dtype`, `ours`, `macs` that it executes for
one image, `seconds` of every call, `difference` of its logits. `summarize` adds the rest.
"""

import statistics

from benchmarks.peers.systems import choose_peak

_HEAD = (
    f"{'system':30} {'img/s: best':>11} {'median':>7} {'spread':>6}  {'to best peer':>13}"
    f"  {'GFLOP/s':>7} {'of peak':>7}  difference"
)


def summarize(rows, peaks, isa=None):
    """Adds rates and ratios to the rows of one model, batch and number of threads.

    `best` and `median` are images per second; `spread` is the middle half of the times as a
    fraction of the median; `peer` is the fastest other system with this dtype, None without one;
    `best_ratio` and `median_ratio` are the rates as multiples of that system's rates. `flops` are
    operations per second of the best time, two per executed multiplication; `of_peak` are they as a
    fraction of the peak of `unit`.

    Args:
        rows: the rows.
        peaks: operations per second by unit, of this number of threads.
        isa: value of `--isa`.
    """
    for row in rows:
        row["best"] = row["batch"] / min(row["seconds"])
        row["median"] = row["batch"] / statistics.median(row["seconds"])
        row["spread"] = spread(row["seconds"])
        row["flops"] = 2 * row["macs"] * row["best"]
        row["unit"], peak = choose_peak(peaks, row["dtype"], isa)
        row["of_peak"] = row["flops"] / peak
    for row in rows:
        peers = [x for x in rows if x["dtype"] == row["dtype"] and not x["ours"] and x is not row]
        peer = max(peers, key=lambda x: x["best"], default=None)
        row["peer"] = peer and peer["system"]
        row["best_ratio"] = peer and row["best"] / peer["best"]
        row["median_ratio"] = peer and row["median"] / max(x["median"] for x in peers)


def spread(seconds):
    """The middle half of the times as a fraction of the median; 0 for a single one."""
    if len(seconds) == 1:
        return 0.0
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / median


def text(rows, peaks):
    """The table of one model, batch and number of threads."""
    first = rows[0]
    rates = ", ".join(f"{unit} {rate / 1e9:,.0f}" for unit, rate in peaks.items())
    title = heading(first["model"], first["batch"], first["threads"])
    lines = [f"\n{title}; peak in this minute, GFLOP/s: {rates}", _HEAD]
    for dtype in sorted({row["dtype"] for row in rows}, reverse=True):
        group = sorted((x for x in rows if x["dtype"] == dtype), key=lambda x: -x["best"])
        lines += [f"{dtype}, of the peak of {group[0]['unit']}", *map(_line, group)]
    return "\n".join(lines)


def heading(model, batch, threads):
    return f"{model}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}"


def _line(row):
    ratios = "-"
    if row["peer"]:
        ratios = f"x{row['best_ratio']:.2f} x{row['median_ratio']:.2f}"
    return (
        f"{row['system']:30} {row['best']:11.2f} {row['median']:7.2f} {row['spread']:6.1%}"
        f"  {ratios:>13}  {row['flops'] / 1e9:7.0f} {row['of_peak']:7.1%}  "
        f"{row['difference']:10.1e}"
    )
