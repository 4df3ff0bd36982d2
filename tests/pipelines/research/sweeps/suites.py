"""Plans of suites, and what takes the place of their data and of their trainings."""

import os

from pipelines.config import Assignments, Request
from pipelines.data.protocols.vtab_tasks import TASKS
from pipelines.data.sources import subset
from pipelines.errors import MissingDataError, NonFiniteError
from pipelines.research.sweeps import suite_plan
from pipelines.runs.workdir import Workdir

B16, L16 = "imagenet21k/ViT-B_16", "imagenet21k/ViT-L_16"
RATE = "optimizer.learning_rate"
# data.name without version -> classes of its usual label.
_CLASSES = {"cifar10": 10, "cifar100": 100, "oxford_iiit_pet": 37, "oxford_flowers102": 102}
_EXAMPLES = {"cifar10": 50_000, "cifar100": 50_000, "oxford_iiit_pet": 3680}


class Source:
    """A `DataSource` of which only sizes are read."""

    multi_label = False

    def __init__(self, name, split, data_dir=None, label=None):
        self.name, self.split = name, split
        of_vtab = [x.num_classes for x in TASKS.values() if (x.data_name, x.label) == (name, label)]
        self.num_classes = of_vtab[0] if of_vtab else _CLASSES[name]
        self.num_examples = _EXAMPLES.get(name, 1000)

    def __str__(self):
        return f"{self.name} split {self.split!r}"

    def manifest(self):
        """The part of the manifest that says where the examples are."""
        return {"parts": [{"split": self.split, "start": 0, "stop": self.num_examples}]}


def open_as_source(data, split, known=None):
    """The `Source` in place of what `open_split` would open."""
    return Source(data.name, split, data.data_dir, data.label)


def replace_data(monkeypatch, missing=(), opened=None):
    """Lets plans read `Source`s; those whose name begins with one of `missing` are not there."""

    def open_split(data, split, known=None):
        if data.name.startswith(tuple(missing)):
            raise MissingDataError(f"{data.name} is not prepared.")
        if opened is not None:
            opened.append((data.name, split, data.label))
        return open_as_source(data, split)

    for module in (suite_plan, subset):
        monkeypatch.setattr(module, "open_split", open_split)


def plan_of(name, *settings, init_from=B16, workdir="no run", **options):
    """The plan of a suite with further settings, on one device."""
    assigned = Assignments.parse([f"init_from={init_from}", *settings])
    return suite_plan.make_suite_plan(
        name, Request(assignments=assigned), workdir=workdir, replicas=1, **options
    )


class Trainings:
    """Takes the place of `train`: creates the workdir, and answers by its folder.

    Args:
        path: directory of the suite.
        accuracy: function of `(stage, task, seed, learning rate)`; NaN is a run that fails.
    """

    def __init__(self, path, accuracy):
        self.path, self.accuracy, self.calls = path, accuracy, []

    def __call__(self, experiment, workdir, strategy, reuse=None):
        folder = os.path.relpath(workdir, self.path)
        self.calls.append(folder)
        Workdir(workdir).create(experiment)
        stage, _, name = folder.split(os.sep)
        rate = experiment.optimizer.learning_rate
        accuracy = self.accuracy(stage, name.partition(",")[0], experiment.seed, rate)
        if accuracy != accuracy:
            raise NonFiniteError("The loss is not finite at step 1.")
        return {"step": 1, "eval_examples": 9, "eval_loss": 1.0, "eval_accuracy": accuracy}


def of_vtab(stage, task, seed, rate):
    """An accuracy for each task and seed of VTAB, in binary fractions; 0.01 is the best rate."""
    del stage
    return (32 + 2 * [*TASKS].index(task) + seed) / 128 - (rate != 0.01) / 8
