"""The recipes: name -> function that returns an `Experiment`."""

from pipelines.config import Experiment
from pipelines.config.recipes import (
    ablations,
    augreg,
    bit,
    built_in,
    comparisons,
    fine_tuning,
    masked_patches,
    pretraining,
)
from pipelines.errors import UserError
from vit_tf.config.near_names import did_you_mean

# Heading in lists of recipes -> the recipes below it.
GROUPS = {
    "Data sets in the package, minutes on a CPU": built_in.RECIPES,
    "Pre-training, the paper's table 3": pretraining.RECIPES,
    "Pre-training without a row in table 3": pretraining.NO_ROW,
    "Other settings of pre-training in the paper": ablations.RECIPES,
    "Comparisons by few shots in the paper": comparisons.RECIPES,
    "Self-supervision: masked patch prediction": masked_patches.RECIPES,
    "Fine-tuning, the paper's table 4": fine_tuning.RECIPES,
    "Fine-tuning of ResNets, BiT-HyperRule": bit.RECIPES,
    "Pre-training, later recipes of the authors": augreg.RECIPES,
}
RECIPES = {name: recipe for recipes in GROUPS.values() for name, recipe in recipes.items()}


def summary(name) -> str:
    """Returns the first line of the docstring of a recipe."""
    return (RECIPES[name].__doc__ or "").partition("\n")[0]


def get_recipe(name) -> Experiment:
    """Returns the experiment of the recipe `name`.

    Raises:
        UserError: for an unknown name; the message suggests similar names.
    """
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES) or " --list prints all experiments."
        raise UserError(f"Unknown experiment {name!r}.{hint}")
    return RECIPES[name]()
