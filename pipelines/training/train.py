"""Training under every strategy: prepares a run, trains and writes its results.

The path of a setting is: flags -> `Experiment` -> `prepare` -> `train`, which passes its fields on.
"""

import contextlib
import functools
import logging

import keras
import tensorflow as tf

import vit_tf
from pipelines.config import Request
from pipelines.config.summary import summary
from pipelines.data.bad_images import summary_at_end
from pipelines.data.host_reading import check_hosts
from pipelines.distribution import onednn
from pipelines.distribution.group import current_group
from pipelines.distribution.log_lines import LogFile, attached
from pipelines.distribution.sameness import check_same_data, check_same_weights
from pipelines.distribution.signals import Signals
from pipelines.distribution.strategies import describe, file_device, is_tpu, num_hosts
from pipelines.errors import counted
from pipelines.reports.reconstructions import Reconstructions
from pipelines.runs import checkpoints, manifest
from pipelines.runs.checkpoints import CheckpointStore
from pipelines.runs.lock import written_by_chief
from pipelines.runs.progress import Progress
from pipelines.runs.workdir import Workdir
from pipelines.stored_models import model_source
from pipelines.training.actions import run_actions
from pipelines.training.early_stop import stop_reason
from pipelines.training.loop import TrainingLoop
from pipelines.training.non_finite import NonFinitePolicy
from pipelines.training.optimization.ema import ExponentialMovingAverage, initial_share
from pipelines.training.optimization.loss_scale import LossScale
from pipelines.training.optimization.optimizers import LINEAR_END, make_schedule, optimizer_of
from pipelines.training.optimization.replica_variables import Slices
from pipelines.training.prepare import prepare
from pipelines.training.profiler import Profiler
from pipelines.training.train_step import StepSettings, Trainer
from vit_tf.adapters import save_adapters
from vit_tf.config.size_notes import size_notes
from vit_tf.files import storage
from vit_tf.models.lora import adapted, add_adapters
from vit_tf.packing import pack_frozen_blocks

_log = logging.getLogger(__name__)


def train(experiment, workdir, strategy, request=Request(), on_metrics=None, reuse=None) -> dict:
    """Trains from the newest checkpoint, or from `experiment.init_from`, or from scratch.

    Args:
        experiment: the `Experiment` to run.
        workdir: directory or URL of the run; a run there with the same configuration is resumed.
        strategy: `tf.distribute.Strategy`.
        request: the `Request` of the user.
        on_metrics: function that gets each line of `metrics.jsonl` as a dict, after it is written;
            an error that it raises ends the run.
        reuse: `Reuse`, which has kept the graphs of an earlier run and keeps those of this one.
            None: they are built anew.

    Returns:
        The last line of metrics.

    Raises:
        UserError: for wrong input, if another process trains in `workdir`, and if a worker does not
            see the chief's copy.
        RunError: if `workdir` cannot be written, or another process has taken its lease.
        NonFiniteError: if a loss or gradient is not finite and `train.non_finite` ends the run.
        Interrupted: after a signal, once everything is saved.
        WorkerError: if another worker was lost, hangs or has failed.
    """
    if experiment.train.deterministic:
        tf.config.experimental.enable_op_determinism()
    run, group = Workdir(workdir), current_group()
    with attached(LogFile()) as log_file:
        if request.origin:
            _log.info(request.origin)
        with (
            written_by_chief(run.path) as check,
            run.writing(check),
            log_file.errors(),
            group.explained(),
        ):
            prepared = prepare(experiment, run, strategy, request)
            group.compare("configurations", prepared.experiment.to_dict())
            check_same_data("data", prepared.data.sources())
            if end := group.from_chief(lambda: _end_of_run(prepared.experiment, run)):
                _log.info(f"already finished: {end}. --extend with a larger train.steps continues")
                return group.from_chief(lambda: run.read_metrics()[-1])
            for line in (*prepared.notes, *summary(prepared.experiment, prepared.images)):
                _log.info(line)
            _log.info(f"oneDNN, for TensorFlow's ops on CPUs, is {onednn.describe()}")
            return _train(prepared, run, strategy, log_file, on_metrics, reuse)


def _end_of_run(experiment, run):
    """How a run with these settings has ended in the workdir; None if something is left to do."""
    results = [run.final, *([run.ema] if experiment.train.ema_decay is not None else [])]
    steps, lines = checkpoints.steps(run.checkpoints), run.read_metrics()
    if not (steps and lines and all(map(storage.exists, results))):
        return None
    if run.read_experiment() != experiment:  # A setting that may change, such as `eval_every`.
        return None
    if steps[-1] == experiment.train.steps:
        return f"step {steps[-1]} is the last one"
    return stop_reason(lines, experiment.train)


