"""Recipes for the data sets inside the package. They run in minutes on a CPU."""

from pipelines.config.data import Data
from pipelines.config.experiment import Experiment
from pipelines.config.model import Model
from pipelines.config.optimizer import Optimizer
from pipelines.config.schedule import Schedule
from pipelines.config.train import Train


def digits() -> Experiment:
    """A small ViT on the 8 x 8 handwritten digits of scikit-learn.

    Source: this project; docs/model_card.md describes the result. 1500 steps of 64 images are
        about 74 epochs.
    Command: python -m pipelines.pretrain
    Expected: 97 to 98 % of the 300 test images.
    Hardware: 2 CPU cores, 2 minutes of CPU time.
    """
    return Experiment(
        model=Model(
            name="ViT-Ti/16",
            image_size=(16, 16),
            fields={
                "patch_size": 4,
                "hidden_size": 64,
                "mlp_size": 128,
                "layers": 4,
                "heads": 4,
                "dropout": 0.1,
            },
        ),
        # Mirrored digits and small crops can look like other digits: no flip, and only large crops.
        data=Data(name="digits", crop_area=(0.8, 1.0), flip=False),
        optimizer=Optimizer(name="adamw", learning_rate=2e-3, weight_decay=0.5),
        schedule=Schedule(warmup_steps=100, decay="cosine"),
        train=Train(steps=1500, batch_size=64, log_every=100, eval_every=500, checkpoint_every=500),
    )


def shapes() -> Experiment:
    """A small ResNet on 64 x 64 drawings of eight shapes in color.

    Source: this project. 800 steps of 50 images are 8 epochs of the 5,000 images, which are drawn
        when the recipe first runs.
    Command: python -m pipelines.pretrain --experiment shapes
    Expected: 81 % of the 500 test images.
    Hardware: 2 CPU cores, 4.3 minutes of CPU time.
    """
    return Experiment(
        model=Model(
            name="BiT-R50x1",
            image_size=(64, 64),
            fields={"stage_depths": (1, 1, 1), "width": 0.5},
        ),
        data=Data(name="shapes/class", crop_area=(0.5, 1.0)),
        optimizer=Optimizer(name="adamw", learning_rate=2e-3, weight_decay=0.1),
        schedule=Schedule(warmup_steps=100, decay="cosine"),
        train=Train(steps=800, batch_size=50, log_every=100, eval_every=400, checkpoint_every=400),
    )


RECIPES = {"digits": digits, "shapes": shapes}
