"""The data of a run: which examples are in which batch, their augmentation, and evaluations."""

import dataclasses
import os

from pipelines.config.augmentation import Augmentation
from pipelines.config.data import Sampling
from pipelines.config.names import AUTO_SPLIT
from pipelines.data import pipeline
from pipelines.data.bad_images import BadImages, explain_input_error
from pipelines.data.labels.class_sizes import describe_sizes, size_warnings
from pipelines.data.order import TrainBatches
from pipelines.data.skipped_files import describe_skipped, skipped_files
from pipelines.data.sources.open import choose_splits, open_split
from pipelines.data.sources.source import DataSource
from pipelines.data.sources.subset import open_train_source, read_labels
from pipelines.errors import DataError, UserError
from pipelines.evaluation.evaluation_step import EvaluationData
from pipelines.evaluation.features import check_single_label
from pipelines.evaluation.few_shot import check_shots
from vit_tf import Preprocessing
from vit_tf.images.decoding import SUFFIXES

# The central crop of the few-shot protocol: 224 of 256 pixels.
_PROTOCOL_CROP = 0.875


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainData:
    """Everything that determines the training batches of a run.

    Attributes:
        source: the examples.
        sampling: which examples are in which batch.
        augmentation: random changes of the images.
        preprocessing: how images become inputs, with the filter of training; its resize rule is
            used without a random crop. Images in batches have its dtype.
        bad_images: leaves out images that cannot be read; None ends the run at the first one.
    """

    source: DataSource
    sampling: Sampling
    augmentation: Augmentation
    preprocessing: Preprocessing
    bad_images: BadImages | None = None

    def dataset(self, start_batch, input_context=None):
        """The infinite dataset of replica batches from a global batch on; see `pipeline`."""
        return self._dataset(start_batch, None, input_context)

    def batch(self, index, input_context=None):
        """The dataset of the replica batches of one global batch; reads only what they need."""
        return self._dataset(index, index + 1, input_context)

    def _dataset(self, start, stop, input_context):
        return pipeline.train_dataset(
            self.source,
            self.sampling,
            self.augmentation,
            self.preprocessing,
            start_step=start,
            stop_step=stop,
            skips_bad_images=self.bad_images is not None,
            input_context=input_context,
        )

    def sample_images(self):
        """The first stored images with training augmentation; see `pipeline.sample_images`."""
        return pipeline.sample_images(
            self.source, self.preprocessing, self.sampling.seed, self.augmentation
        )

    def batches(self, hosts):
        """The `TrainBatches` if a number of hosts read data."""
        return TrainBatches(self.source, self.sampling, hosts)

    def empty_batch_error(self, batch):
        """The error to raise for a training batch without a readable image."""
        return DataError(
            f"None of the {self.sampling.batch_size} images of training batch {batch} can be "
            f"read. Is {self.source} the right data set?"
        )

    def explain_input_error(self, error, numbers, hosts):
        """The error to raise after the dataset failed in a batch; see `explain_input_error`."""
        skips_bad_images = self.bad_images is not None
        return explain_input_error(error, self.batches(hosts), numbers, skips_bad_images)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShotData:
    """The data of few-shot evaluations: images to train a classifier on, and to test it on."""

    train: EvaluationData
    test: EvaluationData


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunData:
    """The data of a run; None for evaluations that it does not have."""

    train: TrainData
    evaluation: EvaluationData | None = None
    few_shot: FewShotData | None = None

    def sources(self) -> dict[str, DataSource]:
        """The sources of training and, if the run has them, of evaluations, by their use."""
        uses = {"train": self.train, "evaluation": self.evaluation}
        if self.few_shot:
            uses |= {"few-shot train": self.few_shot.train, "few-shot test": self.few_shot.test}
        return {use: data.source for use, data in uses.items() if data}

    def describe(self) -> list[str]:
        """Lines about the images: their number, their classes, and files that are left out."""
        lines = [f"trains on {describe_sizes(self.train.source)}"]
        if self.evaluation:
            lines.append(f"evaluates on {describe_sizes(self.evaluation.source)}")
            if self.evaluation.reads_labels:
                lines += size_warnings(self.train.source, self.evaluation.source)
        else:
            lines.append("no evaluations: data.eval_split is none")
        if skipped := skipped_files(self.sources().values()):
            lines.append(f"{describe_skipped(skipped)}. Only {', '.join(SUFFIXES)} are images")
        return lines


