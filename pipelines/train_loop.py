"""Training and evaluation under every strategy: one loop, Orbit's steps inside.

The walk is: flags -> `Experiment` -> `train`. Several steps run in one `tf.while_loop` on the
device; Python only looks at signals, logs, evaluates and saves between such loops.
"""

import math
import time

import keras
import orbit
import tensorflow as tf

import vit_tf
from pipelines import classification, optimization, weights
from pipelines.data import pipeline
from pipelines.data.sources import open_source
from pipelines.errors import Interrupted, RunError, UserError
from pipelines.progress import Progress, Signals, say
from pipelines.strategies import describe
from pipelines.workdir import Workdir
from vit_tf.layers import RandomContext

_LONGEST_LOOP = 10.0  # Seconds between two looks at signals.
_KEPT_CHECKPOINTS = 3


class Trainer(orbit.StandardTrainer):
    """One training step, and the state that a checkpoint holds.

    Args:
        model: built in `strategy.scope()`.
        optimizer: `optimization.Optimizer`, created in the same scope.
        experiment: the run.
        strategy: where it runs.
        dataset: distributed batches.
    """

    def __init__(self, model, optimizer, experiment, strategy, dataset):
        super().__init__(dataset)
        self.model, self.optimizer = model, optimizer
        self.experiment, self.strategy = experiment, strategy
        with strategy.scope():
            self.step = orbit.utils.create_global_step()
            self.loss_sum, self.norm = (
                tf.Variable(
                    0.0,
                    trainable=False,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                    name=name,
                )
                for name in ("loss_sum", "gradient_norm")
            )
        # Slices of the loss since the last log line are state, so that a resumed log is the same.
        self.checkpoint = tf.train.Checkpoint(
            model=weights.checkpointable(model),
            optimizer=optimizer.state,
            step=self.step,
            loss_sum=self.loss_sum,
        )

    def train_step(self, iterator):
        losses, norms = self.strategy.run(self.replica_step, args=(next(iterator),))
        self.loss_sum.assign_add(self.strategy.reduce("SUM", losses, axis=None))
        self.norm.assign(self.strategy.reduce("MEAN", norms, axis=None))
        self.step.assign_add(1)

    def replica_step(self, batch):
        """Forward, backward and update of one replica's slice of the global batch.

        Returns:
            `(this slice's part of the mean loss, norm of the global gradient)`.
        """
        train = self.experiment.train
        step = tf.convert_to_tensor(self.step)
        variables = [variable.value for variable in self.model.trainable_variables]
        with RandomContext(self.experiment.seed, step, batch["position"]):
            with tf.GradientTape() as tape:
                logits = self.model(batch["image"], training=True)
                losses = classification.example_losses(
                    batch["label"], logits, train.loss, train.label_smoothing
                )
                # Divided by the global batch: summed over replicas this is the mean.
                loss = tf.reduce_sum(losses * batch["weight"]) / train.batch_size
        gradients = tape.gradient(loss, variables)
        context = tf.distribute.get_replica_context()
        gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        # Clipped after the sum: clipping each replica's part would not clip the gradient.
        gradients, norm = optimization.clip_by_global_norm(
            gradients, self.experiment.optimizer.clip_norm
        )
        self.optimizer.apply(gradients, self.learning_rate(step), step)
        return loss, norm

    def learning_rate(self, step):
        """The schedule of the experiment at `step`."""
        return optimization.learning_rate(
            step,
            peak=self.experiment.optimizer.learning_rate,
            total_steps=self.experiment.train.steps,
            warmup_steps=self.experiment.schedule.warmup_steps,
            decay=self.experiment.schedule.decay,
        )


