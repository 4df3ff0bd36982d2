"""The task of an experiment."""

from pipelines.config import Experiment
from pipelines.tasks.classification import Classification
from pipelines.tasks.masked_patches import MaskedPatches
from vit_tf.config import ModelConfig

Task = Classification | MaskedPatches


def task_of(experiment: Experiment, config: ModelConfig) -> Task:
    """Returns the task that an experiment names.

    Args:
        experiment: the experiment.
        config: configuration of its model, see `Experiment.model_config`.
    """
    if experiment.task == "masked_patches":
        return MaskedPatches(
            target=experiment.masking.target,
            fraction=experiment.masking.fraction,
            seed=experiment.seed,
            config=config,
            preprocessing=experiment.preprocessing(),
        )
    train = experiment.train
    return Classification(loss=train.loss, label_smoothing=train.label_smoothing, config=config)
