"""The plan of a suite: the settings to choose from, and the trainings of each task."""

import dataclasses
import functools
import itertools
import logging
import os
from collections.abc import Mapping

from pipelines.config import Assignments, Request
from pipelines.config.recipes import get_recipe
from pipelines.config.recipes.fine_tuning import dropout
from pipelines.data.protocols.suites import SUITES, TABLE_4, Suite, setting_differences
from pipelines.data.sources.open import open_split
from pipelines.data.sources.subset import open_train_split, subset_size
from pipelines.errors import DataError, MissingDataError, UserError
from pipelines.evaluation.benchmarks.paper_results import merged
from pipelines.research.lab.unit import Training
from pipelines.research.sweeps.choice import Choice, Setting
from pipelines.research.sweeps.sweep_plan import (
    final_trainings,
    folder_name,
    parse_grid,
    refuse_twins,
    value_at,
)
from pipelines.runs.workdir import Workdir, keep_later_fields
from pipelines.training.fine_tuning import check_initial, choose
from pipelines.training.prepare import resolve
from vit_tf.files import storage

_log = logging.getLogger(__name__)

SEEDS = 3  # The paper's number of fine-tuning runs.
_RATE = "optimizer.learning_rate"
# The suite decides them.
_FIXED = ("data.name", "data.label", "data.train_split", "data.eval_split", "task")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuitePlan(Choice):
    """A suite with a model; a single setting is not compared.

    Attributes:
        suite: the `Suite`.
        model, init_from: name of the model, and its initial weights.
        missing: the reason why a task has no data, by task.
        sources: what the data of each task are called, by task.
    """

    suite: Suite
    model: str
    init_from: str
    missing: Mapping[str, str]
    sources: Mapping[str, str]

    @property
    def tasks(self) -> list[str]:
        """The tasks that have data."""
        return [task for task in self.suite.tasks if task not in self.missing]

    @property
    def compares(self) -> bool:
        """Whether settings are compared before the final trainings."""
        return len(self.settings) > 1


def make_suite_plan(
    name, request: Request, *, grid=(), hold_out=None, seeds=SEEDS, workdir, replicas
) -> SuitePlan:
    """Builds and checks the trainings of a suite.

    Args:
        name: one of `SUITES`.
        request: the `Request` of the user: initial weights, and settings that differ from the
            suite's.
        grid: a text "path=value,value,..." for each field to vary, besides the learning rate or in
            its place.
        hold_out: the part of the training split on which settings are compared; None: the paper's.
        seeds: number of final trainings of each task.
        workdir: directory of the suite.
        replicas: number of replicas that train.

    Raises:
        UserError: if a setting, the initial weights or data that are there cannot be used. Missing
            data are in the plan.
    """
    suite, assigned = SUITES[name], request.assignments
    if fixed := [path for path in _FIXED if assigned.given(path)]:
        raise UserError(
            f"--suite={name} decides {', '.join(fixed)}. Leave {'them' if fixed[1:] else 'it'} "
            "out, or use --grid with a recipe instead of --suite."
        )
    if seeds < 1:
        raise UserError(f"--suite needs --seeds of at least 1. Received: {seeds}.")
    if hold_out is not None:
        if suite.is_vtab:
            raise UserError(
                f"--hold_out={hold_out} has no effect: VTAB compares settings on 200 examples of "
                "each task. Leave it out."
            )
        if not 0 < hold_out < 1:
            raise UserError(f"--hold_out must be above 0 and below 1. Received: {hold_out}.")
    fields = {_RATE: [f"{rate:g}" for rate in suite.rates], **parse_grid(grid)}
    if models := [x for x in fields if x.startswith("init_") or x == "model.name"]:
        raise UserError(
            f"--grid {models[0]}: a suite has one model. Name it with --init_from, and use another "
            "--workdir for another model."
        )
    planner = _Planner(suite, request, fields, hold_out or suite.hold_out, seeds, workdir, replicas)
    return planner.plan()


