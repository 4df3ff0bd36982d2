"""Lowers the training and the evaluation step to StableHLO, for one core of several.

TensorFlow lowers them as for XLA on a CPU; the ops are the same as on a TPU, because the reference
implementation of the compiled ops is chosen, as under TPUStrategy.
"""

import tensorflow as tf

import custom_ops
from pipelines.data.sources.open import open_source
from pipelines.evaluation.evaluation_step import EvaluationData, Evaluator
from pipelines.tasks.task import task_of
from pipelines.training.train import build_trainer
from tests.tpu.cores import OneCore

CORES = 8


def training_step(experiment, num_classes=10, mixed_labels=False, stage="stablehlo_serialized"):
    """`Trainer.replica_step`, on the part of a core of `train.batch_size` images.

    Args:
        experiment: the `Experiment`.
        num_classes: of its data.
        mixed_labels: whether the labels are rows of probabilities, as after MixUp.
        stage: as for `lower`.
    """
    config = experiment.model_config(num_classes)
    trainer = build_trainer(experiment, task_of(experiment, config), OneCore(CORES))
    batch = _batch(experiment, num_classes, mixed_labels, experiment.data.image_dtype)
    return lower(trainer.replica_step, batch, trainer.strategy, stage)


def evaluation_step(experiment, num_classes=10, multi_label=False, stage="stablehlo_serialized"):
    """`Evaluator.replica_step`, on the part of a core of `train.batch_size` images.

    Args:
        experiment: the `Experiment`.
        num_classes: of its data.
        multi_label: whether the labels are rows of zeros and ones.
        stage: as for `lower`.
    """
    task, strategy = task_of(experiment, experiment.model_config(num_classes)), OneCore(CORES)
    with strategy.scope():
        model = task.create_model(experiment.model.dtype)
    # An `Evaluator` has data; its step does not depend on them.
    source = open_source("digits", "test")
    preprocessing = experiment.preprocessing()
    data = EvaluationData(source=source, preprocessing=preprocessing, batch_size=CORES)
    evaluator = Evaluator(model, strategy, data, task)
    batch = _batch(experiment, num_classes, multi_label, experiment.data.eval_image_dtype)
    return lower(evaluator.replica_step, batch, strategy, stage)


def lower(function, batch, strategy=None, stage="stablehlo_serialized"):
    """The StableHLO or HLO of a function, before anything is optimized.

    Args:
        function: takes a nest of tensors; its variables become arguments and results.
        batch: the nest, of `tf.TensorSpec`.
        strategy: `OneCore`, whose replica calls the function; None: the function has no sums.
        stage: "stablehlo_serialized" for bytes, or "hlo" for text.

    Raises:
        ValueError: if XLA has no kernel for an op.
    """

    def of_tensors(*tensors):
        nest = tf.nest.pack_sequence_as(batch, tensors)
        return strategy.run(function, args=(nest,)) if strategy else function(nest)

    with custom_ops.implementation("reference"):
        compiled = tf.function(of_tensors, jit_compile=True)
        lowered = compiled.experimental_get_compiler_ir(*tf.nest.flatten(batch))
    return lowered(stage=stage)


def _batch(experiment, num_classes, has_rows, dtype):
    size = experiment.train.batch_size // CORES
    return {
        "image": tf.TensorSpec([size, *experiment.model.image_size, 3], dtype),
        "label": (
            tf.TensorSpec([size, num_classes], tf.float32)
            if has_rows
            else tf.TensorSpec([size], tf.int32)
        ),
        "id": tf.TensorSpec([size], tf.int64),
        "slot": tf.TensorSpec([size], tf.int32),
        "weight": tf.TensorSpec([size], tf.float32),
    }
