"""Training and evaluation under every strategy: one loop, Orbit's steps inside.

The walk is: flags -> `Experiment` -> `train`. Several steps run in one `tf.while_loop` on the
device; Python only looks at signals, logs, evaluates and saves between such loops.
"""

import contextlib
import functools
import itertools
import math
import sys
import time

import keras
import tensorflow as tf

import vit_tf
from pipelines.data import pipeline
from pipelines.data.bad_images import INPUT_ERRORS, BadImages, explain_input_error
from pipelines.data.sources.open import open_source
from pipelines.errors import Interrupted, RunError, UserError
from pipelines.runs import checkpoints, model_source
from pipelines.runs.checkpoints import CheckpointStore
from pipelines.runs.progress import Progress, Signals, say
from pipelines.runs.strategies import describe, num_hosts
from pipelines.runs.workdir import Workdir
from pipelines.training import optimizers
from pipelines.training.non_finite import Guard
from pipelines.training.train_step import Evaluator, Trainer

_LONGEST_LOOP = 10.0  # Seconds between two looks at signals.


def train(experiment, workdir, strategy) -> dict:
    """Trains from the newest checkpoint, or from `experiment.init_from`, or from scratch.

    Args:
        experiment: what to run.
        workdir: directory of the run; a run found there with the same configuration goes on.
        strategy: `tf.distribute.Strategy`.

    Returns:
        The last line of metrics.

    Raises:
        UserError: for input that does not fit.
        RunError: if a loss or gradient is not finite and `train.non_finite` says no way on.
        Interrupted: after a signal, once everything is saved.
    """
    if experiment.train.deterministic:
        tf.config.experimental.enable_op_determinism()
    train_source, eval_source = _open_sources(experiment)
    preprocessing = experiment.preprocessing(train_source.labels)
    config = experiment.model.config(train_source.num_classes)
    replicas = strategy.num_replicas_in_sync
    parts = replicas * experiment.train.accumulate_steps
    if experiment.train.batch_size % parts:
        raise UserError(
            f"train.batch_size={experiment.train.batch_size} is not a multiple of {parts}: "
            f"{replicas} replicas times train.accumulate_steps={experiment.train.accumulate_steps}."
        )
    if not config.pooled:
        raise UserError(
            "model.classifier=unpooled gives logits per patch, and the labels are per image. "
            "Set it to token or gap."
        )
    run = Workdir(workdir)
    run.check(experiment, train_source.manifest())
    # A run that goes on does not need what it came from.
    begins = not checkpoints.steps(run.checkpoints)
    initial = model_source.find(experiment.init_from) if experiment.init_from and begins else None

    # Right before the first draw: what came before, such as preparing a data set, draws too.
    keras.utils.set_random_seed(experiment.seed)
    with strategy.scope():
        model = vit_tf.create_model(config, dtype=experiment.model.dtype)
        optimizer = optimizers.make_optimizer(experiment.optimizer, model.trainable_variables)
    say(
        f"{experiment.model.name} with {config.summary()}: {model.count_params():,} parameters, "
        f"{describe(strategy)}"
    )
    trainer = Trainer(model, optimizer, experiment, strategy)
    store = CheckpointStore(
        run.checkpoints,
        trainer.checkpoint,
        keep_last=experiment.train.keep_last,
        keep_every=experiment.train.keep_every,
    )
    step = _restore(trainer, store, run, initial)
    bad_images = BadImages(run.bad_images, say) if experiment.data.bad_images == "skip" else None
    batches = functools.partial(_train_dataset, train_source, experiment, preprocessing, bad_images)
    trainer.feed(batches)
    hosts = num_hosts(strategy)
    _tell_sharding(experiment, hosts, run)
    run.create(experiment)
    if experiment.train.non_finite == "rewind" and begins:
        store.save(step)  # There is always something to go back to.
    if step < experiment.train.steps:
        run.remove_results()
    run.write_manifest(experiment, describe(strategy), train_source.manifest(), hosts)

    with (
        Signals() as signals,
        Progress(run, experiment.train, step) as progress,
        _counting(bad_images),
    ):
        if step == 0:
            images = pipeline.sample_images(
                train_source, preprocessing, experiment.seed, experiment.data.augmentation()
            )
            progress.write_images("training images", images)
        evaluator = eval_source and Evaluator(
            model,
            strategy,
            eval_source,
            preprocessing,
            experiment.train.batch_size,
            experiment.train.loss,
            signals,
            bad_images,
        )
        guard = Guard(trainer, store, run, train_source, batches)
        _run(trainer, evaluator, store, signals, progress, train_source, guard, bad_images)
        vit_tf.save_npz(model, run.final, preprocessing)
        say(f"wrote {run.final}")
        if trainer.ema:
            with trainer.ema.in_place():
                vit_tf.save_npz(model, run.ema, preprocessing)
            say(f"wrote {run.ema}, the Polyak average")
    return run.read_metrics()[-1]


