"""Tables as lines of text."""


def aligned(rows, left=None) -> list[str]:
    """Returns a line for each row of cells; a column is as wide as its longest cell.

    Args:
        rows: rows of texts, all of one length.
        left: numbers of the columns that begin together; the others end together. None: all begin
            together.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if left is None or index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
