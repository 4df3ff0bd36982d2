"""Reads the numbers of a table or figure at full scale, beside the paper's."""

import itertools

from pipelines.replication.findings import Cell, Claim, Findings, Reading, Table
from pipelines.replication.full.parts import FULL
from pipelines.replication.full.plans import places

# Differences of the paper's numbers, in points, that are larger than the noise of a run.
_CLEAR = 0.2


def run(lab, name) -> Findings:
    """Runs the commands of a table or figure, or what is left of them, and reads their numbers."""
    tables = []
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
                paper=grid.paper,
            )
        )
    return Findings(tables, [_order(table) for table in tables if table.paper is not None])


def _cell(place, result):
    command, metric = place
    if metric not in result:  # A suite leaves out tasks whose data are missing.
        return None
    return Cell((Reading(command.folder, metric, result[metric]),))


def _order(table) -> Claim:
    """How many pairs of a row have the paper's order, where the paper's numbers differ clearly."""
    same = pairs = 0
    for name, cells in table.rows.items():
        printed = table.paper[name]
        known = [
            (cell.mean, value)
            for cell, value in zip(cells, printed, strict=True)
            if cell is not None and value is not None
        ]
        for (a, x), (b, y) in itertools.combinations(known, 2):
            if abs(x - y) >= _CLEAR:
                pairs += 1
                same += (a - b) * (x - y) > 0
    return Claim(
        f"{table.title}: the order within the rows is the paper's",
        None if not pairs else same == pairs,
        f"{same} of {pairs} pairs that differ by at least {_CLEAR} points in the paper",
    )
