"""Training under every strategy: a Python loop around Orbit's loop on the device.

The path of a setting is: flags -> `Experiment` -> `train`, which passes its fields on. Several
steps run in one `tf.while_loop` on the device; between such loops, Python handles signals, logs,
evaluates and saves.
"""

import contextlib
import dataclasses
import functools
import math
import time

import keras
import tensorflow as tf

import vit_tf
from pipelines import config
from pipelines.data.bad_images import INPUT_ERRORS, BadImages, summary_at_end
from pipelines.data.sources.open import open_source
from pipelines.data.sources.splits import choose_splits
from pipelines.errors import Interrupted, RunError, UserError
from pipelines.evaluation.evaluation_step import EvaluationData, Evaluator
from pipelines.runs import checkpoints, manifest, model_source
from pipelines.runs.checkpoints import CheckpointStore
from pipelines.runs.lock import only_writer
from pipelines.runs.progress import Progress, say
from pipelines.runs.signals import Signals
from pipelines.runs.strategies import describe, num_hosts
from pipelines.runs.workdir import Workdir
from pipelines.tasks.losses import check_loss, cross_entropy
from pipelines.tasks.metrics import main_metric
from pipelines.training.ema import ExponentialMovingAverage
from pipelines.training.freezing import freeze
from pipelines.training.non_finite import NonFinitePolicy
from pipelines.training.optimizers import make_optimizer
from pipelines.training.schedules import LINEAR_END, make_schedule
from pipelines.training.train_data import TrainData
from pipelines.training.train_step import StepSettings, Trainer
from vit_tf.config.size_notes import size_notes

_LONGEST_LOOP = 10.0  # Seconds between two checks for signals.


def train(experiment, workdir, strategy, extend=False) -> dict:
    """Trains from the newest checkpoint, or from `experiment.init_from`, or from scratch.

    Args:
        experiment: the `Experiment` to run.
        workdir: directory of the run; a run there with the same configuration is resumed.
        strategy: `tf.distribute.Strategy`.
        extend: whether to resume a run there with another `train.steps`, and with the schedule for
            that number of steps.

    Returns:
        The last line of metrics.

    Raises:
        UserError: for wrong input, and if another process trains in `workdir`.
        RunError: if a loss or gradient is not finite and `train.non_finite` ends the run.
        Interrupted: after a signal, once everything is saved.
    """
    if experiment.train.deterministic:
        tf.config.experimental.enable_op_determinism()
    run = Workdir(workdir)
    # From here on, and in config.json, the experiment names the splits that were chosen.
    experiment = dataclasses.replace(experiment, data=choose_splits(experiment.data, say))
    with only_writer(run.path, say):
        return _train(experiment, run, strategy, extend)


def _train(experiment, run, strategy, extend):
    """Does what `train` does, in a locked workdir."""
    settings = experiment.train
    data, evaluation_data = open_data(experiment, run)
    model_config = experiment.model.config(data.source.num_classes)
    check_input(settings, model_config, strategy.num_replicas_in_sync)
    steps_before = run.check(experiment, data.source.manifest(), extend)
    # A resumed run does not need its initial weights.
    is_new = not checkpoints.steps(run.checkpoints)
    initial = None
    if experiment.init_from and is_new:
        initial = model_source.find(experiment.init_from, experiment.init_weights)

    trainer = build_trainer(experiment, model_config, strategy)
    store = CheckpointStore(
        run.checkpoints,
        trainer.checkpoint,
        keep_last=settings.keep_last,
        keep_every=settings.keep_every,
    )
    step = _restore(trainer, store, run, initial, data.preprocessing)
    trainer.open_dataset(data.dataset)
    if steps_before not in (None, settings.steps):
        _report_rate(experiment, steps_before, step)

    hosts = num_hosts(strategy)
    _report_sharding(data.sampling.sharding, hosts, run)
    run.create(experiment)
    if settings.non_finite == "rewind" and is_new:
        store.save(step)  # A rewind needs a checkpoint.
    if step < settings.steps:
        run.remove_results()
    manifest.write_manifest(
        run.manifest,
        seed=experiment.seed,
        data=data.source.manifest(),
        strategy=describe(strategy),
        hosts=hosts,
    )

    progress = Progress(run, step=step, total_steps=settings.steps, batch_size=settings.batch_size)
    with Signals() as signals, progress, summary_at_end(data.bad_images):
        if step == 0:
            progress.write_images("training images", data.sample_images())
        evaluator = None
        if evaluation_data is not None:
            loss = functools.partial(cross_entropy, loss=settings.loss)
            evaluator = Evaluator(trainer.model, strategy, evaluation_data, loss, say, signals)
        TrainingLoop(
            settings=settings,
            trainer=trainer,
            data=data,
            evaluator=evaluator,
            store=store,
            non_finite=NonFinitePolicy(settings.non_finite, trainer, store, run, data),
            progress=progress,
            signals=signals,
        ).run()
        _write_results(trainer, run, data.preprocessing)
    return run.read_metrics()[-1]


