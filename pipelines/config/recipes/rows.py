"""Parts that recipes share: their lengths, and recipes made of the rows of a published table."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipelines.config import Experiment, Train

# Training images per epoch, as the paper counts them (section 4.1).
JFT, IMAGENET_21K, IMAGENET = 303_000_000, 14_000_000, 1_281_167


def steps_for(epochs: int, images: int, batch_size: int) -> int:
    """Returns the number of whole batches in a number of epochs."""
    return epochs * images // batch_size


def hyper_rule_length(images: int) -> tuple[int, int]:
    """Returns steps and warm-up steps of fine-tuning by BiT-HyperRule (docs/paper.md K.3).

    Args:
        images: number of training images.
    """
    if images < 20_000:
        return 500, 100
    return (10_000, 500) if images < 500_000 else (20_000, 500)


def fine_tuning_length(steps: int, ema_decay: float | None = None) -> Train:
    """Returns the length of a fine-tuning run with batches of 512 in 8 micro-batches.

    Args:
        steps: steps of the run.
        ema_decay: of the Polyak average, or None.
    """
    return Train(
        steps=steps,
        batch_size=512,
        accumulate_steps=8,
        ema_decay=ema_decay,
        log_every=max(steps // 200, 10),
        eval_every=steps // 5,
        checkpoint_every=steps // 5,
    )


def one_per_row(
    function: Callable[..., Experiment], rows: Mapping[str, Sequence[Any]]
) -> dict[str, Callable[[], Experiment]]:
    """Returns a recipe for each row of a table: name -> function that returns an `Experiment`.

    Args:
        function: returns the experiment of a row, whose values are its arguments. Its docstring,
            with values in place of {name} and the names of arguments in braces, becomes the
            docstring of each recipe.
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
