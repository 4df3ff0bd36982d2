"""The suites of `sweep --suite`: which data sets they fine-tune on, and with which settings.

The protocol follows the paper's table 4 and appendix B.1.1 (docs/paper.md F.5): settings are
chosen on a part of the training data, then the model is fine-tuned on all of them with several
seeds. VTAB chooses one setting for all its tasks. For ResNets BiT-HyperRule is one more setting.
"""

import dataclasses
from collections.abc import Mapping

from pipelines.config import Experiment
from pipelines.config.experiment import lasting_differences
from pipelines.config.recipes import bit, get_recipe
from pipelines.config.recipes.fine_tuning import CHOICES, dropout
from pipelines.data.protocols import vtab
from pipelines.data.protocols.vtab_tasks import TASKS
from pipelines.data.sources.subset import held_out_splits

TABLE_4, HYPER_RULE = "table_4", "bit_hyper_rule"
# Images below 96 pixels, which BiT-HyperRule enlarges less: the only tasks of VTAB that have them.
_SMALL = {"cifar100", "svhn", "eurosat", "dsprites_location", "dsprites_orientation"}
_SMALL_SIDE, _LARGE_SIDE = 64, 224
# Settings that change no result, settings of folders and lists alone, and the data, which are
# compared apart.
_NO_DIFFERENCE = ("seed", "data.data_dir", "data.name", "data.split_by", "data.class_order")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteTask:
    """A data set of a suite.

    Attributes:
        name: in names of folders.
        title: as in the paper's tables.
        data_name: `data.name` of the published data.
        num_classes: number of classes of its labels.
    """

    name: str
    title: str
    data_name: str
    num_classes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite.

    Attributes:
        name: value of `--suite`, and `PaperValue.data` of its score.
        recipe: name of the recipe with the settings of table 4.
        rates: learning rates to choose from; one rate needs no choice.
        hold_out: the part of the training split on which they are compared; None: the tasks have
            200 examples of their own for it.
        tasks: its tasks by name.
    """

    name: str
    recipe: str
    rates: tuple[float, ...]
    hold_out: float | None
    tasks: Mapping[str, SuiteTask]

    @property
    def is_vtab(self) -> bool:
        """Whether it has many tasks with splits of their own."""
        return self.hold_out is None

    def recipes(self, is_resnet, model) -> dict[str, dict[str, Experiment]]:
        """Returns setup -> task -> the recipe to start from.

        Args:
            is_resnet: whether the model is a ResNet, for which the paper takes the better of two
                setups.
            model: its name.
        """
        recipe = get_recipe(self.recipe)
        recipe = dataclasses.replace(
            recipe, model=dataclasses.replace(recipe.model, fields=dropout(model))
        )
        setups = {TABLE_4: dict.fromkeys(self.tasks, recipe)}
        if is_resnet:
            setups[HYPER_RULE] = {task: self._hyper_rule(task, model) for task in self.tasks}
        return setups

    def _hyper_rule(self, task, model):
        data = get_recipe(self.recipe).data
        own = (1000, _SMALL_SIDE if task in _SMALL else _LARGE_SIDE)
        images, side = own if self.is_vtab else bit.IMAGES[data.name]
        return bit.hyper_rule(
            model=model,
            weights=None,
            dataset=data.name,
            eval_split=data.eval_split,
            images=images,
            image_side=side,
        )

    def data_settings(self, task, image_size, resized=None, data_dir=None) -> dict[str, str]:
        """Returns the data of a task as texts by path, as for `--set`; of one data set, nothing.

        Training takes all training examples, and evaluation the test set.

        Args:
            task: its name.
            image_size: side of the images that the model reads, in pixels.
            resized: side before a random crop; None: in proportion to `image_size`.
            data_dir: folder of prepared TFDS data sets; None is the default of TFDS.
        """
        if not self.is_vtab:
            return {}
        values = vtab.settings(task, "train800val200", "test", image_size, data_dir)
        if resized is not None and values["data.crop"] == "random":
            values["data.crop_resize_to"] = str(resized)
        return values

    def held_out(self, task, source, part) -> tuple[str, str]:
        """Returns the splits that settings are compared on: for training, and for evaluation.

        Args:
            task: its name.
            source: `DataSource` of all its training examples.
            part: as `hold_out`.
        """
        if self.is_vtab:
            splits = TASKS[task].splits
            return splits["train800"], splits["val200"]
        return held_out_splits(source, part)[:2]


def _vtab():
    tasks = {
        task.name: SuiteTask(
            name=task.name,
            title=task.title,
            data_name=task.data_name,
            num_classes=task.num_classes,
        )
        for task in TASKS.values()
    }
    return Suite(
        name="vtab",
        recipe="finetune_vtab",
        rates=(0.01,),
        hold_out=None,
        tasks=tasks,
    )


def _single(name, title, num_classes):
    recipe = f"finetune_{name}"
    rates, hold_out = CHOICES[recipe]
    task = SuiteTask(
        name=name,
        title=title,
        data_name=get_recipe(recipe).data.name,
        num_classes=num_classes,
    )
    return Suite(
        name=name,
        recipe=recipe,
        rates=rates,
        hold_out=hold_out,
        tasks={name: task},
    )


# `evaluate --benchmark` compares models with its setups; it is no choice of `--suite`.
IMAGENET = _single("imagenet", "ImageNet", 1000)
SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        _vtab(),
        _single("cifar10", "CIFAR-10", 10),
        _single("cifar100", "CIFAR-100", 100),
        _single("pets", "Oxford-IIIT Pets", 37),
        _single("flowers", "Oxford Flowers-102", 102),
    )
}


def setting_differences(paper, own, rates=(), also=()) -> list[str]:
    """Returns a line `path: paper's -> own` for each setting that can change the result.

    Args:
        paper, own: the `Experiment`s.
        rates: learning rates that the paper chose from: all of them are the paper's.
        also: paths of further settings that are not compared.
    """
    rate = "optimizer.learning_rate"
    chosen = (rate,) if own.optimizer.learning_rate in rates else ()
    return lasting_differences(paper, own, (*_NO_DIFFERENCE, *chosen, *also))
