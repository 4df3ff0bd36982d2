"""Recipes for the handwritten digits inside scikit-learn."""

from pipelines.config.experiment import Experiment
from pipelines.config.model import Model
from pipelines.config.sections import Data, Optimizer, Schedule, Train


def digits() -> Experiment:
    """A small ViT on the 8 x 8 handwritten digits of scikit-learn.

    Command: python -m pipelines.pretrain
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
