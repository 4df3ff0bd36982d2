"""The configuration of a run: an experiment of frozen sections, typed overrides, and its JSON form.

Every default is in a section or in a recipe. Code that reads a configuration adds no defaults.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pipelines.config.data import Data, Sampling
from pipelines.config.epochs import check_warmup, fit_warmup, one_unit
from pipelines.config.few_shot import FewShot
from pipelines.config.fields import (
    check,
    check_choices,
    differences,
    field_types,
    fields_from_json,
    parse,
)
from pipelines.config.masking import Masking, check_masking
from pipelines.config.model import Model, model_field_types, unknown_field
from pipelines.config.names import Weights
from pipelines.config.near_paths import path_hint
from pipelines.config.optimizer import Optimizer
from pipelines.config.schedule import Schedule
from pipelines.config.train import Train
from pipelines.errors import UserError
from vit_tf.classes import Classes
from vit_tf.config import ModelConfig
from vit_tf.preprocessing import MAX_SIDE, Preprocessing

# A user who sets one of these has chosen the grid of patches.
_GRID_PATHS = ("model.image_size", "model.patch_size")
# These settings may change between two starts of a run: they do not change what a step computes.
_MAY_CHANGE = (
    # Micro-batches equal the whole batch, so that a run may go on where memory is smaller.
    "train.accumulate_steps",
    # The gradients are the same, up to rounding in large models.
    "model.recompute",
    # As the number of replicas: only the norm of the gradient is summed in another order.
    "train.shard_optimizer",
    "train.log_every",
    "train.eval_every",
    "train.eval_batches",
    "train.checkpoint_every",
    "train.keep_last",
    "train.keep_every",
    "train.keep_best",
    "train.early_stop_after",
    "train.few_shot_every",
    # A run that stops at bad images has not trained on any so far.
    "data.bad_images",
    "data.scan",
    "train.non_finite",
    "train.profile",
    "train.histograms_every",
    "train.inspect_every",
    "train.worker_timeout",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides the results of a run, except the hardware.

    Attributes:
        seed: seed of the initial weights, data order, augmentation and dropout.
        init_from: source of the initial weights: a workdir, a file or folder of weights, a name of
            published weights, "shipped" (the digits model of the package), or none for random
            weights. As for fine-tuning, the
            head is set to zeros and position embeddings are resized.
        init_weights: the weights to take if init_from is a workdir: "final", "ema" or "best".
        init_head: the layers that do not keep the weights of init_from: "reset", the whole head, of
            which pre-logits are a part; "reset_last", its last layer alone. The model then needs
            the pre-logits of init_from, which finetune gives it unless
            model.representation_size is set.
        task: "classification" learns the labels of the images; "masked_patches" the content
            of masked patches without labels, the paper's self-supervision (docs/paper.md G).
        model, data, optimizer, schedule, train, masking, few_shot: the sections.
    """

    seed: int = 0
    init_from: str | None = None
    init_weights: Weights = "final"
    init_head: Literal["reset", "reset_last"] = "reset"
    task: Literal["classification", "masked_patches"] = "classification"
    model: Model = dataclasses.field(default_factory=Model)
    data: Data = dataclasses.field(default_factory=Data)
    optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
    schedule: Schedule = dataclasses.field(default_factory=Schedule)
    train: Train = dataclasses.field(default_factory=Train)
    masking: Masking = dataclasses.field(default_factory=Masking)
    few_shot: FewShot = dataclasses.field(default_factory=FewShot)

    def __post_init__(self):
        check("seed", self.seed, 0 <= self.seed < 2**31, "in [0, 2^31)")
        if self.init_from == "":
            raise UserError("init_from is empty. Name a model, or use none.")
        check_choices(self)
        try:
            self.preprocessing()
        except ValueError as error:
            raise UserError(f"model.image_size, data: {error}") from None
        side, least = self.data.crop_resize_to, max(self.model.image_size)
        if side is not None:
            check("data.crop_resize_to", side, least <= side <= MAX_SIDE, f"{least} to {MAX_SIDE}")
        check_warmup(self.train, self.schedule)
        stops_early = self.train.early_stop_after and self.train.best_metric == "evaluation"
        if stops_early and self.data.eval_split is None:
            raise UserError(
                f"train.early_stop_after={self.train.early_stop_after} needs evaluations, but "
                "data.eval_split is none. Set it to a split."
            )
        if not self.reads_labels:
            if self.data.balance == "loss":
                raise UserError(
                    f"data.balance=loss weights the labels, which task={self.task} does not learn. "
                    "Set data.balance=none."
                )
            if self.init_head == "reset_last":
                raise UserError(
                    f"init_head=reset_last keeps a layer of the head, which task={self.task} does "
                    "not train. Set init_head=reset."
                )
            check_masking(self.model.name, self.model_config(0), self.masking.fraction)

    @property
    def reads_labels(self) -> bool:
        """Whether the task learns from labels."""
        return self.task == "classification"

    def model_config(self, num_classes) -> ModelConfig:
        """Returns the configuration of the model that the task trains.

        Args:
            num_classes: number of classes of the data. Without labels the model has no head.
        """
        return self.model.config(num_classes if self.reads_labels else 0)

    def preprocessing(self) -> Preprocessing:
        """Returns how images are preprocessed for this run's model, except in training."""
        return Preprocessing(image_size=self.model.image_size, **self.data.preprocessing_fields())

    def train_preprocessing(self) -> Preprocessing:
        """Returns how images become inputs in training, apart from augmentation."""
        return dataclasses.replace(
            self.preprocessing(),
            interpolation=self.data.interpolation,
            dtype=self.data.image_dtype,
        )

    def classes(self, labels) -> Classes:
        """Returns the classes of this run's model; `labels` are the data's labels, in order."""
        names = tuple(labels) if self.reads_labels else ()
        return Classes(labels=names, activation=self.train.loss)

    def sampling(self) -> Sampling:
        """Returns the settings that decide which examples are in which training batch."""
        return Sampling(
            batch_size=self.train.batch_size,
            shuffle_window=self.data.shuffle_window,
            seed=self.seed,
            sharding=self.data.sharding,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns a dictionary that JSON can hold: lists for tuples, keys as in `--set` paths."""
        values = vars(self) | {"model": self.model.to_dict()}
        return json.loads(json.dumps(values, default=dataclasses.asdict))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Experiment":
        """Inverse of `to_dict`; `UserError` for unknown fields and wrong types."""
        sections = {name: section for name, section in values.items() if name != "model"}
        model = Model.from_dict(values.get("model", {}))
        return cls(**fields_from_json(cls, sections, ""), model=model)

    @classmethod
    def from_stored(cls, values: dict[str, Any]) -> "Experiment":
        """`from_dict` for what a run or a sweep has stored, maybe before a field existed.

        Without data.exif, it was begun when orientations were not applied yet; without data.jpeg,
        when all JPEGs were decoded fast; without data.split_by, when ranges counted all files.
        """
        data = values.get("data")
        if isinstance(data, dict):
            before = {"exif": "ignore", "split_by": "file"}
            before |= {"jpeg": "fast"} if data.get("antialias") else {}
            values = values | {"data": before | data}
        return cls.from_dict(values)


@dataclasses.dataclass(frozen=True)
class Assignments:
    """The settings that a user assigned, such as `--set train.steps=100`, parsed.

    Attributes:
        values: the value of each assigned config path, as JSON holds it.
        flag: where they come from, for messages.
    """

    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    flag: str = "--set"

    @classmethod
    def parse(cls, texts: Iterable[str], flag: str = "--set") -> "Assignments":
        """Reads `path.to.field=value` texts; the last one for a path holds.

        The type of the field decides how a value is read: `none` for an optional field, `224` or
        `224,160` for sizes.

        Raises:
            UserError: for a path that no model has (the message has similar names), or an
                unreadable value.
        """
        values, known = {}, config_paths(None)
        for text in texts:
            path, separator, value = text.partition("=")
            if not separator:
                raise UserError(
                    f"{flag} needs path=value, such as train.steps=100. Received: {path!r}."
                )
            if path not in known and not path.startswith("model."):
                hint = path_hint(path, known)
                raise UserError(f"Unknown config path {path!r} in {flag} {text}.{hint}")
            # `apply` refuses unknown fields of a model: their names depend on it.
            values[path] = parse(path, value, known[path]) if path in known else value
        return cls(values, flag)

    def given(self, *paths: str) -> bool:
        """Whether one of these paths is assigned."""
        return not self.values.keys().isdisjoint(paths)

    def within(self, *starts: str, but: str = "") -> "Assignments":
        """Returns the assignments to paths that begin with one of `starts`, except to `but`."""
        values = {k: v for k, v in self.values.items() if k.startswith(starts) and k != but}
        return dataclasses.replace(self, values=values)

    def apply(self, experiment: Experiment, before=()) -> tuple[Experiment, list[str]]:
        """Applies them together, so that their order does not matter.

        Then fields of the recipe that were not assigned follow those that were; the sections say
        how: `Model.for_variant`, `Data.for_name`, `epochs.one_unit`, `epochs.fit_warmup`,
        `Model.fit_pre_logits`, `Train.fit_ema_warmup`, `Model.check_grid`.

        Args:
            experiment: the recipe.
            before: paths that the user assigned before: a warm-up among them is not scaled, a
                length in steps among them is not replaced by epochs, and pre-logits among them
                do not follow the model.

        Returns:
            The changed experiment, and sentences about a warm-up and pre-logits that are changed.

        Raises:
            UserError: for a field that the model does not have, a value that conflicts with others,
                or a grid of one patch that was not requested by model.image_size or
                model.patch_size.
        """
        values = experiment.to_dict()
        if self.given("model.name"):
            values["model"] = experiment.model.for_variant(self.values["model.name"])
        if self.given("data.name"):
            values["data"] |= experiment.data.for_name(self.values["data.name"])
        name = values["model"]["name"]
        known = config_paths(name)
        for path, value in self.values.items():
            if path not in known:
                raise unknown_field(path.removeprefix("model."), name)
            *sections, field = path.split(".")
            section = values
            for key in sections:
                section = section.setdefault(key, {})
            section[field] = value
        fixed = {*self.values, *before}
        one_unit(values, self.values, fixed)
        notes = fit_warmup(values, fixed, experiment.train.steps)
        if "model.representation_size" not in fixed:
            notes += experiment.model.fit_pre_logits(values["model"])
        if "train.ema_warmup" not in fixed:
            experiment.train.fit_ema_warmup(values["train"])
        changed = Experiment.from_dict(values)
        if changed.model != experiment.model and not self.given(*_GRID_PATHS):
            changed.model.check_grid()
        return changed, notes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The request of a command line, apart from the experiment.

    Attributes:
        origin: recipe or file of the experiment, for the first line of the run.
        assignments: the user's assignments; see `with_steps`, `Workdir.with_own_warmup`.
        extend: whether to resume a run with another `train.steps` and the schedule for it.
        opened: a section of data and the open source of its training split, if choosing the
            experiment needed them: it is not listed again.
    """

    origin: str = ""
    assignments: Assignments = Assignments()
    extend: bool = False
    opened: tuple[Data, Any] | None = None

    def source_of(self, data: Data) -> Any:
        """The source in `opened` if it is of the same data set as `data`, else None."""
        if self.opened is None or not data.is_same_data_set(self.opened[0]):
            return None
        return self.opened[1]


def override(experiment: Experiment, texts: Iterable[str]) -> Experiment:
    """Parses `path=value` texts and applies them; errors are as for `Assignments`."""
    return Assignments.parse(texts).apply(experiment)[0]


def config_paths(model: str | None = Model.name) -> dict[str, Any]:
    """Returns the type of each field that `--set` accepts, by dotted path.

    Args:
        model: name of the model; None: the fields of all models.

    Raises:
        UserError: for an unknown model.
    """
    own = {path: kind for path, kind in field_types(Experiment).items() if path != "model.fields"}
    return own | {f"model.{path}": kind for path, kind in model_field_types(model).items()}


def lasting_differences(before: Experiment, now: Experiment, also=()) -> list[str]:
    """A line `path: old -> new` for each changed setting that must stay from start to start.

    Args:
        before, now: the experiments.
        also: paths of further settings that may change.
    """
    changed = differences(before.to_dict(), now.to_dict())
    # Few-shot evaluations only report, unless they choose the best checkpoint.
    reported = () if now.train.best_metric == "few_shot" else ("few_shot.",)
    return [
        line
        for line in changed
        if line.split(":")[0] not in (*_MAY_CHANGE, *also) and not line.startswith(reported)
    ]