class _Planner:
    """Builds the plan of a suite; arguments as for `make_suite_plan`.

    Args:
        suite: the `Suite`.
        fields: the texts of the values to try, by path.
    """

    def __init__(self, suite, request, fields, hold_out, seeds, workdir, replicas):
        self._suite, self._fields, self._hold_out = suite, fields, hold_out
        self._seeds, self._replicas, assigned = seeds, replicas, request.assignments
        own = {k: v for k, v in assigned.values.items() if not k.startswith("init_")}
        self._user = dataclasses.replace(assigned, values=own)
        initial = Request(assignments=assigned.within("init_"))
        self._start = functools.cache(
            lambda recipe: choose(recipe, initial, workdir, replicas=replicas)[0]
        )
        self._say_once = functools.cache(_log.info)
        self._begun = _first_run(workdir)
        self._fitting = set()  # Models that fit the initial weights.
        # By task: the source of all training examples, or None; for comparing settings, the splits
        # and the source of the examples that are trained on.
        self._sources, self._held_out = {}, {}

    def plan(self):
        """Returns the `SuitePlan`."""
        suite = self._suite
        start = self._start(get_recipe(suite.recipe))
        is_resnet = start.model.config(num_classes=1).family == "resnet"
        recipes = suite.recipes(is_resnet, start.model.name)
        data = {
            task: self._experiment(recipe, task, {}).data
            for task, recipe in recipes[TABLE_4].items()
        }
        grid = [*itertools.product(*self._fields.values())]
        missing, compares = {}, is_resnet or len(grid) > 1
        for task in suite.tasks:
            try:
                source = self._sources[task] = self._open(task, data[task])
                if compares:
                    train, test = suite.held_out(task, source, self._hold_out)
                    part = open_train_split(dataclasses.replace(data[task], train_split=train))
                    self._held_out[task] = train, test, part
            except MissingDataError as error:
                self._sources[task], missing[task] = None, str(error)
        settings = []
        for setup, of_task in recipes.items():
            own = {"setup": setup} if is_resnet else {}
            for texts in grid if setup == TABLE_4 else [()]:
                tried = dict(zip(self._fields, texts, strict=False))
                settings.append(self._setting(of_task, own, tried))
        refuse_twins(settings)
        return SuitePlan(
            suite=suite,
            model=start.model.name,
            init_from=start.init_from,
            settings=tuple(settings),
            seeds=self._seeds,
            missing=missing,
            sources={task: section.name for task, section in data.items()},
        )

    def _open(self, task, data):
        """Opens the training examples of a task; checks them and the test set."""
        test = open_split(data, data.eval_split)
        train = open_train_split(data)
        expected = self._suite.tasks[task].num_classes
        for source in (train, test):
            if source.num_classes != expected or source.multi_label:
                raise DataError(
                    f"{source} has {source.num_classes} classes"
                    f"{' in lists of labels' if source.multi_label else ''}, but {task} of "
                    f"--suite={self._suite.name} has {expected}. Prepare the published data set."
                )
        return train

    def _experiment(self, recipe, task, grid, user=None):
        """The experiment of a task that trains on all its training examples.

        Args:
            recipe: recipe of the setup for the task.
            task: name of the task.
            grid: text of each value of the grid, by path.
            user: the settings of the user by path; None takes them.
        """
        start = self._start(recipe)
        user = self._user.values if user is None else user
        tried = Assignments.parse(map("=".join, grid.items()), "--grid").values
        size = {**user, **tried}.get("model.image_size", start.model.image_size)
        resized = recipe.data.crop_resize_to if size == start.model.image_size else None
        data_dir = user.get("data.data_dir", start.data.data_dir)
        of_task = self._suite.data_settings(task, max(size), resized, data_dir)
        parsed = Assignments.parse(map("=".join, of_task.items())).values
        assigned = Assignments({**parsed, **user, **tried})
        experiment, notes = assigned.apply(start)
        for note in notes:
            self._say_once(note)
        if self._begun is None or user is not self._user.values:
            return experiment
        return keep_later_fields(self._begun, experiment, assigned)

    def _setting(self, recipes, values, grid):
        """A `Setting`: a setup and values of the grid, with the trainings of all tasks."""
        experiments = {
            task: self._experiment(recipe, task, grid) for task, recipe in recipes.items()
        }
        first = next(iter(experiments.values()))
        values = values | {path: value_at(first, path) for path in grid}
        name, tuning, final = folder_name(values), {}, {}
        for task, whole in experiments.items():
            self._check_initial(whole)
            if task in self._held_out:
                train, test, part = self._held_out[task]
                data = dataclasses.replace(whole.data, train_split=train, eval_split=test)
                tuned = dataclasses.replace(whole, data=data)
                tuned, flops = self._resolved(tuned, part)
                folder = f"trials/{name}/{task}"
                tuning[task] = Training(folder=folder, experiment=tuned, cost=flops)
            whole, flops = self._resolved(whole, self._sources[task])
            final[task] = final_trainings(f"final/{name}/{task}", whole, self._seeds, flops)
        return Setting(
            name=name,
            values=values,
            differences=self._differences(experiments, recipes, grid),
            tuning=tuning,
            final=final,
        )

    def _resolved(self, experiment, source):
        """The experiment as it trains, and its FLOPs; None if they depend on missing data."""
        assigned = {*self._user.values, *self._fields}
        images = None if source is None else subset_size(experiment.data, source)
        run = resolve(experiment, source, self._replicas, assigned=assigned, images=images)
        for note in run.notes:
            self._say_once(note)
        is_known = source is not None or experiment.train.epochs is None
        experiment = run.experiment
        if "train.eval_every" not in self._user.values:  # A test set can cost more than training.
            train = dataclasses.replace(experiment.train, eval_every=0)
            experiment = dataclasses.replace(experiment, train=train)
        return experiment, run.sizes.training_flops if is_known else None

    def _differences(self, experiments, recipes, grid):
        """The settings that are not the paper's, of the experiments of tasks that have data."""
        where = {k: v for k, v in self._user.values.items() if k == "data.data_dir"}
        rates, by_task = self._suite.rates if _RATE in grid else (), {}
        for task, recipe in recipes.items():
            if self._sources[task] is None:
                continue
            paper = self._experiment(recipe, task, {}, user=where)
            # Initial weights may be of another architecture than the model that is nearest to it.
            model = dataclasses.replace(paper.model, fields=dropout(paper.model.name))
            paper = dataclasses.replace(paper, model=model)
            by_task[task] = setting_differences(paper, experiments[task], rates)
        lines = merged(by_task)
        own = self._suite.hold_out
        if self._hold_out != own:
            lines.append(f"--hold_out: {own} -> {self._hold_out}")
        if self._seeds != SEEDS:
            lines.append(f"--seeds: {SEEDS} -> {self._seeds}")
        return tuple(lines)

    def _check_initial(self, experiment):
        if experiment.model not in self._fitting:
            check_initial(experiment, self._user)
            self._fitting.add(experiment.model)


def _first_run(workdir):
    """The experiment of one training of the suite in a folder; None without any."""
    for part in ("trials", "final"):
        path = os.path.join(workdir, part)
        for folder, _, names in storage.walk(path) if storage.exists(path) else ():
            if os.path.basename(Workdir(folder).config) in names:
                return Workdir(folder).read_experiment()
    return None
