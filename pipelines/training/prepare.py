"""Prepares a run: resolves its experiment, opens its data and checks that both fit together.

Training, `--dry_run` and sweeps read the same `PreparedRun`. No model is built and nothing is
written.
"""

import dataclasses
import functools

from custom_ops import dispatch
from pipelines.config import Experiment, Request
from pipelines.config.epochs import with_steps
from pipelines.config.fields import differences
from pipelines.data.file_scan import scan
from pipelines.data.sources.open import with_splits
from pipelines.data.sources.subset import balanced_loss
from pipelines.distribution.strategies import is_tpu
from pipelines.errors import DataError, MissingDataError, UserError, counted
from pipelines.runs import checkpoints
from pipelines.tasks.losses import check_loss
from pipelines.tasks.task import Task, task_of
from pipelines.training.train_data import RunData, open_data, open_few_shot_data
from vit_tf import cost
from vit_tf.analysis import lora_cost
from vit_tf.config import ModelConfig
from vit_tf.create import check_memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sizes:
    """Computation and memory of a run (`vit_tf.cost` has the size of its model).

    Attributes:
        training_flops: FLOPs of all steps: 2 for each multiply-add.
        state: bytes on each device for any number of images, by part: weights, gradients and so on.
        images: number of images that a device processes at a time.
        activation_bytes: bytes of their activations, about.
        gradient_bytes: bytes of the gradients of the largest layer's activations: of its
            inputs and outputs, in the number that the layer itself takes.
    """

    training_flops: int
    state: dict[str, int]
    images: int
    activation_bytes: int
    gradient_bytes: int

    @property
    def state_bytes(self) -> int:
        """The sum of `state`."""
        return sum(self.state.values())

    @property
    def memory(self) -> dict[str, int]:
        """Bytes on each device, by part: the state, the activations and their gradients."""
        gradients = {"gradients of activations": self.gradient_bytes}
        return self.state | {"activations": self.activation_bytes} | gradients


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """A run before its first step.

    Attributes:
        experiment: the `Experiment`; its splits are chosen, and its lengths are in steps if the
            number of images is known.
        model_config: configuration of the model, with the number of classes of the data.
        task: the task of the model.
        replicas: number of replicas that share a batch.
        notes: sentences about the choices.
        images: number of training images; None if the data cannot be opened.
        data: the data; None if they cannot be opened, and for trials of a sweep, which share them.
        data_error: why the data cannot be opened, or None.
        steps_before: `train.steps` of the run that is resumed; None for a new run.
    """

    experiment: Experiment
    model_config: ModelConfig
    task: Task
    replicas: int
    notes: tuple[str, ...] = ()
    images: int | None = None
    data: RunData | None = None
    data_error: DataError | None = None
    steps_before: int | None = None

    @functools.cached_property
    def sizes(self) -> Sizes:
        """Its computation and memory."""
        return sizes_of(self.experiment, self.model_config, self.replicas)


def sizes_of(experiment, config, replicas, compiled=True) -> Sizes:
    """The computation and memory of a run, whose batch the replicas share in whole images.

    Args:
        experiment: the `Experiment`; its length is in steps.
        config: configuration of its model.
        replicas: number of replicas that share a batch.
        compiled: whether the compiled ops run; see `vit_tf.cost.activation_bytes`.

    Raises:
        UserError: if the model cannot have the adapters of the experiment.
    """
    check_lora(experiment, config)
    train, dtype, lora = experiment.train, experiment.model.dtype, experiment.optimizer.lora
    images = train.batch_size // (replicas * train.accumulate_steps)
    kept, live = (
        cost.activation_bytes(config, images, dtype, training, compiled, lora)
        for training in (True, False)
    )
    return Sizes(
        training_flops=2 * cost.training_macs(config, lora) * train.batch_size * train.steps,
        state=state_of(experiment, config, replicas),
        images=images,
        activation_bytes=kept,
        gradient_bytes=live,
    )


