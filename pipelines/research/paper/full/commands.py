"""A command of this project as a unit: a training, an evaluation, a look into models, a timing.

Whoever has a cluster may start the same lines there: a unit is finished when its files are.
"""

import dataclasses
import functools
import itertools
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from pipelines.config import Data, Experiment, override
from pipelines.config.recipes import get_recipe
from pipelines.config.recipes.fine_tuning import CHOICES, dropout
from pipelines.config.recipes.pretraining import IMAGENET_FEW_SHOT
from pipelines.data.protocols.suites import SUITES, Suite
from pipelines.distribution import onednn
from pipelines.errors import EXIT_INTERRUPTED, Interrupted, RunError
from pipelines.research.paper.full import numbers
from pipelines.research.paper.units import StudyUnit, set_fields
from pipelines.runs.json_file import read_json
from pipelines.runs.workdir import Workdir
from vit_tf.files import storage

# Commands whose folder is their --output, and those that take no flags of devices.
_OUTPUT = ("fewshot", "inspect", "plan")
_NO_DEVICES = ("inspect", "plan")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command(StudyUnit):
    """One command.

    Attributes:
        name: what it is, the begin of its folder.
        module: the name after `pipelines.`.
        flags: its flags besides those of its folder and of what it starts from.
        start: the command whose weights it reads; None: random weights.
        recipe: the recipe that it trains by; of a suite, that of the paper's settings. None if it
            trains nothing.
        beside: more commands whose weights it reads.
        reads: the data sets of a command that trains nothing, each as that of a training.
    """

    name: str
    module: str
    flags: tuple[str, ...]
    start: "Command | None" = None
    recipe: str | None = None
    beside: "tuple[Command, ...]" = ()
    reads: tuple[Data, ...] = ()

    seed = None

    @property
    def needs(self) -> "tuple[Command, ...]":
        """The commands whose weights it reads."""
        return () if self.start is None else (self.start, *self.beside)

    @property
    def takes_devices(self) -> bool:
        """Whether it has the flags of the devices, such as --strategy."""
        return self.module not in _NO_DEVICES

    @functools.cached_property
    def folder(self) -> str:
        """As of every unit; a table asks for that of a command many times."""
        return super().folder

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the result, as JSON can hold it."""
        start = None if self.start is None else self.start.folder
        experiments = [set_fields(experiment) for experiment in self.experiments]
        more = {"beside": [x.folder for x in self.beside]} if self.beside else {}
        return {"flags": self.flags, "start": start, "experiments": experiments} | more

    @property
    def suite(self) -> Suite | None:
        """The suite that it fine-tunes on, or None."""
        return SUITES[self.flags[1]] if self.flags[:1] == ("--suite",) else None

    @functools.cached_property
    def experiments(self) -> list[Experiment]:
        """Those that it trains by: of a suite, one for each setup and kind of task."""
        if self.suite is None:
            return [] if self.recipe is None else [self.experiment]
        setups = self.suite.recipes(self.model.startswith("BiT"), self.model)
        return list(dict.fromkeys(x for tasks in setups.values() for x in tasks.values()))

    @property
    def model(self) -> str:
        """Name of the model of the pre-training that it begins with."""
        return self.experiment.model.name if self.start is None else self.start.model

    @functools.cached_property
    def experiment(self) -> Experiment:
        """The `Experiment` of a training by a recipe, with what `--set` assigns."""
        pairs = itertools.pairwise(self.flags)
        return override(get_recipe(self.recipe), [x for flag, x in pairs if flag == "--set"])

    def arguments(self, root) -> list[str]:
        """The flags with the paths below `root`."""
        own = os.path.join(root, self.folder)
        models = [need.weights(root) for need in self.needs]
        trains = self.module not in ("evaluate", *_OUTPUT)
        name = "--init_from" if trains else "--model"
        found = [*(["--workdir", own] if trains else []), *(x for y in models for x in (name, y))]
        if self.module == "evaluate":
            found.append("--json")
        if self.module in _OUTPUT:
            found += ["--output", own]
        return [*self.flags, *found]

    def weights(self, root) -> str:
        """The run whose weights others read: that of this command, or the first of its sweep."""
        own = os.path.join(root, self.folder)
        if self.module != "sweep":
            return own
        record = os.path.join(own, "sweep.json")
        if not storage.exists(record):
            return os.path.join(own, "final", "<the best settings, first seed>")
        return os.path.join(own, read_json(record)["final"][0]["workdir"])

    def line(self, root, more=()) -> str:
        """The line for a shell, with more flags at its end."""
        module = f"pipelines.{self.module}"
        return shlex.join(["python", "-m", module, *self.arguments(root), *more])

    def describe(self) -> str:
        """One line about it."""
        return self.name

    def stand_in(self) -> dict:
        """A result with the keys of a real one."""
        return {}

    def run(self, root, devices) -> dict:
        """Runs it in a process of its own; returns its numbers.

        Args:
            root: the folder of all units.
            devices: the `plans.Target` to run on.

        Raises:
            Interrupted: if the command was interrupted.
            RunError: if it failed; it has said why.
        """
        module, more = f"pipelines.{self.module}", devices.flags_of(self)
        command = [sys.executable, "-m", module, *self.arguments(root), *more]
        output = subprocess.PIPE if self.module == "evaluate" else None
        environment = onednn.environment_for_commands()
        with subprocess.Popen(command, stdout=output, text=True, env=environment) as process:
            try:
                text, _ = process.communicate()
            except KeyboardInterrupt:  # See `interruptible`.
                process.terminate()
                process.wait()  # It saves its state.
                raise
        if process.returncode == EXIT_INTERRUPTED:
            raise Interrupted(
                "Interrupted. Start the same command again: it goes on where it ended."
            )
        if process.returncode:
            line = self.line(root, more)
            raise RunError(f"It ended with exit code {process.returncode}: {line}")
        return self._numbers(os.path.join(root, self.folder), text)

    def _numbers(self, folder, text):
        if self.module == "evaluate":
            found = json.loads(text)
            storage.make_folders(folder)
            return {name: found[name] for name in ("accuracy", "examples")}
        if self.module in ("pretrain", "finetune"):
            return numbers.of_training(Workdir(folder), self.experiment.train.keep_best)
        if self.module == "sweep":
            return (numbers.of_sweep if self.suite is None else numbers.of_suite)(folder)
        readers = {
            "fewshot": numbers.of_few_shots,
            "inspect": numbers.of_inspection,
            "plan": numbers.of_measurement,
        }
        return readers[self.module](folder)


def pretrained(recipe, *assigned) -> Command:
    """A pre-training by a recipe, with other settings if there are any: `path=value`."""
    return Command(
        name=",".join([f"pretrain/{recipe}", *map(_short, assigned)]),
        module="pretrain",
        flags=("--experiment", recipe, *_set(assigned)),
        recipe=recipe,
    )


def suite(name, start: Command) -> Command:
    """Fine-tuning on a suite: vtab, cifar10, cifar100, pets or flowers."""
    return Command(
        name=f"{name}/{start.recipe}",
        module="sweep",
        flags=("--suite", name),
        start=start,
        recipe=SUITES[name].recipe,
    )


def on_imagenet(start: Command, recipe="finetune_imagenet", *assigned) -> Command:
    """Fine-tuning of a pre-training on ImageNet, at the best of table 4's rates.

    Args:
        start: the pre-training.
        recipe: of the fine-tuning.
        *assigned: other settings, `path=value`.
    """
    rates, held_out = CHOICES["finetune_imagenet"]
    grid = ",".join(f"{rate:g}" for rate in rates)
    model = get_recipe(start.recipe).model.name
    fields = [f"model.name={model}", *(f"model.{x}={y}" for x, y in dropout(model).items())]
    return Command(
        name=f"{','.join([recipe, *map(_short, assigned)])}/{start.recipe}",
        module="sweep",
        flags=(
            *("--experiment", recipe),
            *("--grid", f"optimizer.learning_rate={grid}", "--hold_out", str(held_out)),
            *_set([*fields, *assigned]),
        ),
        start=start,
        recipe=recipe,
    )


def real(start: Command) -> Command:
    """The evaluation of a model fine-tuned on ImageNet with ReaL's labels.

    Where training averages the weights, its own evaluation is that of the average, and so is this.
    """
    averages = start.experiment.train.ema_decay is not None
    return Command(
        name=f"real/{start.name}",
        module="evaluate",
        flags=("--benchmark", "real", *(("--weights", "ema") if averages else ())),
        start=start,
        reads=(Data(name="imagenet2012_real", train_split="validation"),),
    )


def few_shots(start: Command, shots) -> Command:
    """The few-shot accuracy of a pre-training on ImageNet, with the published regularization.

    Unlike those during training it reads images as the pre-training is evaluated.
    """
    data = Data(name="imagenet2012", train_split=IMAGENET_FEW_SHOT.train_split)
    fields = (f"data.name={data.name}", f"data.train_split={data.train_split}")
    return Command(
        name=f"fewshot/{start.recipe}",
        module="fewshot",
        flags=(
            *("--shots", str(shots), "--l2", f"{IMAGENET_FEW_SHOT.l2:g}", "--noknn", "--noprobe"),
            *_set([*fields, f"data.eval_split={IMAGENET_FEW_SHOT.eval_split}"]),
        ),
        start=start,
        reads=(data,),
    )


def inspected(name, starts: Sequence[Command], images) -> Command:
    """Looks into pre-trainings side by side, on 128 images of ImageNet as the paper does.

    Args:
        name: of the part of the paper.
        starts: the pre-trainings.
        images: number of images that the page shows.
    """
    return Command(
        name=f"inspect/{name}",
        module="inspect",
        flags=(
            *_set(["data.name=imagenet2012", "data.eval_split=validation"]),
            *("--show", str(images), "--noocclusion"),
        ),
        start=starts[0],
        beside=tuple(starts[1:]),
        reads=(Data(name="imagenet2012", train_split="validation"),),
    )


def timed(models, sizes) -> Command:
    """Measures the speed and the largest batch of models at image sizes, where it is started."""
    return Command(
        name="measure",
        module="plan",
        flags=(
            *("--measure", "--models", ",".join(models)),
            *("--sizes", ",".join(map(str, sizes)), "--passes", "inference"),
        ),
    )


def _set(assigned):
    """The flags of some assignments."""
    return tuple(flag for each in assigned for flag in ("--set", each))


def _short(assignment):
    """An assignment in the name of a folder: "weight_decay=0.1" of optimizer.weight_decay=0.1."""
    path, _, value = assignment.partition("=")
    return f"{path.rpartition('.')[2]}={value}"
