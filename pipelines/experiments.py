"""The recipes: name -> function that returns an `Experiment`."""

import difflib

from pipelines.config import Data, Experiment, Model, Optimizer, Schedule, Train
from pipelines.errors import UserError


def digits() -> Experiment:
    """A small ViT on the 8 x 8 handwritten digits of scikit-learn.

    Command: python -m pipelines.pretrain
    """
    return Experiment(
        model=Model(
            name="ViT-Ti/16",
            image_size=(16, 16),
            patch_size=4,
            hidden_size=64,
            mlp_size=128,
            layers=4,
            heads=4,
            dropout=0.1,
        ),
        # A mirrored or nearly cut-off digit is another digit: no flip, generous crops.
        data=Data(name="digits", crop_area=(0.8, 1.0), flip=False),
        optimizer=Optimizer(name="adamw", learning_rate=2e-3, weight_decay=0.5),
        schedule=Schedule(warmup_steps=100, decay="cosine"),
        train=Train(steps=1500, batch_size=64, log_every=100, eval_every=500, checkpoint_every=500),
    )


EXPERIMENTS = {"digits": digits}


def get(name) -> Experiment:
    """The recipe `name`.

    Raises:
        UserError: for an unknown name; the message offers near ones.
    """
    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=3) or sorted(EXPERIMENTS)
        raise UserError(f"Unknown experiment {name!r}. Did you mean {' or '.join(near)}?")
    return EXPERIMENTS[name]()