def open_data(experiment, run):
    """Opens the data of an experiment: returns `(TrainData, EvaluationData or None)`.

    Raises:
        DataError: if the data are missing, cannot be used, or do not fit `train.loss`.
    """
    settings, train = experiment.data, experiment.train
    source = open_source(settings.name, settings.train_split, settings.data_dir)
    check_loss(source, train.loss)
    bad_images = BadImages(run.bad_images, say) if settings.bad_images == "skip" else None
    shared = {"preprocessing": experiment.preprocessing(source.labels), "bad_images": bad_images}
    data = TrainData(
        source=source,
        sampling=experiment.sampling(),
        augmentation=settings.augmentation(),
        **shared,
    )
    if settings.eval_split is None:
        return data, None
    source = open_source(settings.name, settings.eval_split, settings.data_dir)
    source.read([(0, 1)])  # A split without labels is refused now, not at the first evaluation.
    limits = {"batch_size": train.batch_size, "max_batches": train.eval_batches}
    return data, EvaluationData(source=source, **limits, **shared)


def check_input(settings, model_config, replicas):
    """Raises `UserError` if the model cannot be trained with these settings."""
    micro_batches = replicas * settings.accumulate_steps
    if settings.batch_size % micro_batches:
        raise UserError(
            f"train.batch_size={settings.batch_size} is not a multiple of {micro_batches}: "
            f"{replicas} replicas times train.accumulate_steps={settings.accumulate_steps}."
        )
    if settings.accumulate_steps > 1 and model_config.uses_batch_statistics:
        raise UserError(
            f"train.accumulate_steps={settings.accumulate_steps} would normalise each micro-batch "
            "by its own statistics, since this model has BatchNorm. Set model.norm=group, or "
            "train.accumulate_steps=1."
        )
    if not model_config.pooled:
        raise UserError(
            "model.classifier=unpooled gives logits per patch, but the labels are per image. "
            "Set it to token or gap."
        )


def build_trainer(experiment, model_config, strategy):
    """Builds the `Trainer` of an experiment and draws the weights of a run from scratch.

    Args:
        experiment: the `Experiment` to run.
        model_config: configuration of its model, with the number of classes of the data.
        strategy: `tf.distribute.Strategy`.
    """
    settings = experiment.train
    # Directly before the first draw: earlier code, such as preparing a data set, draws too.
    keras.utils.set_random_seed(experiment.seed)
    peak = experiment.optimizer.learning_rate
    if experiment.schedule.decay == "linear" and peak < LINEAR_END:
        say(
            f"optimizer.learning_rate={peak} is below {LINEAR_END}, where linear decay ends: the "
            "rate stays at its peak"
        )
    schedule = make_schedule(experiment.schedule, peak, settings.steps)
    with strategy.scope():
        model = vit_tf.create_model(model_config, dtype=experiment.model.dtype)
        ema = None
        frozen = freeze(model, experiment.optimizer.freeze, bool(experiment.init_from))
        optimizer = make_optimizer(experiment.optimizer, schedule, model.trainable_variables)
        if settings.ema_decay is not None:
            ema = ExponentialMovingAverage(model.weights, settings.ema_decay)
    say(
        f"{experiment.model.name} with {model_config.summary()}: "
        f"{vit_tf.cost.parameters(model_config):,} parameters, {describe(strategy)}"
    )
    for note in [*frozen, *size_notes(model_config, "model.")]:
        say(note)
    step_settings = StepSettings(
        loss=functools.partial(
            cross_entropy, loss=settings.loss, label_smoothing=settings.label_smoothing
        ),
        batch_size=settings.batch_size,
        accumulate_steps=settings.accumulate_steps,
        seed=experiment.seed,
        break_at_non_finite=settings.non_finite != "stop",
    )
    return Trainer(model, optimizer, strategy, step_settings, ema)


def _restore(trainer, store, run, initial, preprocessing):
    """Restores the newest checkpoint, or else loads `initial`; returns the step to go on from."""
    step = store.restore_newest()
    if step is not None:
        run.drop_metrics_after(step)
        say(f"resuming from step {step}")
        return step
    run.drop_metrics_after(0)
    if initial:
        say(model_source.load(trainer.model, initial, "reset", preprocessing))
    if trainer.ema:
        trainer.ema.initialize()
    return 0


def _report_rate(experiment, steps_before, step):
    """Logs how another `train.steps` changes the learning rate of the next update."""
    before, now = (
        make_schedule(experiment.schedule, experiment.optimizer.learning_rate, steps)(step)
        for steps in (steps_before, experiment.train.steps)
    )
    say(f"rate at step {step}: {float(before):.2e} -> {float(now):.2e}")


def _report_sharding(sharding, hosts, run):
    """Logs the number of hosts if the order of the examples depends on it."""
    if sharding == "files":
        before = manifest.read_hosts(run.manifest) or hosts
        say(
            f"data.sharding=files: the order of the examples is reproducible for {hosts} "
            f"{'host' if hosts == 1 else 'hosts'}"
            + f"; earlier steps had the order for {before}"
            * (before != hosts)
        )


