"""Counts the bytes that the all-reduces of a program sum, from its HLO."""

import math
import re

_TYPES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8}
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
_RESULT = re.compile(r" = (.*?) all-reduce(?:-start)?\(")


def summed_bytes(lines) -> int:
    """Bytes of the results of all-reduces on one core.

    Args:
        lines: of HLO, such as `%sum = (f32[8]{0}, f32[]) all-reduce(%a, %b), ...`; lines without an
            all-reduce count nothing.
    """
    results = (match[1] for line in lines if (match := _RESULT.search(line)))
    return sum(
        _TYPES[kind] * math.prod(int(side) for side in sides.split(",") if side)
        for result in results
        for kind, sides in _ARRAY.findall(result)
    )