def _train(prepared, run, strategy, log_file, on_metrics, reuse):
    """The same as `train`, in a locked workdir."""
    experiment, data, group = prepared.experiment, prepared.data.train, current_group()
    settings = experiment.train
    is_new = group.from_chief(lambda: not checkpoints.steps(run.checkpoints))
    # A resumed run does not need its initial weights.
    starts = is_new and experiment.init_from
    initial = model_source.find(starts, experiment.init_weights) if starts else None
    check_hosts(strategy, data.source)
    trainer = (reuse.trainer if reuse else build_trainer)(experiment, prepared.task, strategy)
    store = CheckpointStore(
        run.checkpoints,
        trainer.checkpoint,
        keep_last=settings.keep_last,
        keep_every=settings.keep_every,
        before_save=run.sync,
        whole_state=trainer.whole_state,
        device=file_device(strategy),
    )
    encoder = prepared.task.encoder(trainer.model)
    load = initial and functools.partial(
        initial.load_into, encoder, experiment.init_head, data.preprocessing
    )
    step = _load_weights(trainer, store, run, load)
    trainer.open_dataset(data.dataset)
    if prepared.steps_before not in (None, settings.steps):
        _report_rate(experiment, prepared.steps_before, step)

    _report_sharding(data.sampling.sharding, num_hosts(strategy), run)
    run.create(experiment)
    check_same_weights("weights before the first step", trainer.model.weights)
    if group.is_chief:
        log_file.open(run.growing.path("run.log"))
        _write_beginning(prepared, run, strategy, step)
    if settings.non_finite == "rewind" and is_new:
        store.save(step)  # A rewind needs a checkpoint.

    progress = Progress(
        run,
        step=step,
        total_steps=settings.steps,
        batch_size=settings.batch_size,
        on_metrics=on_metrics,
        measures_wait=trainer.measures_wait,
    )
    profiler = Profiler(settings.profiled_steps(), run.tensorboard if group.is_chief else None)
    with (
        group.watched(settings.worker_timeout),
        Signals() as signals,
        progress,
        contextlib.closing(profiler),
        summary_at_end(data.bad_images),
    ):
        if group.is_chief:
            _show(progress.board, experiment, data, step)
        reconstructions = None
        if not prepared.task.reads_labels:
            shown = prepared.data.evaluation or data
            reconstructions = Reconstructions(prepared.task, trainer.model, strategy, shown)
        actions = run_actions(prepared, trainer, reconstructions, store, progress, signals, reuse)
        TrainingLoop(
            settings=settings,
            trainer=trainer,
            data=data,
            actions=actions,
            store=store,
            non_finite=NonFinitePolicy(settings.non_finite, trainer, store, run, data),
            progress=progress,
            read_metrics=run.read_metrics,
            profiler=profiler,
            signals=signals,
        ).run()
        run.sync()
        classes = experiment.classes(data.source.labels)
        _write_results(trainer, encoder, run, experiment.preprocessing(), classes)
        if reconstructions:
            _write_page(reconstructions, trainer, run, experiment)
        if trainer.ema:
            _report_average(settings, int(trainer.step.numpy()))
    return group.from_chief(lambda: run.read_metrics()[-1])


def _write_beginning(prepared, run, strategy, step):
    """Deletes results that are not of this run's end, and writes the manifest."""
    experiment = prepared.experiment
    settings = experiment.train
    if step < settings.steps and not stop_reason(run.read_metrics(), settings):
        run.remove_results()
    manifest.write_manifest(
        run.manifest,
        seed=experiment.seed,
        data=prepared.data.train.source.manifest(),
        strategy=describe(strategy),
        hosts=num_hosts(strategy),
    )


def _show(board, experiment, data, step):
    """Writes the state at the start of a run to TensorBoard."""
    board.configuration(experiment.to_dict())
    if step == 0:
        seen = "As the model sees them, after augmentation."
        board.images("training images", step, data.sample_images(), seen)


def draw_model(experiment, task, strategy):
    """Builds the model of an experiment, with adapters and the weights of a run from scratch."""
    # Directly before the first draw: earlier code, such as preparing a data set, draws too.
    keras.utils.set_random_seed(experiment.seed)
    with strategy.scope():
        model = task.create_model(experiment.model.dtype)
        if lora := experiment.optimizer.lora:
            add_adapters(model, lora)
        return model


