"""The parts of the paper at full scale."""

from collections.abc import Callable

from pipelines.research.paper.full.figures import FIGURES
from pipelines.research.paper.full.grids import Grid
from pipelines.research.paper.full.looks import LOOKS
from pipelines.research.paper.full.sections import SECTIONS
from pipelines.research.paper.full.tables import TABLES

# Part of the paper -> its tables.
FULL: dict[str, Callable[[], list[Grid]]] = TABLES | FIGURES | LOOKS | SECTIONS
