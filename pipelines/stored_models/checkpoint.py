"""The reader of the checkpoints of a run."""

import dataclasses

import vit_tf
from pipelines.runs import checkpoints, manifest
from pipelines.stored_models.stored_model import StoredConfig, StoredModel
from vit_tf import size_checks


@dataclasses.dataclass(frozen=True)
class Checkpoint(StoredModel):
    """A checkpoint of TensorFlow in a workdir, whose `path` is the prefix of its files.

    Attributes:
        ema: whether to read the moving average instead of the weights.
    """

    ema: bool = False

    def has_preprocessing(self):
        """See `StoredModel.has_preprocessing`."""
        return True

    def _read_config(self):
        experiment, _, config = self._read_run()
        return StoredConfig(config, experiment.model.dtype, experiment.preprocessing())

    def _read_run(self):
        """Experiment, labels, and configuration of the model, which is checked."""
        experiment = self.workdir.read_experiment()
        labels = manifest.read_labels(self.workdir.manifest)
        config = experiment.model_config(len(labels))
        size_checks.check_size(config, checkpoints.weight_shapes(self.path), self.name)
        return experiment, labels, config

    def _read_activation(self, opening):
        return self.workdir.read_experiment().train.loss

    def _open(self, opening):
        experiment, labels, config = self._read_run()
        model = vit_tf.create_model(config, dtype=opening.dtype or experiment.model.dtype)
        checkpoints.read_weights(self.path, model, self.ema)
        return vit_tf.LoadedModel(model, experiment.preprocessing(), experiment.classes(labels))