def build_trainer(experiment, task, strategy, *, model=None, seed=None, peak=None):
    """Builds the `Trainer` of an experiment and draws the weights of a run from scratch.

    Args:
        experiment: the `Experiment` to run.
        task: the `Task` of its model.
        strategy: `tf.distribute.Strategy`.
        model: from `draw_model`; None calls it.
        seed, peak: variables that the step reads instead of `seed` and `optimizer.learning_rate` of
            the experiment, int64 and float64; None: these are constants of the graph.
    """
    settings, tuning = experiment.train, experiment.optimizer
    model = draw_model(experiment, task, strategy) if model is None else model
    peak = tuning.learning_rate if peak is None else peak
    schedule = make_schedule(experiment.schedule, peak, settings.steps)
    with strategy.scope():
        ema = loss_scale = None
        # One replica has nobody to share with.
        is_shared = settings.shard_optimizer and strategy.num_replicas_in_sync > 1
        slices = Slices(strategy) if is_shared else None
        optimizer, frozen = optimizer_of(model, tuning, schedule, task.zero_kernel(model), slices)
        if settings.ema_decay is not None:
            decay, warmup = settings.ema_decay, settings.ema_warmup
            # Beside adapters, the frozen weights of a backbone have no average.
            averaged = model.trainable_variables if tuning.lora else model.weights
            ema = ExponentialMovingAverage(averaged, decay, warmup, slices)
        if model.compute_dtype == "float16":
            loss_scale = LossScale()
    log_model(experiment, task, strategy, frozen)
    step_settings = StepSettings(
        losses=task.losses,
        batch_size=settings.batch_size,
        accumulate_steps=settings.accumulate_steps,
        seed=experiment.seed if seed is None else seed,
        break_at_non_finite=settings.non_finite != "stop" and not is_tpu(strategy),
        jit_compile=settings.jit_compile,
        notes_bad_rows=experiment.data.bad_images == "skip",
    )
    return Trainer(model, optimizer, strategy, step_settings, ema, loss_scale, frozen)


def log_model(experiment, task, strategy, frozen):
    """Logs the model and notes about it, such as the lines about frozen variables."""
    config, peak = task.config, experiment.optimizer.learning_rate
    if experiment.schedule.decay == "linear" and peak < LINEAR_END:
        _log.info(
            f"optimizer.learning_rate={peak} is below {LINEAR_END}, where linear decay ends: the "
            "rate stays at its peak"
        )
    _log.info(
        f"{experiment.model.name} with {config.summary()}: "
        f"{vit_tf.cost.parameters(config):,} parameters, {describe(strategy)}"
    )
    for note in [*task.notes(), *frozen, *size_notes(config, "model.")]:
        _log.info(note)


def _load_weights(trainer, store, run, load):
    """The same as `_restore`; then packs the blocks that no gradient enters."""
    step = _restore(trainer, store, run, load)
    with trainer.strategy.scope():
        if count := pack_frozen_blocks(trainer.model):
            _log.info(f"{counted(count, 'block')} below all trained weights: packed, no gradient")
    return step


def _restore(trainer, store, run, load):
    """Restores the newest checkpoint, or else calls `load`; returns the step to go on from."""
    step = store.restore_newest()
    if step is not None:
        run.drop_metrics_after(step)
        _log.info(f"resuming from step {step}")
        if change := manifest.onednn_change(run.manifest):
            _log.info(change)
        return step
    run.drop_metrics_after(0)
    if load:
        _log.info(load())
    if trainer.ema:
        trainer.ema.initialize()
    return 0


def _report_rate(experiment, steps_before, step):
    """Logs how another `train.steps` changes the learning rate of the next update."""
    before, now = (
        make_schedule(experiment.schedule, experiment.optimizer.learning_rate, steps)(step)
        for steps in (steps_before, experiment.train.steps)
    )
    _log.info(f"rate at step {step}: {float(before):.2e} -> {float(now):.2e}")


def _report_sharding(sharding, hosts, run):
    """Logs the number of hosts if the order of the examples depends on it."""
    if sharding == "files":
        before = manifest.read_hosts(run.manifest) or hosts
        _log.info(
            f"data.sharding=files: the order of the examples is reproducible for "
            f"{counted(hosts, 'host')}"
            + f"; earlier steps had the order for {before}"
            * (before != hosts)
        )


def _write_results(trainer, encoder, run, preprocessing, classes):
    """Writes the weights with their preprocessing and classes, if this worker is the chief."""
    is_chief = current_group().is_chief
    has_adapters = bool(adapted(encoder))
    if is_chief:
        vit_tf.save_npz(encoder, run.final, preprocessing, classes)
        _log.info(f"wrote {run.final}")
        if has_adapters:
            save_adapters(encoder, run.adapters, preprocessing, classes)
            _log.info(f"wrote {run.adapters}, for --adapter of predict")
    if trainer.ema:
        with trainer.ema.swapped_in():
            if is_chief:
                vit_tf.save_npz(encoder, run.ema, preprocessing, classes)
                _log.info(f"wrote {run.ema}, the Polyak average")
                if has_adapters:
                    save_adapters(encoder, run.ema_adapters, preprocessing, classes)
                    _log.info(f"wrote {run.ema_adapters}")


def _report_average(settings, steps):
    """Logs the share of the initial weights in the average if it is more than a tenth."""
    share = initial_share(settings.ema_decay, settings.ema_warmup, steps)
    if share > 0.1:
        _log.info(
            f"{share:.0%} of the average are still the initial weights, after "
            f"{counted(steps, 'step')} with train.ema_decay={settings.ema_decay:g}: set "
            "train.ema_warmup=true, train for more steps, or set a smaller train.ema_decay"
        )


def _write_page(reconstructions, trainer, run, experiment):
    with trainer.evaluated_weights():
        if current_group().is_chief:
            reconstructions.write_page(run.reconstructions, summary(experiment)[0])
            _log.info(f"wrote {run.reconstructions}")
