"""What a run takes of a number of chips: memory, time of a step, input, time and cost of the run.

The models are described in docs/scaling.md, with what they assume and leave out.
"""

import dataclasses
import functools
import math

from pipelines.config import Data, Experiment, override
from pipelines.errors import UserError, counted
from pipelines.research.planning.all_reduce import AllReduce, all_reduce, groups_of
from pipelines.research.planning.assumptions import Assumptions
from pipelines.research.planning.chips import Chip
from pipelines.training.prepare import Sizes, check_step, sizes_of, state_of
from vit_tf.config import ModelConfig

DAY = 86_400.0  # Seconds.
# Classes of data that are usually not where a plan is made; docs/paper.md F.1.
_CLASSES = {"tfrecord:jft300m": 18_000, "tfrecord:imagenet21k": 21_843, "imagenet2012": 1000}
# What is tried in turn until a run fits into the memory of the chips.
_WAYS = (
    (),
    ("model.dtype=mixed_bfloat16",),
    ("model.dtype=mixed_bfloat16", "model.recompute=blocks"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A run on a number of chips. Times are in seconds.

    Attributes:
        experiment: the `Experiment`; its length is in steps.
        config: configuration of its model.
        chip: the `Chip`.
        chips: their number.
        assumptions: the `Assumptions`.
    """

    experiment: Experiment
    config: ModelConfig
    chip: Chip
    chips: int
    assumptions: Assumptions

    @property
    def devices(self) -> int:
        """Number of replicas."""
        return self.chips * self.chip.devices

    @property
    def hosts(self) -> int:
        """Number of hosts, which deliver the images."""
        return math.ceil(self.chips / self.chip.chips_per_host)

    @functools.cached_property
    def sizes(self) -> Sizes:
        """Computation of the run, and memory of a device."""
        return sizes_of(self.experiment, self.config, self.devices, is_compiled(self.chip))

    @property
    def needed_memory(self) -> int:
        """Bytes that a device needs."""
        return sum(self.sizes.memory.values())

    @property
    def usable_memory(self) -> float:
        """Bytes of a device that may be used."""
        return self.assumptions.usable_memory * self.chip.device_memory

    @functools.cached_property
    def gradients(self) -> AllReduce:
        """The sum of the gradients, which are float32, and with slices that of the new weights."""
        one = all_reduce(
            self.chip,
            self.chips,
            self.sizes.state["gradients"],
            self.assumptions.link_utilization,
            1e-6 * self.assumptions.message_us,
        )
        sums = 2 if self.experiment.train.shard_optimizer else 1
        return AllReduce(**{name: sums * x for name, x in dataclasses.asdict(one).items()})

    @property
    def compute_time(self) -> float:
        """Forward and backward passes of a step."""
        flops = self.sizes.training_flops / (self.experiment.train.steps * self.devices)
        return flops / (self.assumptions.utilization * self.chip.peak(self.experiment.model.dtype))

    @property
    def updated_bytes(self) -> int:
        """Bytes of what an update changes on a device."""
        return _stored(self.sizes.state)

    @functools.cached_property
    def checkpoint_bytes(self) -> int:
        """Bytes of a checkpoint, which holds what all devices share."""
        return _stored(state_of(self.experiment, self.config, 1))

    @property
    def update_time(self) -> float:
        """The update of the weights: its arrays are read and, except the gradients, written."""
        moved = 2 * self.updated_bytes + self.sizes.state["gradients"]
        return moved * self.chip.devices / (1e9 * self.chip.memory_gb_per_s)

    @property
    def input_time(self) -> float:
        """The images of a step from all hosts; they are read while the step before computes."""
        if self.assumptions.input_rate is None:
            return 0.0
        return self.experiment.train.batch_size / (self.hosts * self.assumptions.input_rate)

    @property
    def checkpoint_time(self) -> float:
        """The part of a step of writing checkpoints, for which training waits."""
        train = self.experiment.train
        seconds = self.checkpoint_bytes / (1e9 * self.assumptions.storage_gb_per_s)
        return seconds / min(train.checkpoint_every or train.steps, train.steps)

    @property
    def device_time(self) -> float:
        """The part of a step on the devices: its three parts follow each other."""
        return self.compute_time + self.gradients.seconds + self.update_time

    @property
    def step_time(self) -> float:
        """All of a step: only the input overlaps with the other parts."""
        return max(self.device_time, self.input_time) + self.checkpoint_time

    @property
    def needed_input(self) -> float:
        """Images per second that a host must deliver so that no device waits for it."""
        return self.experiment.train.batch_size / (self.hosts * self.device_time)

    @property
    def run_time(self) -> float:
        """All steps; evaluations are not counted."""
        return self.step_time * self.experiment.train.steps

    @property
    def core_days(self) -> float:
        """Days of all devices; in the paper's table 2, a device of a TPU v3 is a core."""
        return self.devices * self.run_time / DAY


def plan(experiment, config, chip, chips, assumptions, chooses_accumulation=False) -> Estimate:
    """Plans a run that fits into the memory of its devices.

    Args:
        experiment, config, chip, chips, assumptions: as for `Estimate`.
        chooses_accumulation: whether `train.accumulate_steps` becomes the smallest number from its
            value on with which the run fits.

    Raises:
        UserError: if the model cannot be trained with these settings on these devices, or the
            batch does not fit into their memory.
    """
    # Both refuse what the chip lacks.
    chip.peak(experiment.model.dtype)
    groups_of(chip, chips)
    made = Estimate(
        experiment=experiment, config=config, chip=chip, chips=chips, assumptions=assumptions
    )
    shown = f"--chips={chips} of {chip.name}, {counted(made.devices, 'device')},"
    check_step(experiment.train, config, made.devices, chip.kind == "tpu", shown)
    if made.needed_memory <= made.usable_memory:
        return made
    smaller = _with_smaller_batches(made)
    if smaller and chooses_accumulation:
        return smaller
    raise UserError(_too_large(made, smaller))


def usual_classes(data: Data) -> int:
    """The number of classes of the paper's data for pre-training; 0, no head, of other data."""
    return _CLASSES.get(data.name, 0)


def plan_that_fits(
    experiment, classes, chip, chips, assumptions, fewest=True
) -> tuple[Estimate, tuple[str, ...]]:
    """Plans a run, with other settings if it does not fit into the memory as it is.

    16 bits and recomputation are tried in turn, each with as few micro-batches as fit.

    Args:
        classes: number of classes of the model.
        experiment, chip, chips, assumptions: as for `Estimate`.
        fewest: whether there may be fewer micro-batches than `train.accumulate_steps`, since they
            change no result.

    Returns:
        The plan, and the settings that it changes as texts `path=value`.

    Raises:
        UserError: as `plan`, for the settings of the experiment.
    """
    has_blocks = hasattr(experiment.model_config(classes), "recompute")
    errors = []
    for way in _WAYS:
        if "model.recompute=blocks" in way and not has_blocks:
            continue
        fitted = override(with_fewest(experiment) if fewest else experiment, way)
        try:
            made = plan(fitted, fitted.model_config(classes), chip, chips, assumptions, True)
        except UserError as error:
            errors.append(error)
            continue
        steps = made.experiment.train.accumulate_steps
        own = experiment.train.accumulate_steps
        return made, (*way, *([f"train.accumulate_steps={steps}"] if steps != own else []))
    raise errors[0]


def _with_smaller_batches(made) -> Estimate | None:
    """The plan with the smallest number of micro-batches with which it fits, if there is one."""
    if made.config.uses_batch_statistics:  # Micro-batches would have statistics of their own.
        return None
    experiment, images = made.experiment, made.experiment.train.batch_size // made.devices
    # Any number of micro-batches above 1 takes the same memory beside the activations.
    two = _accumulating(experiment, 2)
    largest = largest_batch(two, made.config, made.chip, made.assumptions, made.devices)
    fitting = range(min(largest, made.sizes.images - 1), 0, -1)
    count = next((count for count in fitting if images % count == 0), None)
    if count is None:
        return None
    return dataclasses.replace(made, experiment=_accumulating(experiment, images // count))


def with_fewest(experiment) -> Experiment:
    """The experiment without micro-batches."""
    return _accumulating(experiment, 1)


def _accumulating(experiment, steps):
    train = dataclasses.replace(experiment.train, accumulate_steps=steps)
    return dataclasses.replace(experiment, train=train)


def _too_large(made, smaller):
    experiment, images = made.experiment, made.sizes.images
    fitting = largest_batch(experiment, made.config, made.chip, made.assumptions, made.devices)
    ways = []
    if smaller:
        ways.append(f"train.accumulate_steps={smaller.experiment.train.accumulate_steps}")
    if getattr(made.config, "recompute", None) == "none":
        ways.append("model.recompute=blocks")
    if experiment.model.dtype == "float32":
        ways.append("a 16-bit model.dtype")
    return (
        f"train.batch_size={experiment.train.batch_size} does not fit on --chips={made.chips} of "
        f"{made.chip.name}: {counted(images, 'image')} at a time on each of "
        f"{counted(made.devices, 'device')} take {made.needed_memory / 1e9:,.1f} GB, and "
        f"{made.usable_memory / 1e9:,.1f} GB may be used, enough for "
        f"{counted(fitting, 'image')}. Set {', '.join([*ways, 'more --chips'])}, or a smaller "
        "train.batch_size."
    )


def largest_batch(experiment, config, chip, assumptions, devices=1) -> int:
    """The largest number of images that a device can process at a time; 0 if not even one fits.

    Args:
        experiment, config, chip, assumptions: as for `Estimate`.
        devices: number of replicas, which may share the state of the optimizer.
    """
    usable = assumptions.usable_memory * chip.device_memory
    state = sum(state_of(experiment, config, devices).values())
    sizes = sizes_of(experiment, config, 1, is_compiled(chip))
    one = (sizes.activation_bytes + sizes.gradient_bytes) / sizes.images
    return max(0, int((usable - state) / one))


def _stored(state):
    return sum(state.get(name, 0) for name in ("weights", "optimizer", "average"))


def is_compiled(chip) -> bool:
    """Whether the compiled ops run, which keep no weights of attention and one tensor of a GELU."""
    return chip.kind == "cpu"