def evaluate(experiment, source, strategy) -> dict:
    """Evaluates a model from disk on `data.eval_split` of an experiment.

    The images are prepared as the model was trained with, not as the experiment says.

    Args:
        experiment: names the data set, the split, the batch size and the loss.
        source: `weights.Source`.
        strategy: where to run.

    Returns:
        Dict with examples, loss, accuracy and top_5_accuracy.

    Raises:
        UserError: if the data set is missing or has other classes than the model.
    """
    split = experiment.data.eval_split
    if split is None:
        raise UserError("data.eval_split is none: there is nothing to evaluate. Set it to a split.")
    examples = open_source(experiment.data.name, split, experiment.data.data_dir)
    with strategy.scope():
        model, preprocessing = model_source.open_model(source)
    if not model.config.pooled:
        raise UserError(f"{source.path} is unpooled: it gives logits per patch, not per image.")
    classes = model.config.num_classes
    if classes != examples.num_classes or preprocessing.labels not in ((), examples.labels):
        raise UserError(
            f"{source.path} was trained for {classes} classes ({_few(preprocessing.labels)}), "
            f"{experiment.data.name} has {examples.num_classes} ({_few(examples.labels)}). Choose "
            "the data set with --set data.name=..., or fine-tune the model on this one."
        )
    bad_images = None
    if experiment.data.bad_images == "skip":
        # The result alone goes to stdout.
        bad_images = BadImages(None, functools.partial(print, file=sys.stderr, flush=True))
    with _counting(bad_images):
        return Evaluator(
            model,
            strategy,
            examples,
            preprocessing,
            experiment.train.batch_size,
            experiment.train.loss,
            bad_images=bad_images,
        ).run()


def _run(trainer, evaluator, store, signals, progress, source, guard, bad_images):
    """Steps, log lines, evaluations and checkpoints until the last step or a signal."""
    train = trainer.experiment.train
    step = int(trainer.step.numpy())
    try:
        while True:
            if evaluator and step > progress.last_evaluated and _due(step, train.eval_every, train):
                begin = time.perf_counter()
                with trainer.ema.in_place() if trainer.ema else contextlib.nullcontext():
                    means = evaluator.run()
                seconds = time.perf_counter() - begin
                _check_finite("evaluation loss", means["loss"], step)
                # Before the line of metrics, by which a resumed run knows that this is done.
                if train.keep_best:
                    store.save(step, score=means["accuracy"])
                progress.evaluated(step, means, seconds)
            if step >= train.steps:
                break
            steps = min(_next_stop(step, train) - step, progress.steps_within(_LONGEST_LOOP))
            naming = _naming_bad_images(trainer, source, bad_images, steps)
            with progress.timed(steps) as loop, naming:
                trainer.train(tf.constant(steps))
                step = int(trainer.step.numpy())  # Waits for the device.
                loop.waited = float(trainer.waited.numpy())
            saves = _due(step, train.checkpoint_every, train)
            used = saves or (evaluator and _due(step, train.eval_every, train))
            if trainer.frozen.numpy() or (used and not math.isfinite(trainer.weight_sum())):
                reached, step = step, guard.handle(step)
                if step <= reached:  # Rewound.
                    progress.restart()
                    signals.check()
                    continue
            if _due(step, train.log_every, train):
                _log(trainer, progress, step)
            # Asked again: a step that was skipped moves `step`.
            if _due(step, train.checkpoint_every, train):
                store.save(step)
            signals.check()
    except Interrupted as signal:
        _check_finite("sum of the weights", trainer.weight_sum(), step)
        store.save(step)
        raise Interrupted(
            f"{signal}: saved step {step}. Start the same command again to go on."
        ) from None


