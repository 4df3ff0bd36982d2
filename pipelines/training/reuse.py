"""Trainings of one process that share a model, its compiled step and its compiled evaluation.

The runs of a study or a sweep often differ in seed, learning rate and images only. To build, trace
and optimize their graphs anew takes longer than many of these trainings.
"""

import contextlib
import contextvars
import gc

import keras
import tensorflow as tf

from pipelines.evaluation.evaluation_step import Evaluator
from pipelines.training.optimization.replica_variables import replicated_variable
from pipelines.training.train import build_trainer, draw_model, log_model

# Fields of an experiment that runs which share a graph may differ in. The first two are variables
# of it; the others choose weights and images, or when a run logs, evaluates and saves.
_MAY_DIFFER = (
    "seed",
    "optimizer.learning_rate",
    "init_from",
    "init_weights",
    "init_head",
    "data.name",
    "data.data_dir",
    "data.label",
    "data.train_split",
    "data.eval_split",
    "data.split_by",
    "data.class_order",
    "data.exclude",
    "data.fraction",
    "data.per_class",
    "data.subset_seed",
    "data.shuffle_window",
    "data.scan",
    "train.epochs",
    "train.log_every",
    "train.eval_every",
    "train.eval_batches",
    "train.checkpoint_every",
    "train.keep_last",
    "train.keep_every",
    "train.keep_best",
    "train.best_metric",
    "train.early_stop_after",
    "train.worker_timeout",
)

_current = contextvars.ContextVar("reuse", default=None)


class Reuse:
    """Keeps the trainer and the evaluator of the last run of a process for the next one.

    They are used again if the experiments are equal except for `_MAY_DIFFER`. Otherwise they are
    freed and built anew. A run that uses them has the weights, metrics and checkpoints that it has
    without: the initial weights are drawn by its seed, and all other state begins as in a new
    trainer.

    Only classification on `tf.distribute.OneDeviceStrategy` is kept: the seed of masked patches is
    a constant of evaluations, and a variable on several replicas is several variables. Other runs
    build their own.

    While a run begins, the devices hold a second copy of the weights, no more than the gradients of
    its steps take.
    """

    def __init__(self):
        self._forget()

    @staticmethod
    def current() -> "Reuse | None":
        """The one that is in use; None outside of the blocks."""
        return _current.get()

    @contextlib.contextmanager
    def in_use(self):
        """A block in which it is the current one."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def trainer(self, experiment, task, strategy):
        """The `Trainer` of a run; arguments as for `build_trainer`."""
        key = _key(experiment, task, strategy)
        if self._trainer is not None and key != self._key:
            self.drop()
        if key is None:
            return build_trainer(experiment, task, strategy)
        if self._trainer is None:
            self._build(experiment, task, strategy)
            self._key = key
        else:
            self._restart(experiment, task, strategy)
        return self._trainer

    def evaluator(self, model, strategy, data, task, signals) -> Evaluator:
        """The `Evaluator` of a run; arguments as for its class."""
        kind = data.collects_scores, data.bad_images is None
        if self._evaluator is not None and kind == self._evaluator_kind:
            self._evaluator.open(data, signals)
            return self._evaluator
        evaluator = Evaluator(model, strategy, data, task, signals)
        if self._trainer is not None:
            self._evaluator, self._evaluator_kind = evaluator, kind
        return evaluator

    def end_run(self):
        """Frees what the next run does not need: its data, or everything if it was not kept."""
        if self._trainer is None:
            self.drop()
            return
        self._trainer.train_dataset = None
        if self._evaluator is not None:
            self._evaluator.eval_dataset = None
        gc.collect()

    def drop(self):
        """Frees model, optimizer and graphs."""
        self._forget()
        keras.utils.clear_session()

    def _forget(self):
        self._key = self._trainer = self._seed = self._peak = None
        self._evaluator = self._evaluator_kind = None
        # Those of the model, in the order of their creation; and pairs of the others and their
        # initial values.
        self._drawn, self._others = [], []

    def _build(self, experiment, task, strategy):
        with strategy.scope():
            self._seed = replicated_variable(tf.constant(0, tf.int64), "seed")
            self._peak = replicated_variable(tf.constant(0.0, tf.float64), "peak")
        self._assign_inputs(experiment)
        with _created() as self._drawn:
            model = draw_model(experiment, task, strategy)
        with _created() as others:
            self._trainer = build_trainer(
                experiment, task, strategy, model=model, seed=self._seed, peak=self._peak
            )
        self._others = [(variable, _initial(variable)) for variable in others]

    def _restart(self, experiment, task, strategy):
        """Gives the trainer the state of a new one."""
        self._assign_inputs(experiment)
        with _created() as drawn:
            draw_model(experiment, task, strategy)
        for variable, value in zip(self._drawn, drawn, strict=True):
            variable.assign(value)
        for variable, value in self._others:
            variable.assign(tf.zeros_like(variable) if value is None else value)
        if self._trainer.bad_rows:
            self._trainer.bad_rows.restart()
        log_model(experiment, task, strategy, self._trainer.notes)

    def _assign_inputs(self, experiment):
        self._seed.assign(experiment.seed)
        self._peak.assign(experiment.optimizer.learning_rate)


def _key(experiment, task, strategy):
    """What runs with the same graphs have in common; None if a run is not to be kept."""
    if not (task.reads_labels and isinstance(strategy, tf.distribute.OneDeviceStrategy)):
        return None
    fields = experiment.to_dict()
    for path in _MAY_DIFFER:
        *sections, name = path.split(".")
        section = fields
        for key in sections:
            section = section[key]
        del section[name]
    # The task has the number of classes, and their weights.
    return fields, task, strategy


@contextlib.contextmanager
def _created():
    """Yields a list of the variables that are created in the block, in their order."""
    created = []

    def note(next_creator, **kwargs):
        created.append(next_creator(**kwargs))
        return created[-1]

    with tf.variable_creator_scope(note):
        yield created


def _initial(variable):
    """The value of a variable as a NumPy array; None, which takes no memory, if it is all zeros."""
    value = variable.numpy()
    return value if value.any() else None