def _write_results(trainer, run, preprocessing):
    vit_tf.save_npz(trainer.model, run.final, preprocessing)
    say(f"wrote {run.final}")
    if trainer.ema:
        with trainer.ema.swapped_in():
            vit_tf.save_npz(trainer.model, run.ema, preprocessing)
        say(f"wrote {run.ema}, the Polyak average")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingLoop:
    """Steps, log lines, evaluations and checkpoints until the last step or a signal.

    Attributes:
        settings: number of steps, and intervals of logs, evaluations and checkpoints.
        trainer: the training step; its dataset is open.
        data: the training data.
        evaluator: evaluates the model; None for no evaluations.
        store: the checkpoints.
        non_finite: handles steps that are not finite.
        progress: log lines and metrics.
        signals: checked between two loops on the device.
    """

    settings: config.Train
    trainer: Trainer
    data: TrainData
    evaluator: Evaluator | None
    store: CheckpointStore
    non_finite: NonFinitePolicy
    progress: Progress
    signals: Signals

    def run(self):
        """Trains from the trainer's current step to the last one.

        Raises:
            As `train`.
        """
        settings = self.settings
        step = int(self.trainer.step.numpy())
        try:
            while True:
                if self._evaluation_is_due(step) and step > self.progress.last_evaluated:
                    self._evaluate(step)
                if step >= settings.steps:
                    break
                step = self._train(step)
                if self._is_non_finite(step):
                    reached, step = step, self.non_finite.recover(step)
                    if step <= reached:  # Rewound.
                        self.progress.restart()
                        self.signals.check()
                        continue
                # After a skip, `step` is one larger.
                if self._is_due(step, settings.log_every):
                    self._log(step)
                if self._is_due(step, settings.checkpoint_every):
                    self.store.save(step)
                self.signals.check()
        except Interrupted as signal:
            _check_finite("sum of the weights", self.trainer.weight_sum(), step)
            self.store.save(step)
            raise Interrupted(
                f"{signal}: saved step {step}. Start the same command again to go on."
            ) from None

    def _train(self, step):
        """Trains to the next action, for about 10 s at most; returns the steps done."""
        trainer = self.trainer
        begin = step
        steps = min(self._next_stop(step) - step, self.progress.steps_within(_LONGEST_LOOP))
        first = trainer.next_batch
        try:
            with self.progress.timed(steps) as timing:
                trainer.train(tf.constant(steps))
                step = int(trainer.step.numpy())  # Waits for the device.
                timing.steps = max(step - begin, 1)  # Fewer than `steps` if one was not finite.
                timing.waited = float(trainer.data_wait.numpy())
        except INPUT_ERRORS as error:
            # The step counter does not name the failed batch, so all batches are searched.
            batches = range(first, first + steps)
            hosts = num_hosts(trainer.strategy)
            raise self.data.explain_input_error(error, batches, hosts) from None
        return step

    def _is_non_finite(self, step):
        """Whether the last step, or a weight to be evaluated or saved now, is not finite."""
        used = self._is_due(step, self.settings.checkpoint_every) or self._evaluation_is_due(step)
        halted = bool(self.trainer.halted.numpy())
        return halted or (used and not math.isfinite(self.trainer.weight_sum()))

    def _evaluate(self, step):
        begin = time.perf_counter()
        ema = self.trainer.ema
        with ema.swapped_in() if ema else contextlib.nullcontext():
            means = self.evaluator.run()
        seconds = time.perf_counter() - begin
        _check_finite("evaluation loss", means["loss"], step)
        # Before the line of metrics: a resumed run skips an evaluation that has a line.
        metric = main_metric(means)
        if self.settings.keep_best:
            self.store.save(step, score=means[metric])
        self.progress.log_evaluation(step, means, seconds, metric)

    def _log(self, step):
        """Logs the steps since the last log line, and resets their sums."""
        trainer = self.trainer
        loss_sum = float(trainer.loss_sum.numpy())
        _check_finite("sum of the losses", loss_sum, step)
        self.progress.log_training(
            step,
            loss_sum,
            learning_rate=float(trainer.optimizer.learning_rate(step - 1)),
            gradient_norm=float(trainer.gradient_norm.numpy()),
            skipped=int(trainer.skipped.numpy()),
        )
        trainer.loss_sum.assign(0.0)
        trainer.skipped.assign(0)

    def _evaluation_is_due(self, step):
        return self.evaluator is not None and self._is_due(step, self.settings.eval_every)

    def _is_due(self, step, every):
        """Whether an action with the interval `every` (0: only at the end) is due at `step`."""
        return step == self.settings.steps or (every > 0 and step > 0 and step % every == 0)

    def _next_stop(self, step):
        """The next step with a log line, an evaluation or a checkpoint."""
        settings = self.settings
        intervals = (settings.log_every, settings.eval_every, settings.checkpoint_every)
        stops = [(step // every + 1) * every for every in intervals if every > 0]
        return min([settings.steps, *stops])


def _check_finite(what, value, step):
    """Ends the run before it saves a non-finite value."""
    if not math.isfinite(value):
        raise RunError(
            f"The {what} is not finite at step {step}. Lower optimizer.learning_rate or lengthen "
            "schedule.warmup_steps. The checkpoints in the workdir are older than this step."
        )