def state_of(experiment, config, replicas) -> dict[str, int]:
    """Bytes on each device for any number of images, by part; arguments as for `sizes_of`.

    With `train.shard_optimizer`, a replica keeps and updates a part of what belongs to the update.
    The new weights that it receives take the place of the gradients and activations, which are read
    no more by then.
    """
    train, optimizer = experiment.train, experiment.optimizer
    has_average = train.ema_decay is not None
    state = cost.state_bytes(
        config, optimizer.name, has_average, optimizer.momentum_dtype, optimizer.lora
    )
    share = replicas if train.shard_optimizer else 1  # Replicas that share what an update needs.
    for name in ("optimizer", "average"):
        if name in state:
            state[name] = -(-state[name] // share)
    if optimizer.clip_norm is not None:
        state["clipped gradients"] = -(-state["gradients"] // share)
    if train.accumulate_steps > 1:
        state["sum of gradients"] = state["gradients"]
    if optimizer.lora is None and (standardized := cost.standardized_bytes(config)):
        state["standardized kernels"] = standardized
    if experiment.model.dtype != "float32":
        # Keras casts every weight in every call, and gradients read the casts.
        state["weights in 16 bits"] = state["weights"] // 2
    return state


def prepare(experiment, run, strategy, request=Request(), keeps_data_errors=False) -> PreparedRun:
    """Prepares the run of an experiment.

    Args:
        experiment: the `Experiment`.
        run: its `Workdir`.
        strategy: the `tf.distribute.Strategy` that will train.
        request: the `Request` of the user.
        keeps_data_errors: whether data that cannot be opened are reported in the result.

    Raises:
        UserError: for wrong input, and if the workdir holds something else.
        DataError: if the data are missing or cannot be used, unless `keeps_data_errors`.
    """
    notes, data, data_error, steps_before = [], None, None, None
    replicas, on_tpu = strategy.num_replicas_in_sync, is_tpu(strategy)
    assigned = request.assignments.values
    try:
        splits, notes = with_splits(experiment.data)
        experiment = dataclasses.replace(experiment, data=splits)
        resumed = run.with_own_fields(experiment, request.assignments)
        kept = differences(experiment.to_dict(), resumed.to_dict())
        notes += [f"the run keeps its own: {change}" for change in kept]
        experiment = resumed
        data = open_data(experiment, run, request.source_of(experiment.data))
        notes += data.describe()
        if run.starts_over():
            notes.append(f"{run.path} has no checkpoint: the run starts over")
        if not checkpoints.steps(run.checkpoints):
            skips = data.train.bad_images is not None
            if found := scan(data.sources().values(), experiment.data.scan, skips):
                notes.append(found)
        prepared = resolve(experiment, data.train.source, replicas, on_tpu, assigned)
    except DataError as error:
        if not keeps_data_errors:
            raise
        data, data_error = None, error
        prepared = resolve(experiment, None, replicas, on_tpu, assigned)
    notes += prepared.notes
    experiment = prepared.experiment
    if data is not None:
        if request.extend:
            extended = run.with_own_warmup(experiment, request.assignments)
            if extended != experiment:
                warmup = extended.schedule.warmup_steps
                notes.append(f"--extend keeps the schedule.warmup_steps={warmup} of the run")
            experiment = extended
        if experiment.data.balance == "loss":
            weights, note = balanced_loss(data.train.source)
            task = dataclasses.replace(prepared.task, class_weights=weights)
            prepared = dataclasses.replace(prepared, task=task)
            notes.append(note)
        try:
            few_shot = open_few_shot_data(experiment, data.train.bad_images)
            data = dataclasses.replace(data, few_shot=few_shot)
        except MissingDataError as error:
            if not keeps_data_errors:
                raise
            notes.append(f"few-shot evaluations: the data are not here. {error}")
        steps_before = run.check(experiment, data.train.source.manifest(), request.extend)
    return dataclasses.replace(
        prepared,
        experiment=experiment,
        notes=tuple(notes),
        data=data,
        data_error=data_error,
        steps_before=steps_before,
    )


def resolve(experiment, source, replicas, on_tpu=False, assigned=(), images=None) -> PreparedRun:
    """Prepares an experiment on data that are open.

    Args:
        experiment: the `Experiment`; its splits are chosen.
        source: `DataSource` of the training images; None if they cannot be opened: then lengths
            stay in epochs and the model has no head.
        replicas: number of replicas that train.
        on_tpu: whether the replicas are TPU cores.
        assigned: the paths that the user assigned; see `with_steps`.
        images: number of training images, if it differs from `source`.

    Raises:
        UserError: if the settings do not fit together, the data or the devices.
        DataError: if the labels of the data do not fit `train.loss`.
    """
    notes, num_classes = [], 0
    if source is not None:
        if experiment.reads_labels:
            check_loss(source, experiment.train.loss)
        images = source.num_examples if images is None else images
        experiment, notes = with_steps(experiment, images, assigned)
        num_classes = source.num_classes
    model_config = experiment.model_config(num_classes)
    check_input(experiment.train, model_config, replicas, on_tpu)
    check_lora(experiment, model_config)
    if lora := experiment.optimizer.lora:
        notes.append(_describe_lora(lora, model_config))
    return PreparedRun(
        experiment=experiment,
        model_config=model_config,
        task=task_of(experiment, model_config),
        replicas=replicas,
        notes=tuple(notes),
        images=images,
    )


def check_input(settings, model_config, replicas, on_tpu=False):
    """Raises `UserError` if the model cannot be trained with these settings on this machine."""
    try:
        check_memory(model_config)
    except ValueError as error:
        raise UserError(str(error)) from None
    check_step(settings, model_config, replicas, on_tpu, counted(replicas, "replica"))
    if settings.jit_compile and not dispatch.supports_jit():
        raise UserError(
            "train.jit_compile=true cannot compile the ops that VIT_OPS=compiled asks for, since "
            "the library for XLA does not load. Set VIT_OPS=auto, or train.jit_compile=false."
        )


def check_lora(experiment, model_config):
    """Raises `UserError` if the model of an experiment cannot have its adapters."""
    lora = experiment.optimizer.lora
    if lora is None:
        return
    setting = f"optimizer.lora_rank={lora.rank}"
    if not experiment.reads_labels:
        raise UserError(
            f"{setting} is for task=classification, not {experiment.task}. Set "
            "optimizer.lora_rank=0."
        )
    if experiment.init_from is None:
        raise UserError(
            f"{setting} adapts trained weights, but there are none: init_from is none. Name them "
            "by --init_from of finetune, or set optimizer.lora_rank=0."
        )
    try:
        lora.check(model_config)
    except ValueError as error:
        raise UserError(f"{setting} adds no adapters: {error}.") from None


def _describe_lora(lora, config):
    """A sentence about the adapters of a model."""
    count = cost.parameters(config) + lora_cost.parameters(config, lora)
    return (
        f"adapters (LoRA) of rank {lora.rank} and alpha {lora.alpha:g} in "
        f"{', '.join(lora.targets)} of {counted(len(lora.layers(config)), 'block')}: they have "
        f"{lora_cost.parameters(config, lora):,} of {count:,} parameters"
    )


def check_step(settings, model_config, replicas, on_tpu, shown):
    """Raises `UserError` if replicas, named `shown`, cannot take a step with these settings."""
    if settings.jit_compile and on_tpu:
        raise UserError(
            "train.jit_compile=true is for CPUs and GPUs: a TPU compiles every step anyway, and "
            "XLA for the host does not work beside it. Set train.jit_compile=false."
        )
    micro_batches = replicas * settings.accumulate_steps
    if settings.batch_size % micro_batches:
        raise UserError(
            f"train.batch_size={settings.batch_size} is not a multiple of {micro_batches}: "
            f"{shown} times train.accumulate_steps={settings.accumulate_steps}."
        )
    if settings.accumulate_steps > 1 and model_config.uses_batch_statistics:
        raise UserError(
            f"train.accumulate_steps={settings.accumulate_steps} would normalize each micro-batch "
            "by its own statistics, since this model has BatchNorm. Set model.norm=group, or "
            "train.accumulate_steps=1."
        )
    if settings.jit_compile and replicas > 1:
        raise UserError(
            f"train.jit_compile=true compiles the step of one device, but there are {replicas} "
            "replicas. Use --strategy=one_device, or train.jit_compile=false."
        )
    if not model_config.pooled:
        raise UserError(
            "model.classifier=unpooled gives logits per patch, but the labels are per image. "
            "Use --set model.classifier=gap."
        )
