"""What an experiment runs: trainings and measurements, each in a folder of its own.

The folder of a unit is named after its settings, so that a changed declaration runs what changed
and nothing else, and two experiments that declare the same unit share it.
"""

import dataclasses
import hashlib
import json
import os
from typing import Any

import keras

from pipelines.config import Experiment
from pipelines.config.fields import differences
from pipelines.data.sources.open import open_source
from pipelines.evaluation.evaluation_step import EvaluationData
from pipelines.evaluation.features import FeatureExtractor
from pipelines.evaluation.few_shot import few_shot_grid
from pipelines.runs import manifest
from pipelines.stored_models import model_source
from pipelines.studies import sweep
from vit_tf.files import storage

RESULT, UNIT = "result.json", "unit.json"
_BATCH = 128
# Strength of the regularization for one training example. The published strength, 1024 in all,
# leaves little but the means of the classes where there are few.
_L2_PER_EXAMPLE = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """One training run; its folder is an ordinary workdir.

    Attributes:
        name: what it is, such as "positions/none,seed=0": the begin of its folder.
        experiment: the `Experiment`, without `init_from`.
        start: the training whose final weights it starts from; None: random weights.
    """

    name: str
    experiment: Experiment
    start: "Training | None" = None

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the result, as JSON can hold it."""
        start = None if self.start is None else self.start.folder
        return {"experiment": set_fields(self.experiment), "start": start}

    @property
    def folder(self) -> str:
        """The folder, relative to the one of all units."""
        return f"{self.name}-{digest(self.settings)}"

    @property
    def needs(self) -> tuple["Training", ...]:
        """The units that must have run before."""
        return () if self.start is None else (self.start,)

    def describe(self) -> str:
        """One line about it."""
        after = "" if self.start is None else f", from {self.start.name}"
        return f"{self.name}: {self.experiment.train.steps:,} steps{after}"

    def stand_in(self) -> dict:
        """A result with the keys of a real one."""
        return {"loss": 1.0, "accuracy": 0.5}

    def run(self, root, strategy) -> dict:
        """Trains; returns the metrics of the last evaluation, see `sweep.train_once`."""
        experiment = self.experiment
        if self.start is not None:
            path = os.path.join(root, self.start.folder)
            experiment = dataclasses.replace(experiment, init_from=path)
        return sweep.train_once(experiment, os.path.join(root, self.folder), strategy)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShotTest:
    """Accuracies of linear classifiers on the frozen features of a training.

    Attributes:
        of: the training.
        data, train_split, test_split: data set and splits of both sides.
        shots: numbers of training images of each class.
        seeds: of the choices of training images.
    """

    of: Training
    data: str
    train_split: str
    test_split: str
    shots: tuple[int, ...]
    seeds: tuple[int, ...]

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the result, as JSON can hold it."""
        fields = {x.name: getattr(self, x.name) for x in dataclasses.fields(self)}
        return fields | {"of": self.of.folder}

    @property
    def folder(self) -> str:
        """The folder, relative to the one of all units."""
        return f"few_shot/{self.of.name}-{digest(self.settings)}"

    @property
    def needs(self) -> tuple[Training, ...]:
        """The units that must have run before."""
        return (self.of,)

    def describe(self) -> str:
        """One line about it."""
        return f"few shots of {self.of.name} on {self.data}"

    def stand_in(self) -> dict:
        """A result with the keys of a real one."""
        return {self.key(shots, seed): 0.5 for shots in self.shots for seed in self.seeds}

    @staticmethod
    def key(shots, seed) -> str:
        """The name of an accuracy in the result."""
        return f"{shots} shots, seed {seed}"

    def run(self, root, strategy) -> dict:
        """Returns the accuracies by `key`."""
        folder = os.path.join(root, self.folder)
        storage.make_folders(folder)
        sources = [open_source(self.data, x, None) for x in (self.train_split, self.test_split)]
        manifest.write_manifest(
            os.path.join(folder, "manifest.json"),
            seed=self.seeds[0],
            data=sources[0].manifest(),
            strategy=type(strategy).__name__,
        )
        with strategy.scope():
            opened = model_source.find(os.path.join(root, self.of.folder)).open_model()
        train, test = (self._features(opened, source, strategy) for source in sources)
        result = {}
        for shots in self.shots:
            strength = _L2_PER_EXAMPLE * shots * sources[0].num_classes
            classes = sources[0].num_classes
            grid = few_shot_grid(train, test, classes, [shots], [strength], self.seeds)
            for seed, accuracy in zip(self.seeds, grid[0, 0].tolist(), strict=True):
                result[self.key(shots, seed)] = accuracy
        keras.utils.clear_session()
        return result

    def _features(self, opened, source, strategy):
        data = EvaluationData(source=source, preprocessing=opened.preprocessing, batch_size=_BATCH)
        return FeatureExtractor(opened.model.features, strategy, data).run()


Unit = Training | FewShotTest


def set_fields(experiment) -> list[str]:
    """The fields that are not the default, so that new fields change no folder."""
    return differences(Experiment().to_dict(), experiment.to_dict())


def digest(settings) -> str:
    """Eight hexadecimal digits of settings that JSON can hold."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
