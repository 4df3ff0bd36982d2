"""Runs that must end with the same model, and what their steps have in common."""

import numpy as np

from tests.pipelines.tiny import arrays, losses

# Over 12 steps in float32: relative for losses; for weights, relative to the largest weight.
TOLERANCE = {"sgd": 1e-6, "adamw": 1e-5}
# Adam divides a gradient by its size. If the first gradient of an element is 1e-5 of the others by
# chance, it is mostly rounding error, and the update of the weight has an error of some percent of
# the learning rate. With a rate of 0.01 this alone can be 2e-5, so AdamW has the recipe's rate.
RATE = {"sgd": 0.05, "adamw": 0.002}
# In addition to the dropout, attention dropout, stochastic depth and crop of every tiny run.
EVERYTHING = (
    "data.flip=true",
    "data.mixup=0.5",
    "data.balance=loss",
    "data.randaugment_layers=2",
    "train.batch_size=32",
    "optimizer.layer_decay=0.75",
    "train.ema_decay=0.9",
    "train.checkpoint_every=1",
    "train.keep_last=100",
)


def everything(optimizer):
    chosen = {"optimizer.name": optimizer, "optimizer.learning_rate": RATE[optimizer]}
    return [*EVERYTHING, *(f"{path}={value}" for path, value in chosen.items())]


def assert_equal_runs(workdir, expected, optimizer):
    """Checks losses of every step, final weights and their average against the tolerances."""
    tolerance = TOLERANCE[optimizer]
    assert len(losses(expected)) == 12
    np.testing.assert_allclose(losses(workdir), losses(expected), rtol=tolerance)
    assert_equal_weights(workdir, expected, tolerance)


def assert_equal_weights(workdir, expected, tolerance):
    """Checks final weights and their average; the tolerance is relative to the largest weight."""
    for name in ("final.npz", "ema.npz"):
        received, wanted = arrays(workdir, name), arrays(expected, name)
        assert received.keys() == wanted.keys()
        largest = max(np.abs(value).max() for value in wanted.values())
        for key, value in wanted.items():
            # The exact gradient of a key bias is 0; Adam scales up its rounding error.
            if not key.endswith("key/bias"):
                error = np.abs(received[key] - value).max() / largest
                assert error <= tolerance, f"{key} of {name}: {error:.1e} of the largest weight"
