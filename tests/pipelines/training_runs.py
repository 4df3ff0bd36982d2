"""Runs that tests of several files read, and training without compilation."""

import contextlib
import functools

import orbit
import pytest
import tensorflow as tf

from pipelines.training.train import train
from tests.pipelines.tiny import one_device, tiny_experiment
from tests.shared_folder import shared_folder

# Checkpoints and evaluations at steps 4, 8 and 12; step 4 is in the middle of a log interval. The
# rate is so large that the weights, their average and the best ones differ clearly.
FINISHED = (
    "model.layers=1",
    "optimizer.learning_rate=0.05",
    "train.log_every=3",
    "train.eval_every=4",
    "train.checkpoint_every=4",
    "train.histograms_every=6",
    "train.inspect_every=6",
    "train.ema_decay=0.9",
    "train.keep_best=true",
    "train.profile=4:6",
    "train.deterministic=true",
)


def finished(tmp_path_factory):
    """The workdir of a run of `FINISHED`, which was trained to its end; a `shared_folder`."""

    def make(folder):
        train(tiny_experiment(*FINISHED), folder, one_device())

    return shared_folder(tmp_path_factory, "finished-run", make)


@contextlib.contextmanager
def without_compiling():
    """Runs the steps of trainings and evaluations operation by operation.

    Compiling a step takes as long as about 20 of these steps. Use it where few steps are enough,
    and how they are computed is not what is tested.
    """

    def eagerly(function):
        @functools.wraps(function)
        def run(*arguments, **keywords):
            tf.config.run_functions_eagerly(True)
            try:
                return function(*arguments, **keywords)
            finally:
                tf.config.run_functions_eagerly(False)

        return run

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (orbit.StandardTrainer, "train"),
            (orbit.StandardEvaluator, "evaluate"),
        ):
            patch.setattr(owner, name, eagerly(getattr(owner, name)))
        yield
