"""The training data of a run: which examples are in which batch, and their augmentation."""

import dataclasses
import itertools

from pipelines.config.augmentation import Augmentation
from pipelines.config.sampling import Sampling
from pipelines.data import pipeline
from pipelines.data.bad_images import BadImages, explain_input_error
from pipelines.data.sources.source import DataSource
from vit_tf import Preprocessing


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainData:
    """Everything that determines the training batches of a run.

    Attributes:
        source: the examples.
        sampling: which examples are in which batch.
        augmentation: random changes of the images.
        preprocessing: how images become inputs outside training; its resize rule is used without
            a random crop.
        bad_images: leaves out images that cannot be read; None ends the run at the first one.
    """

    source: DataSource
    sampling: Sampling
    augmentation: Augmentation
    preprocessing: Preprocessing
    bad_images: BadImages | None = None

    def dataset(self, start_batch, input_context=None):
        """The infinite dataset of replica batches from a global batch on; see `pipeline`."""
        return self._dataset(start_batch, None, input_context)

    def batch(self, index, input_context=None):
        """The dataset of the replica batches of one global batch; reads only what they need."""
        return self._dataset(index, index + 1, input_context)

    def _dataset(self, start, stop, input_context):
        return pipeline.train_dataset(
            self.source,
            self.sampling,
            self.augmentation,
            self.preprocessing,
            start_step=start,
            stop_step=stop,
            bad_images=self.bad_images,
            input_context=input_context,
        )

    def sample_images(self):
        """The first stored images with training augmentation; see `pipeline.sample_images`."""
        return pipeline.sample_images(
            self.source, self.preprocessing, self.sampling.seed, self.augmentation
        )

    def explain_input_error(self, error, batches, hosts):
        """The error to raise after the dataset failed in one of `batches`.

        Args:
            error: one of `bad_images.INPUT_ERRORS`.
            batches: indices of global batches.
            hosts: number of hosts that read data.

        Returns:
            As `bad_images.explain_input_error`.
        """
        indices = itertools.chain.from_iterable(
            pipeline.train_indices(self.source, self.sampling, batch, hosts) for batch in batches
        )
        return explain_input_error(error, self.source, indices, self.bad_images)
