"""A command of this project as a unit: pre-training, fine-tuning or an evaluation at full scale.

Whoever has a cluster may start the same lines there: a unit is finished when its files are.
"""

import dataclasses
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from typing import Any

from pipelines.config import Experiment, override
from pipelines.config.recipes import get_recipe
from pipelines.config.recipes.fine_tuning import CHOICES, dropout
from pipelines.data.protocols.suites import SUITES, Suite
from pipelines.distribution import onednn
from pipelines.errors import EXIT_INTERRUPTED, Interrupted, RunError
from pipelines.research.paper.units import StudyUnit, set_fields
from pipelines.runs.json_file import read_json
from pipelines.runs.workdir import Workdir
from vit_tf.files import storage

_FEW_SHOT = re.compile(r"few_shot_(\d+)_accuracy")


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
    """

    name: str
    module: str
    flags: tuple[str, ...]
    start: "Command | None" = None
    recipe: str | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the result, as JSON can hold it."""
        start = None if self.start is None else self.start.folder
        experiments = [set_fields(experiment) for experiment in self.experiments]
        return {"flags": self.flags, "start": start, "experiments": experiments}

    @property
    def suite(self) -> Suite | None:
        """The suite that it fine-tunes on, or None."""
        return SUITES[self.flags[1]] if self.flags[:1] == ("--suite",) else None

    @property
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

    @property
    def experiment(self) -> Experiment:
        """The `Experiment` of a training by a recipe, with what `--set` assigns."""
        pairs = itertools.pairwise(self.flags)
        return override(get_recipe(self.recipe), [x for flag, x in pairs if flag == "--set"])

    def arguments(self, root) -> list[str]:
        """The flags with the paths below `root`."""
        own = os.path.join(root, self.folder)
        start = None if self.start is None else self.start.weights(root)
        if self.module == "evaluate":
            return [*self.flags, "--model", str(start), "--json"]
        return [*self.flags, "--workdir", own, *(["--init_from", start] if start else [])]

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
        if self.module == "sweep":
            return _of_sweep(folder) if self.suite is None else _of_suite(folder)
        return _of_training(Workdir(folder), self.experiment.train.keep_best)


def _of_suite(folder):
    record = read_json(os.path.join(folder, "suite.json"))
    found = {task: each["mean"] for task, each in record["tasks"].items()}
    found |= {name: each["mean"] for name, each in record["score"].items()}
    return {name: value for name, value in found.items() if value is not None}


def _of_sweep(folder):
    return {"mean": read_json(os.path.join(folder, "sweep.json"))["mean"]}


def _of_training(workdir, keeps_best):
    """The accuracies of the last evaluation, or of the best one where the run keeps that."""
    by_step = {}
    for line in workdir.read_metrics():
        found = {x: y for x, y in line.items() if _FEW_SHOT.fullmatch(x) or x == "eval_accuracy"}
        by_step.setdefault(line["step"], {}).update(found)
    evaluated = [found for found in by_step.values() if "eval_accuracy" in found]
    if keeps_best and evaluated:
        return max(evaluated, key=lambda found: found["eval_accuracy"])
    return {name: value for found in by_step.values() for name, value in found.items()}


def pretrained(recipe) -> Command:
    """A pre-training by a recipe."""
    return Command(
        name=f"pretrain/{recipe}",
        module="pretrain",
        flags=("--experiment", recipe),
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


def on_imagenet(start: Command, recipe="finetune_imagenet") -> Command:
    """Fine-tuning of a pre-training on ImageNet, at the best of table 4's rates."""
    rates, held_out = CHOICES["finetune_imagenet"]
    grid = ",".join(f"{rate:g}" for rate in rates)
    model = get_recipe(start.recipe).model.name
    assigned = [f"model.name={model}"] + [f"model.{x}={y}" for x, y in dropout(model).items()]
    return Command(
        name=f"{recipe}/{start.recipe}",
        module="sweep",
        flags=(
            *("--experiment", recipe),
            *("--grid", f"optimizer.learning_rate={grid}", "--hold_out", str(held_out)),
            *(flag for each in assigned for flag in ("--set", each)),
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
    )
