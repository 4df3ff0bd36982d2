"""Plans of sweeps of the tiny experiment, and what takes the place of their trainings."""

import functools
import os

import keras

import vit_tf
from pipelines.errors import NonFiniteError
from pipelines.research.sweeps.sweep_plan import make_plan
from tests.pipelines.tiny import tiny_experiment

RATE = "optimizer.learning_rate"
RATES = f"{RATE}=0.01,0.02,0.03"
TRIALS = [f"trials/{RATE}={rate}" for rate in (0.01, 0.02, 0.03)]


GOOD = {0.01: 0.5, 0.02: 0.75, 0.03: 0.625, (0.02, 0): 0.5, (0.02, 1): 0.75, (0.02, 2): 0.875}


@functools.cache
def plan_of(*grid, hold_out=0.1, seeds=3, settings=(), assigned=()):
    experiment = tiny_experiment(*settings)
    return make_plan(experiment, grid, hold_out, seeds, replicas=1, assigned=assigned)


def write_initial(folder):
    """Writes an npz file with a long name that fits the tiny model; returns its path."""
    path = folder / f"{'a' * 200}.npz"
    vit_tf.save_npz(vit_tf.create_model(tiny_experiment().model.config(10)), path)
    keras.utils.clear_session()  # A test counts models.
    return path


class Trainings:
    """Takes the place of `train`: notes what it is called with, and answers as told.

    Args:
        path: directory of the sweep.
        accuracies: by learning rate, or by (learning rate, seed) for the final runs; NaN is a run
            that fails, an exception is raised.
        losses: by learning rate; 1.0 for the others.
    """

    def __init__(self, path, accuracies, losses=None):
        self.path, self.accuracies, self.losses = path, accuracies, losses or {}
        self.calls, self.experiments = [], []

    def __call__(self, experiment, workdir, strategy, reuse=None):
        self.calls.append(os.path.relpath(workdir, self.path))
        self.experiments.append(experiment)
        rate = experiment.optimizer.learning_rate
        key = (rate, experiment.seed) if "final" in self.calls[-1] else rate
        accuracy = self.accuracies[key]
        if isinstance(accuracy, BaseException):
            raise accuracy
        if accuracy != accuracy:
            raise NonFiniteError("The loss is not finite at step 1.")
        loss = self.losses.get(rate, 1.0)
        return {"step": 12, "eval_examples": 130, "eval_loss": loss, "eval_accuracy": accuracy}
