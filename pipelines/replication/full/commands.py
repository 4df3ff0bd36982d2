"""A command of this project as a unit: pre-training, fine-tuning or an evaluation at full scale.

Whoever has a cluster may start the same lines there: a unit is finished when its files are.
"""

import dataclasses
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
from pipelines.errors import Interrupted, RunError
from pipelines.replication.units import digest, set_fields
from pipelines.runs.json_file import read_json
from pipelines.runs.workdir import Workdir
from vit_tf.files import storage

# The exit code of a command that a signal has stopped after saving.
_INTERRUPTED = 75
_FEW_SHOT = re.compile(r"few_shot_(\d+)_accuracy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """One command.

    Attributes:
        name: what it is, the begin of its folder.
        module: the name after `pipelines.`.
        flags: its flags besides those of its folder and of what it starts from.
        start: the command whose weights it reads; None: random weights.
        recipe: the recipe that it trains by; None if it trains by a suite or not at all.
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
        experiment = None if self.experiment is None else set_fields(self.experiment)
        return {"flags": self.flags, "start": start, "experiment": experiment}

    @property
    def experiment(self) -> Experiment | None:
        """The `Experiment` of a training by a recipe, with what `--set` assigns."""
        if self.recipe is None:
            return None
        assigned = [
            x for flag, x in zip(self.flags, self.flags[1:], strict=False) if flag == "--set"
        ]
        return override(get_recipe(self.recipe), assigned)

    @property
    def folder(self) -> str:
        """The folder, relative to the one of all units."""
        return f"{self.name}-{digest(self.settings)}"

    @property
    def needs(self) -> tuple["Command", ...]:
        """The units that must have run before."""
        return () if self.start is None else (self.start,)

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

    def describe(self, root="runs/paper/runs") -> str:
        """The line for a shell."""
        return shlex.join(["python", "-m", f"pipelines.{self.module}", *self.arguments(root)])

    def stand_in(self) -> dict:
        """A result with the keys of a real one."""
        return {}

    def run(self, root, devices) -> dict:
        """Runs it in a process of its own; returns its numbers.

        Args:
            root: the folder of all units.
            devices: flags of the devices to run on, such as ("--strategy=tpu",).

        Raises:
            Interrupted: if the command was interrupted.
            RunError: if it failed; it has said why.
        """
        command = [
            sys.executable,
            "-m",
            f"pipelines.{self.module}",
            *self.arguments(root),
            *devices,
        ]
        output = subprocess.PIPE if self.module == "evaluate" else None
        with subprocess.Popen(command, stdout=output, text=True) as process:
            try:
                text, _ = process.communicate()
            except KeyboardInterrupt:  # See `interruptible`; the child saves its state.
                process.terminate()
                raise
        if process.returncode == _INTERRUPTED:
            raise Interrupted(
                "Interrupted. Start the same command again: it goes on where it ended."
            )
        if process.returncode:
            raise RunError(f"{self.describe(root)} ended with exit code {process.returncode}.")
        return self._numbers(os.path.join(root, self.folder), text)

    def _numbers(self, folder, text):
        if self.module == "evaluate":
            found = json.loads(text)
            storage.make_folders(folder)
            return {name: found[name] for name in ("accuracy", "examples")}
        if self.module == "sweep":
            return _of_suite(folder) if "--suite" in self.flags else _of_sweep(folder)
        return _of_training(Workdir(folder))


def _of_suite(folder):
    record = read_json(os.path.join(folder, "suite.json"))
    found = {task: each["mean"] for task, each in record["tasks"].items()}
    found |= {name: each["mean"] for name, each in record["score"].items()}
    return {name: value for name, value in found.items() if value is not None}


def _of_sweep(folder):
    return {"mean": read_json(os.path.join(folder, "sweep.json"))["mean"]}


def _of_training(workdir):
    """The last accuracy of each number of shots, and that of the last evaluation."""
    found = {}
    for line in workdir.read_metrics():
        found |= {x: y for x, y in line.items() if _FEW_SHOT.fullmatch(x) or x == "eval_accuracy"}
    return found


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
        name=f"{name}/{start.recipe}", module="sweep", flags=("--suite", name), start=start
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
    """The evaluation of a model fine-tuned on ImageNet with ReaL's labels."""
    return Command(
        name=f"real/{start.name}",
        module="evaluate",
        flags=("--benchmark", "real"),
        start=start,
    )
