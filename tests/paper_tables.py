"""The tables of the page about the paper."""

import re

from tests.checkout import ROOT

PAPER = (ROOT / "docs" / "paper.md").read_text()


def tables(section):
    """The tables below a heading, such as "A.11": each is a list of rows, each a tuple of cells."""
    (body,) = re.findall(
        rf"^### {re.escape(section)} .*?$(.*?)(?=^##|\Z)", PAPER, re.MULTILINE | re.DOTALL
    )
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", body, re.MULTILINE):
        lines = [line.strip(" |").split(" | ") for line in block.splitlines()]
        found.append([tuple(line) for line in lines[2:]])
    return found


def numbers(rows):
    """The rows of a table that have a name in front: name -> numbers."""
    found = {name: tuple(map(number, rest)) for name, *rest in rows}
    assert len(found) == len(rows)
    return found


def number(cell):
    """The number in a cell, such as "5,524,416"."""
    return float(cell.replace(",", ""))
