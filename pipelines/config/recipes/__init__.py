"""The recipes: name -> function that returns an `Experiment`."""

import difflib

from pipelines.config.experiment import Experiment
from pipelines.config.recipes.digits import digits
from pipelines.errors import UserError

RECIPES = {"digits": digits}


def get_recipe(name) -> Experiment:
    """The recipe `name`.

    Raises:
        UserError: for an unknown name; the message offers near ones.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=3) or sorted(RECIPES)
        raise UserError(f"Unknown experiment {name!r}. Did you mean {' or '.join(near)}?")
    return RECIPES[name]()
