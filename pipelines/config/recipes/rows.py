"""Makes recipes from the rows of a published table, and steps from epochs."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelines.config.experiment import Experiment

# Training images per epoch, as the paper counts them (section 4.1).
JFT, IMAGENET_21K, IMAGENET = 303_000_000, 14_000_000, 1_281_167


def steps_for(epochs: int, images: int, batch_size: int) -> int:
    """Returns the number of whole batches in a number of epochs."""
    return epochs * images // batch_size


def one_per_row(
    function: Callable[..., Experiment], rows: Mapping[str, Sequence[Any]]
) -> dict[str, Callable[[], Experiment]]:
    """Returns a recipe for each row of a table: name -> function that returns an `Experiment`.

    Args:
        function: returns the experiment of a row, whose values are its arguments. Its docstring
            becomes that of each recipe, with {name}, and the names of arguments in braces, replaced
            by the values of the row.
        rows: name of the recipe -> arguments.
    """
    return {name: _recipe(function, name, row) for name, row in rows.items()}


def _recipe(function, name, row):
    def recipe():
        return function(*row)

    values = inspect.signature(function).bind(*row).arguments
    recipe.__name__ = name
    recipe.__doc__ = (inspect.getdoc(function) or "").format(name=name, **values)
    return recipe
