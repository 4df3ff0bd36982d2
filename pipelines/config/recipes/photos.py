"""Fine-tuning on any number of photos with the paper's settings (docs/paper.md F.5 and F.9).

The settings depend on the data and on the initial model, so that no name stands for them.
`training/fine_tuning.py` takes them where a recipe is for built-in data and the data are photos.
"""

import contextlib
import dataclasses
import math

from pipelines.config import Data, Experiment, Optimizer, Schedule, Train
from pipelines.config.recipes.rows import hyper_rule_length
from pipelines.errors import MissingDataError, UserError

# Without an assignment, no run reads photos with a side below this number of pixels.
SMALLEST_SIDE = 64
# Fields of `Preprocessing` that are taken from the initial model.
PIXEL_FIELDS = ("interpolation", "antialias", "jpeg", "mean", "std")
# The only rate in every row of the paper's table 4.
_LEARNING_RATE = 0.01
_SMALLEST_BATCH, _LARGEST_BATCH, _BATCHES_PER_EPOCH = 16, 512, 16
# Steps and warm-up steps below this number of images, where the rule for benchmarks is long.
_FEW_PHOTOS, _FEW_STEPS = 1_000, (250, 50)
# Memory for the activations of the images that are processed at a time.
_ACTIVATION_BYTES = 4e9
# The paths that `shown` returns. A length in epochs takes the place of the one in steps.
_SHOWN = (
    *("optimizer.name", "optimizer.learning_rate", "optimizer.weight_decay"),
    *("schedule.warmup_steps", "schedule.warmup_epochs", "schedule.decay"),
    *("data.crop", "data.flip", "train.steps", "train.epochs"),
    *("train.batch_size", "train.accumulate_steps"),
    *(f"data.{name}" for name in (*PIXEL_FIELDS, "eval_interpolation")),
)


def photos(
    start: Experiment,
    *,
    examples: int,
    replicas: int,
    image_bytes: int,
    splits: bool,
    pixels: dict,
    batch_size: int | None = None,
) -> Experiment:
    """Returns `start` with the settings for photos; its model and its other sections stay.

    A chosen batch size is a power of two, or the largest multiple of `replicas` below it. An epoch
    has at least 16 batches, if that does not make batches smaller than 16 images. The activations
    of a micro-batch fit into 4 GB of each device. The crop is the paper's crop.

    Args:
        start: the `Experiment`, with the initial model at a size for photos.
        examples: number of training images.
        replicas: number of devices that share a batch.
        image_bytes: bytes of the activations of one image.
        splits: whether a batch can be split into micro-batches.
        pixels: fields of `Data` that the initial model decides, or none of them.
        batch_size: None: choose one.
    """
    steps, warmup = _FEW_STEPS if examples < _FEW_PHOTOS else hyper_rule_length(examples)
    room = max(1, int(_ACTIVATION_BYTES // image_bytes))
    size = min(max(examples // _BATCHES_PER_EPOCH, _SMALLEST_BATCH), _LARGEST_BATCH)
    if not splits:
        size = min(size, room * replicas)
    size = batch_size or max(2 ** int(math.log2(size)) // replicas, 1) * replicas
    each, parts = size // replicas, 1
    if splits and size % replicas == 0:  # A batch that does not fit is refused later.
        parts = next(n for n in range(1, each + 1) if each % n == 0 and each // n <= room)
    return dataclasses.replace(
        start,
        data=Data(**pixels),
        optimizer=Optimizer(name="sgd", learning_rate=_LEARNING_RATE, momentum=0.9, clip_norm=1.0),
        schedule=Schedule(warmup_steps=warmup, decay="cosine"),
        train=Train(
            steps=steps,
            batch_size=size,
            accumulate_steps=parts,
            log_every=steps // 50,
            eval_every=steps // 5,
            checkpoint_every=steps // 5,
        ),
    )


def shown(experiment: Experiment) -> dict:
    """Returns the settings that a user is told about, by config path."""
    values, usual, found = experiment.to_dict(), Experiment().to_dict()["data"], {}
    for path in _SHOWN:
        section, name = path.split(".")
        value, replaces = values[section][name], f"{section}.{name.replace('epochs', 'steps')}"
        if value is None or (name in PIXEL_FIELDS and value == usual[name]):
            continue
        if replaces != path:
            del found[replaces]
        found[path] = value
    return found


def check_size(start: Experiment, experiment: Experiment, has_size, open_data):
    """Refuses photos at the small image size of a recipe for built-in data.

    Args:
        start: the recipe.
        experiment: the same with the settings of the user.
        has_size: whether one of these is the image size.
        open_data: called with the section of the data before they are refused, since a wrong name
            has a message of its own.

    Raises:
        UserError: if the data are other data and the size is the recipe's, or if the data cannot
            be used.
    """
    height, width = experiment.model.image_size
    is_small = not has_size and min(height, width) < SMALLEST_SIDE
    if is_small and start.data.is_builtin and not experiment.data.is_builtin:
        with contextlib.suppress(MissingDataError):
            open_data(experiment.data)
        raise UserError(
            f"The settings are for {start.data.name}: {experiment.data.name} would be trained at "
            f"{height} x {width} pixels. Choose a size, such as --set model.image_size=224 --set "
            f"model.name={experiment.model.name}, or a recipe for photos; --list prints them."
        )
