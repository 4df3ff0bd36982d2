"""The paper's costs: the rows of docs/paper.md L.3 and L.4, and the formula by hand."""

import pytest

from pipelines.research.planning import paper_costs
from tests.paper_tables import number, tables


def test_rows_are_those_of_the_page():
    (rows,) = tables("L.3")
    assert [(name, number(epochs), number(cost)) for name, epochs, cost in rows] == [
        (row.model, row.epochs, row.cost) for row in paper_costs.TABLE_6
    ]
    (rows,) = tables("L.4")
    assert [(name, data, number(x), number(y)) for name, data, x, y in rows] == [
        (row.model, row.data, row.epochs, row.cost) for row in paper_costs.TABLE_2
    ]


def test_no_row_of_table_6_is_fitted():
    """docs/paper.md L.3: six FLOPs per MAC and image; each MAC is that of L.2 (and A.11)."""
    macs = {name: row for table in tables("L.2") for name, *row in table}
    found = paper_costs.paper_costs()["table_6"]
    assert len(found) == 18
    for row in found:
        gigamacs = number(macs[row["model"]][0])
        expected = 6 * gigamacs * 1e9 * row["epochs"] * 303e6 / 1e18
        assert row["formula"] == pytest.approx(expected, rel=2e-4)
        assert row["ratio"] == pytest.approx(row["cost"] / expected, rel=2e-4)
        assert 0.95 < row["ratio"] < 1.05


def test_utilization_of_table_2():
    """Core-days times the 61.5 TFLOP/s of a core, against the exaFLOPs of the formula."""
    found = [row["utilization"] for row in paper_costs.paper_costs()["table_2"]]
    expected = [
        6 * 167.295e9 * 14 * 303e6 / (2500 * 86400 * 61.5e12),
        6 * 61.555e9 * 14 * 303e6 / (680 * 86400 * 61.5e12),
        6 * 61.555e9 * 90 * 14e6 / (230 * 86400 * 61.5e12),
    ]
    assert found == pytest.approx(expected, rel=1e-4)
    assert [round(100 * x, 1) for x in expected] == [32.1, 43.4, 38.1]
