"""What a lab runs."""

import abc
import dataclasses
import logging
import os
from typing import Any

import keras

from pipelines.config import Experiment
from pipelines.errors import NonFiniteError
from pipelines.training.reuse import Reuse
from pipelines.training.train import train

_log = logging.getLogger(__name__)


class Unit(abc.ABC):
    """A training or a measurement in a folder of its own: the work that a process takes.

    Attributes:
        folder: relative to that of the lab.
        cost: what it takes, in any measure that its lab has; None: as much as others of its stage.
        needs: the units that must have a result before it begins.
    """

    folder: str
    cost: float | None = None
    needs: "tuple[Unit, ...]" = ()

    @abc.abstractmethod
    def run(self, root: str, devices: Any) -> dict:
        """Runs it; returns its numbers by name, or {"failed": the reason}.

        Args:
            root: the folder of the lab.
            devices: what the lab runs on, such as a `tf.distribute.Strategy`.

        Raises:
            InUseError: if another command uses its folder.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training(Unit):
    """A training as a unit; its folder is an ordinary workdir.

    Attributes:
        folder: see `Unit`.
        experiment: what to train; its splits are chosen.
        cost: FLOPs; None if they depend on data that are missing.
    """

    folder: str
    experiment: Experiment
    cost: int | None

    def run(self, root, devices) -> dict:
        """Trains; see `train_once`."""
        return train_once(self.experiment, os.path.join(root, self.folder), devices)


def train_once(experiment, workdir, strategy) -> dict:
    """Trains one run of several in this process.

    While a `Reuse` is in use, as in a `Lab`, runs that differ in no more than seed, learning
    rate and images share their graphs.

    Returns:
        The metrics of its last evaluation by name, or {"failed": the reason} after a loss that is
        not finite.

    Raises:
        As `train`.
    """
    reuse = Reuse.current()
    try:
        last = train(experiment, workdir, strategy, reuse=reuse)
    except NonFiniteError as error:
        _log.info(f"failed: {error}")
        return {"failed": str(error)}
    finally:
        if reuse:
            reuse.end_run()
        else:  # Frees the model, its optimizer and its graphs before the next run.
            keras.utils.clear_session()
    prefix = "eval_"
    return {k.removeprefix(prefix): v for k, v in last.items() if k.startswith(prefix)}


def is_result(values, required=()) -> bool:
    """Whether a value that was read is what a unit returns: numbers, with the required names."""
    if not isinstance(values, dict):
        return False
    if "failed" in values:
        return isinstance(values["failed"], str)
    return values.keys() >= set(required) and all(
        type(value) in (int, float) for value in values.values()
    )
