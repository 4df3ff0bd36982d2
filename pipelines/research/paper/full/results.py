"""Reads the numbers of a table or figure at full scale, beside the paper's."""

import itertools
import os
import statistics

from scipy import stats

from pipelines.inspection import page
from pipelines.research.paper.findings import Cell, Chart, Claim, Findings, Point, Reading, Table
from pipelines.research.paper.full.parts import FULL
from pipelines.research.paper.full.plans import places

# Differences of the paper's numbers, in points, that are larger than the noise of a run.
_CLEAR = 0.2
# Spearman's correlation of two columns that have nearly the same order.
_LEAST = 0.7


def run(lab, name) -> Findings:
    """Runs the commands of a table or figure, or what is left of them, and reads their numbers."""
    tables, claims, charts, pages = [], [], [], {}
    for grid in FULL[name]():
        found = places(grid)
        results = dict(zip(found, lab.results([command for command, _ in found]), strict=True))
        rows = {
            row: [place and _cell(place, results[place]) for place in each]
            for row, each in grid.rows.items()
        }
        tables.append(
            Table(
                title=grid.title,
                columns=list(grid.columns),
                rows=rows,
                curve=grid.curve,
                unit=grid.unit,
                paper=grid.paper,
            )
        )
        claims += [_order(tables[-1], grid.compares)] if grid.paper is not None else []
        claims += [] if grid.alike is None else [_alike(grid.alike, rows)]
        claims += [_judged(each, rows, grid.unit) for each in grid.expected]
        charts += [] if grid.costs is None else _over_costs(tables[-1], grid.costs)
        for (command, _), result in results.items():
            if command.module == "inspect" and result:  # Else nothing has run.
                pages[os.path.join(os.path.basename(lab.root), command.folder, page.PAGE)] = None
    return Findings(tables, claims, [f"page: {place}" for place in pages], charts)


def _over_costs(table, costs) -> list[Chart]:
    """ImageNet, and the mean of the other data sets, over the cost of pre-training."""
    first, others = [0], range(1, len(table.columns))
    return [
        Chart(
            title=title,
            x_label="exaFLOPs of pre-training",
            curves=_families(table, costs, columns),
            log=True,
            joined=False,
        )
        for title, columns in (
            (f"accuracy on {table.columns[0]}", first),
            (f"mean accuracy on {', '.join(map(str, table.columns[1:]))}", others),
        )
    ]


def _families(table, costs, columns):
    """Family -> the points of its models, without those that have no number yet."""
    found = {"ViT": [], "BiT": [], "hybrid": []}
    for name, row in table.rows.items():
        cells = [row[column] for column in columns]
        if None not in cells:
            family = "hybrid" if "+" in name else name.partition("-")[0]
            mean = statistics.fmean(cell.mean for cell in cells)
            found[family].append(Point(costs[name], mean))
    return found


def _cell(place, result):
    command, metric = place
    if metric not in result:  # A suite leaves out tasks whose data are missing.
        return None
    return Cell((Reading(command.folder, metric, result[metric]),))


def _judged(expectation, rows, unit="%"):
    """Whether an expectation shows; None if a number of it is missing."""
    pairs = [[rows[row][column] for row, column in pair] for pair in expectation.above]
    known = [(a.mean, b.mean) for a, b in pairs if a is not None and b is not None]
    shows = all(a > b for a, b in known) if len(known) == len(pairs) else None
    if unit == "%":
        numbers = [f"{a:.1%} against {b:.1%} ({100 * (a - b):+.1f} points)" for a, b in known]
    else:
        numbers = [f"{a:,.0f} against {b:,.0f} {unit}" for a, b in known]
    return Claim(expectation.text, shows, ", ".join(numbers) or "no numbers")


def _alike(text, rows) -> Claim:
    """Whether two columns have nearly the same order; None if too few rows have both numbers."""
    known = [(a.mean, b.mean) for a, b in rows.values() if a is not None and b is not None]
    first, second = ([pair[place] for pair in known] for place in (0, 1))
    if len(known) < 3 or len(set(first)) == 1 or len(set(second)) == 1:
        return Claim(text, None, f"no order over {len(known)} rows")
    found = float(stats.spearmanr(first, second).statistic)
    numbers = f"Spearman's correlation {found:.2f} over {len(known)} rows, above {_LEAST} expected"
    return Claim(text, found > _LEAST, numbers)


def _order(table, compares) -> Claim:
    """How many pairs have the paper's order, where the paper's numbers differ clearly.

    Args:
        table: the `Table`.
        compares: see `Grid`.
    """
    cells = [list(row) for row in table.rows.values()]
    printed = [list(table.paper[name]) for name in table.rows]
    if compares == "rows":
        cells, printed = ([list(x) for x in zip(*y, strict=True)] for y in (cells, printed))
    same = pairs = 0
    for line, values in zip(cells, printed, strict=True):
        known = [
            (cell.mean, value)
            for cell, value in zip(line, values, strict=True)
            if cell is not None and value is not None
        ]
        for (a, x), (b, y) in itertools.combinations(known, 2):
            if abs(x - y) >= _CLEAR:
                pairs += 1
                same += (a - b) * (x - y) > 0
    return Claim(
        f"{table.title}: the order of the {compares} is the paper's",
        None if not pairs else same == pairs,
        f"{same} of {pairs} pairs that differ by at least {_CLEAR} points in the paper",
    )