def _log(trainer, progress, step):
    """Tells what happened since the last log line, and starts anew."""
    loss_sum, norm = float(trainer.loss_sum.numpy()), float(trainer.norm.numpy())
    _check_finite("sum of the losses", loss_sum, step)
    rate = float(trainer.learning_rate(step - 1))
    progress.trained(step, loss_sum, rate, norm, int(trainer.skipped.numpy()))
    trainer.loss_sum.assign(0.0)
    trainer.skipped.assign(0)


def _check_finite(what, value, step):
    """Ends the run before anything that is not a number is saved."""
    if not math.isfinite(value):
        raise RunError(
            f"The {what} is not finite at step {step}. Lower optimizer.learning_rate or lengthen "
            "schedule.warmup_steps; what is saved in the workdir is from before."
        )


def _open_sources(experiment):
    settings = experiment.data
    train_source = open_source(settings.name, settings.train_split, settings.data_dir)
    if settings.eval_split is None:
        return train_source, None
    return train_source, open_source(settings.name, settings.eval_split, settings.data_dir)


def _train_dataset(source, experiment, preprocessing, bad_images, start_step, input_context=None):
    return pipeline.train_dataset(
        source,
        experiment.sampling(),
        experiment.data.augmentation(),
        preprocessing,
        start_step=start_step,
        bad_images=bad_images,
        input_context=input_context,
    )


def _tell_sharding(experiment, hosts, run):
    """Says on what the order of the examples depends, if not on the experiment alone."""
    if experiment.data.sharding == "files":
        before = run.last_hosts() or hosts
        say(
            f"data.sharding=files: the order of the examples is reproducible for {hosts} "
            f"{'host' if hosts == 1 else 'hosts'}"
            + f", and from here on another than before, with {before}"
            * (before != hosts)
        )


@contextlib.contextmanager
def _counting(bad_images):
    """Says at the end, whatever it is, how many images were left out."""
    try:
        yield
    finally:
        if bad_images is not None and (line := bad_images.summary()):
            bad_images.log(line)


@contextlib.contextmanager
def _naming_bad_images(trainer, source, bad_images, steps):
    """Turns a failure of the input in one of the next steps into the name of the bad image."""
    experiment, step = trainer.experiment, trainer.next_batch
    try:
        yield
    except INPUT_ERRORS as error:
        # The step counter may have run ahead of the failing input, so all of them are looked at.
        hosts, sampling = num_hosts(trainer.strategy), experiment.sampling()
        indices = itertools.chain.from_iterable(
            pipeline.train_indices(source, sampling, failed, hosts)
            for failed in range(step, step + steps)
        )
        explain_input_error(error, source, indices, bad_images)


def _restore(trainer, store, run, initial):
    """Newest checkpoint > `init_from` > fresh weights; returns the step to go on from."""
    step = store.restore_newest()
    if step is not None:
        run.drop_metrics_after(step)
        say(f"resuming from step {step}")
        return step
    run.drop_metrics_after(0)
    if initial:
        say(model_source.load(trainer.model, initial, head="reset"))
    if trainer.ema:
        trainer.ema.start()
    return 0


def _due(step, every, train):
    """Whether what happens every `every` steps (0: only at the end) happens at `step`."""
    return step == train.steps or (every > 0 and step > 0 and step % every == 0)


def _next_stop(step, train):
    """The next step at which something is due."""
    intervals = (train.log_every, train.eval_every, train.checkpoint_every)
    stops = [(step // every + 1) * every for every in intervals if every > 0]
    return min([train.steps, *stops])


def _few(labels):
    return ", ".join(labels[:3]) + (", ..." if len(labels) > 3 else "") if labels else "unnamed"
