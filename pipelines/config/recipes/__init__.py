"""The recipes: name -> function that returns an `Experiment`."""

from pipelines.config.experiment import Experiment
from pipelines.config.recipes.digits import digits
from pipelines.errors import UserError
from vit_tf.config.near_names import did_you_mean

RECIPES = {"digits": digits}


def summaries() -> dict[str, str]:
    """Returns the first line of the docstring of each recipe, by name."""
    return {name: (recipe.__doc__ or "").partition("\n")[0] for name, recipe in RECIPES.items()}


def get_recipe(name) -> Experiment:
    """Returns the experiment of the recipe `name`.

    Raises:
        UserError: for an unknown name; the message suggests similar names.
    """
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES) or f" Known experiments: {', '.join(sorted(RECIPES))}."
        raise UserError(f"Unknown experiment {name!r}.{hint}")
    return RECIPES[name]()