class Evaluator(orbit.StandardEvaluator):
    """Sums over a data set in which every example counts once.

    Args:
        model: built in `strategy.scope()`.
        strategy: where it runs.
        source: `data.Source` to evaluate.
        preprocessing: how images become inputs.
        batch_size: images per step over all replicas.
        loss: see `classification.example_losses`.
        signals: optional `Signals`, looked at after every batch.
    """

    def __init__(self, model, strategy, source, preprocessing, batch_size, loss, signals=None):
        replicas = strategy.num_replicas_in_sync
        batch_size = math.ceil(batch_size / replicas) * replicas
        dataset = strategy.distribute_datasets_from_function(
            lambda context: pipeline.eval_dataset(
                source,
                batch_size=batch_size,
                preprocessing=preprocessing,
                input_context=context,
            )
        )
        super().__init__(dataset)
        self.model, self.strategy, self.loss, self.signals = model, strategy, loss, signals
        self.steps = math.ceil(source.num_examples / batch_size)

    def eval_begin(self):
        return {}

    def eval_step(self, iterator):
        sums = self.strategy.run(self._replica_sums, args=(next(iterator),))
        return {
            name: self.strategy.reduce("SUM", value, axis=None) for name, value in sums.items()
        }

    def _replica_sums(self, batch):
        logits = self.model(batch["image"], training=False)
        return classification.evaluation_sums(
            batch["label"], logits, batch["weight"], self.loss
        )

    def eval_reduce(self, state, step_outputs):
        if self.signals is not None:
            self.signals.check()
        # Python floats: float32 would lose single examples after 16 million.
        sums = {name: float(value) for name, value in step_outputs.items()}
        return {name: state.get(name, 0.0) + value for name, value in sums.items()}

    def eval_end(self, state):
        return classification.evaluation_means(state)

    def run(self) -> dict:
        """Evaluates the whole data set: examples, loss, accuracy, top_5_accuracy."""
        return self.evaluate(tf.constant(self.steps))


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
        RunError: if the loss is not finite.
        Interrupted: after a signal, once everything is saved.
    """
    if experiment.train.deterministic:
        tf.config.experimental.enable_op_determinism()
    train_source, eval_source = _open_sources(experiment)
    preprocessing = experiment.preprocessing(train_source.labels)
    config = experiment.model.vit_config(train_source.num_classes)
    replicas = strategy.num_replicas_in_sync
    if experiment.train.batch_size % replicas:
        raise UserError(
            f"train.batch_size={experiment.train.batch_size} is not a multiple of the {replicas} "
            "replicas."
        )
    initial = weights.find(experiment.init_from) if experiment.init_from else None
    run = Workdir(workdir)
    run.claim(experiment)

    # Right before the first draw: what came before, such as preparing a data set, draws too.
    keras.utils.set_random_seed(experiment.seed)
    with strategy.scope():
        model = vit_tf.create_model(config, dtype=experiment.model.dtype)
        optimizer = optimization.make_optimizer(experiment.optimizer, model.trainable_variables)
    say(f"{experiment.model.name}: {model.count_params():,} parameters, {describe(strategy)}")
    trainer = Trainer(model, optimizer, experiment, strategy, dataset=None)
    manager = tf.train.CheckpointManager(
        trainer.checkpoint, run.checkpoints, max_to_keep=_KEPT_CHECKPOINTS
    )
    step = _restore(trainer, manager, run, initial)
    trainer.train_dataset = strategy.distribute_datasets_from_function(
        lambda context: _train_dataset(train_source, experiment, preprocessing, step, context)
    )
    run.write_manifest(experiment, describe(strategy), train_source.manifest())

    with Signals() as signals, Progress(run, experiment.train, step) as progress:
        if step == 0:
            batches = _train_dataset(train_source, experiment, preprocessing, step)
            progress.write_images("training images", next(iter(batches))["image"])
        evaluator = eval_source and Evaluator(
            model,
            strategy,
            eval_source,
            preprocessing,
            experiment.train.batch_size,
            experiment.train.loss,
            signals,
        )
        _run(trainer, evaluator, manager, signals, progress)
        vit_tf.save_npz(model, run.final, preprocessing)
    say(f"wrote {run.final}")
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
        model, preprocessing = weights.open_model(source)
    classes = model.config.num_classes
    if classes != examples.num_classes or preprocessing.labels not in ((), examples.labels):
        raise UserError(
            f"{source.path} was trained for {classes} classes ({_few(preprocessing.labels)}), "
            f"{experiment.data.name} has {examples.num_classes} ({_few(examples.labels)}). Choose "
            "the data set with --set data.name=..., or fine-tune the model on this one."
        )
    return Evaluator(
        model,
        strategy,
        examples,
        preprocessing,
        experiment.train.batch_size,
        experiment.train.loss,
    ).run()


def _run(trainer, evaluator, manager, signals, progress):
    """Steps, log lines, evaluations and checkpoints until the last step or a signal."""
    train = trainer.experiment.train
    step = int(trainer.step.numpy())
    try:
        while True:
            if evaluator and step > progress.last_evaluated and _due(step, train.eval_every, train):
                begin = time.perf_counter()
                progress.evaluated(step, evaluator.run(), time.perf_counter() - begin)
            if step >= train.steps:
                break
            steps = min(_next_stop(step, train) - step, progress.steps_within(_LONGEST_LOOP))
            with progress.timed(steps):
                trainer.train(tf.constant(steps))
                loss_sum = float(trainer.loss_sum.numpy())  # Waits for the device.
            step += steps
            if not math.isfinite(loss_sum):
                raise RunError(
                    f"The loss is not finite at step {step}. The last good checkpoint is "
                    f"{manager.latest_checkpoint or 'none'}; lower optimizer.learning_rate or "
                    "lengthen schedule.warmup_steps."
                )
            if _due(step, train.log_every, train):
                rate, norm = trainer.learning_rate(step - 1), trainer.norm.numpy()
                progress.trained(step, loss_sum, float(rate), float(norm))
                trainer.loss_sum.assign(0.0)
            if _due(step, train.checkpoint_every, train):
                _save(manager, step)
            signals.check()
    except Interrupted as signal:
        _save(manager, step)
        raise Interrupted(
            f"{signal}: saved step {step}. Start the same command again to go on."
        ) from None


def _open_sources(experiment):
    settings = experiment.data
    train_source = open_source(settings.name, settings.train_split, settings.data_dir)
    if settings.eval_split is None:
        return train_source, None
    return train_source, open_source(settings.name, settings.eval_split, settings.data_dir)


def _train_dataset(source, experiment, preprocessing, start_step, input_context=None):
    settings = experiment.data
    return pipeline.train_dataset(
        source,
        batch_size=experiment.train.batch_size,
        preprocessing=preprocessing,
        seed=experiment.seed,
        window=settings.window,
        start_step=start_step,
        crop=settings.crop,
        crop_area=settings.crop_area,
        flip=settings.flip,
        input_context=input_context,
    )


def _restore(trainer, manager, run, initial):
    """Newest checkpoint > `init_from` > fresh weights; returns the step to go on from."""
    if manager.latest_checkpoint:
        trainer.checkpoint.restore(manager.latest_checkpoint).assert_consumed()
        step = int(trainer.step.numpy())
        run.drop_metrics_after(step)
        say(f"resuming from step {step}")
        return step
    if initial:
        say(weights.load(trainer.model, initial, head="reset"))
    return 0


def _save(manager, step):
    if manager.latest_checkpoint is None or not manager.latest_checkpoint.endswith(f"-{step}"):
        manager.save(checkpoint_number=step)


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