def open_data(experiment, run, known=None) -> RunData:
    """Opens the data of an experiment, except the data of few-shot evaluations.

    Args:
        experiment: the `Experiment`; its splits are chosen.
        run: `Workdir`, for the list of bad images.
        known: an open `DataSource` of a split of these data, or None; see `open_split`.

    Raises:
        DataError: if the data are missing or cannot be used.
    """
    settings, train = experiment.data, experiment.train
    source = open_train_source(settings, known)
    bad_images = None
    if settings.bad_images == "skip":
        local = run.growing.path(os.path.basename(run.bad_images))
        bad_images = BadImages(local, run.bad_images)
    preprocessing = experiment.preprocessing()
    data = TrainData(
        source=source,
        sampling=experiment.sampling(),
        augmentation=settings,
        preprocessing=experiment.train_preprocessing(),
        bad_images=bad_images,
    )
    if settings.eval_split is None:
        return RunData(train=data)
    source = open_split(settings, settings.eval_split, known=source)
    source.read([0])  # A split without labels is refused now, not at the first evaluation.
    evaluation = EvaluationData(
        source=source,
        preprocessing=dataclasses.replace(preprocessing, dtype=settings.eval_image_dtype),
        batch_size=train.batch_size,
        bad_images=bad_images,
        max_batches=train.eval_batches,
        reads_labels=experiment.reads_labels,
    )
    return RunData(train=data, evaluation=evaluation)


def open_few_shot_data(experiment, bad_images=None) -> FewShotData | None:
    """Opens the data of `train.few_shot_every`.

    Args:
        experiment: the `Experiment`; its splits are chosen.
        bad_images: `BadImages` of the run, or None.

    Returns:
        None if there are no few-shot evaluations.

    Raises:
        DataError: if the data are missing or cannot be used.
        UserError: if there is no evaluation split, or a class has too few images.
    """
    if not experiment.train.few_shot_every:
        return None
    data = _few_shot_section(experiment)
    if data.eval_split is None:
        raise UserError(
            "train.few_shot_every needs images to test on, but data.eval_split is none. Set it or "
            "few_shot.eval_split."
        )
    train = open_split(data, data.train_split)
    test = open_split(data, data.eval_split, known=train)
    check_single_label(train)
    check_shots(read_labels(train), train, max(experiment.few_shot.shots), "few_shot.shots")
    test.read([0])  # A split without labels is refused now, not at the first evaluation.
    shared = {
        "preprocessing": _few_shot_preprocessing(experiment),
        "batch_size": experiment.train.batch_size,
        "bad_images": bad_images,
    }
    train, test = (EvaluationData(source=source, **shared) for source in (train, test))
    return FewShotData(train=train, test=test)


def _few_shot_section(experiment):
    """The data section of few-shot evaluations: the run's own, or for another data set."""
    own, asked = experiment.data, experiment.few_shot
    splits = {"train_split": asked.train_split, "eval_split": asked.eval_split}
    if asked.name is None:
        given = {name: split for name, split in splits.items() if split != AUTO_SPLIT}
        return dataclasses.replace(own, label=asked.label or own.label, **given)
    directory = asked.data_dir or own.data_dir
    other = dataclasses.replace(
        own,
        name=asked.name,
        data_dir=directory,
        label=asked.label,
        class_order="auto",
        **splits,
    )
    return choose_splits(other)


def _few_shot_preprocessing(experiment):
    """The `Preprocessing` that few_shot.preprocessing names (docs/paper.md H.1)."""
    usual = experiment.preprocessing()
    if experiment.few_shot.preprocessing == "run":
        return dataclasses.replace(usual, dtype=experiment.data.eval_image_dtype)
    return dataclasses.replace(
        usual,
        resize="squash",
        resize_to=None,
        crop_fraction=_PROTOCOL_CROP,
        interpolation="bilinear",
        antialias=False,
        jpeg="fast",
    )
