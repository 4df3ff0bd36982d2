"""Makes, changes and reads configurations; prints the frameworks that this has imported."""

import sys

import pipelines.cli.command
import pipelines.config.names
from pipelines.config import Experiment, override, recipes

FRAMEWORKS = ("tensorflow", "keras", "tensorflow_datasets", "orbit", "h5py", "numpy", "packaging")

if __name__ == "__main__":
    recipe = recipes.get_recipe("digits")
    experiment = override(recipe, ["model.name=R50+ViT-B/16", "model.image_size=224"])
    assert Experiment.from_dict(experiment.to_dict()) == experiment
    experiment.model.config(10).summary()
    assert experiment.preprocessing() and experiment.classes(["a", "b"])
    assert pipelines.cli.command.EXIT_USAGE == 2 and pipelines.config.names.PRECISIONS
    print([name for name in FRAMEWORKS if name in sys.modules])
