"""Tables as lines of text, written by hand."""

from pipelines.reports.text_table import aligned

ROWS = [["", "long name", "n"], ["abc", "x", "12"], ["d", "y", ""]]


def test_columns_begin_or_end_together():
    """No line ends with spaces."""
    assert aligned(ROWS) == ["     long name  n", "abc  x          12", "d    y"]
    assert aligned(ROWS, left=(0,)) == [
        "     long name   n",
        "abc          x  12",
        "d            y",
    ]
    assert aligned(ROWS, left=()) == ["     long name   n", "abc          x  12", "  d          y"]
    assert aligned([["a"]], left=()) == ["a"]
