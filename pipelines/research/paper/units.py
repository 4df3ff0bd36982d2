"""What an experiment runs: trainings and measurements, each in a folder of its own.

The folder of a unit is named after its settings, so that a changed declaration runs what changed
and nothing else, and two experiments that declare the same unit share it.
"""

import abc
import dataclasses
import hashlib
import json
import os
from typing import Any, ClassVar

import keras

from pipelines.config import Experiment
from pipelines.config.fields import differences
from pipelines.data.sources.open import open_source
from pipelines.evaluation.evaluation_step import EvaluationData
from pipelines.research.lab.unit import Unit, train_once
from pipelines.runs import manifest
from pipelines.stored_models import model_source
from vit_tf.files import storage

_BATCH = 128


class StudyUnit(Unit):
    """A unit whose folder is named after its settings.

    Attributes:
        name: what it is, such as "positions/none,seed=0": the begin of its folder.
        start: the unit whose final weights it reads; None: random weights.
        settings: what decides the result, as JSON can hold it.
        seed: of the training that it is, or is about.
    """

    name: str
    start: "StudyUnit | None"
    settings: dict[str, Any]
    seed: int | None

    @property
    def folder(self) -> str:
        """The folder, relative to the one of all units."""
        return f"{self.name}-{digest(self.settings)}"

    @property
    def needs(self) -> "tuple[StudyUnit, ...]":
        """The units that must have run before."""
        return () if self.start is None else (self.start,)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training(StudyUnit):
    """One training run; its folder is an ordinary workdir.

    Attributes:
        name, start: see `StudyUnit`.
        experiment: the `Experiment`, without `init_from`.
    """

    name: str
    experiment: Experiment
    start: "Training | None" = None

    seed = property(lambda self: self.experiment.seed)

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the result, as JSON can hold it."""
        start = None if self.start is None else self.start.folder
        return {"experiment": set_fields(self.experiment), "start": start}

    def describe(self) -> str:
        """One line about it."""
        after = "" if self.start is None else f", from {self.start.name}"
        return f"{self.name}: {self.experiment.train.steps:,} steps{after}"

    def stand_in(self) -> dict:
        """A result with the keys of a real one."""
        return {"loss": 1.0, "accuracy": 0.5}

    def run(self, root, devices) -> dict:
        """Trains; see `train_once`."""
        experiment = self.experiment
        if self.start is not None:
            path = os.path.join(root, self.start.folder)
            experiment = dataclasses.replace(experiment, init_from=path)
        return train_once(experiment, os.path.join(root, self.folder), devices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement(StudyUnit):
    """Something that is measured on the weights of a training; its fields decide the result.

    Attributes:
        of: the training.
        data: data set.
        test_split: its split.
    """

    # The begin of the folders, and what the run says that it is.
    kind: ClassVar[str]
    title: ClassVar[str]

    of: Training
    data: str
    test_split: str

    name = property(lambda self: f"{self.kind}/{self.of.name}")
    start = property(lambda self: self.of)
    seed = property(lambda self: self.of.seed)

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the result, as JSON can hold it."""
        fields = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        return fields | {"of": self.of.folder}

    def describe(self) -> str:
        """One line about it."""
        return f"{self.title} of {self.of.name} on {self.data}"

    @abc.abstractmethod
    def stand_in(self) -> dict:
        """A result with the keys of a real one."""

    def run(self, root, devices) -> dict:
        """Opens the model and measures; returns the numbers by name."""
        folder = os.path.join(root, self.folder)
        storage.make_folders(folder)
        test = open_source(self.data, self.test_split, None)
        manifest.write_manifest(
            os.path.join(folder, "manifest.json"),
            seed=self.of.experiment.seed,
            data=test.manifest(),
            strategy=type(devices).__name__,
        )
        with devices.scope():
            opened = model_source.find(os.path.join(root, self.of.folder)).open_model()
        try:
            return self.measure(opened, test, devices)
        finally:
            keras.utils.clear_session()

    @abc.abstractmethod
    def measure(self, opened, test, strategy) -> dict:
        """Returns the numbers by name.

        Args:
            opened: the `vit_tf.LoadedModel` of the training.
            test: the `DataSource` of `test_split`.
            strategy: the `tf.distribute.Strategy`.
        """


def evaluation_data(source, preprocessing) -> EvaluationData:
    """The images of a source in batches, as a model reads them."""
    return EvaluationData(source=source, preprocessing=preprocessing, batch_size=_BATCH)


def set_fields(experiment) -> list[str]:
    """The fields that are not the default, so that new fields change no folder."""
    return differences(Experiment().to_dict(), experiment.to_dict())


def digest(settings) -> str:
    """Eight hexadecimal digits of settings that JSON can hold."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
