"""The training data of a run: which examples are in which batch, and what they look like."""

import dataclasses
import itertools

from pipelines.config import Data
from pipelines.data import pipeline
from pipelines.data.bad_images import BadImages, explain_input_error
from pipelines.data.sources.source import Source
from vit_tf import Preprocessing


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainData:
    """Everything that decides the training batches of a run.

    Attributes:
        source: the examples.
        preprocessing: how images become inputs outside training; its resize rule is used without
            a random crop.
        seed: of the order and the augmentation.
        batch_size: images per step over all replicas and hosts.
        settings: order, sharding and augmentation.
        bad_images: to leave out images that cannot be read; None ends the run at the first.
    """

    source: Source
    preprocessing: Preprocessing
    seed: int
    batch_size: int
    settings: Data
    bad_images: BadImages | None = None

    def dataset(self, start_batch, input_context=None):
        """The endless dataset of replica batches from a global batch on; see `pipeline`."""
        return pipeline.train_dataset(
            self.source,
            batch_size=self.batch_size,
            preprocessing=self.preprocessing,
            seed=self.seed,
            shuffle_window=self.settings.shuffle_window,
            start_step=start_batch,
            mixup=self.settings.mixup,
            cutmix=self.settings.cutmix,
            sharding=self.settings.sharding,
            bad_images=self.bad_images,
            input_context=input_context,
            augmentation=self.settings.augmentation(),
        )

    def sample_images(self):
        """The first stored images as training would see them; see `pipeline.sample_images`."""
        return pipeline.sample_images(
            self.source, self.preprocessing, self.seed, self.settings.augmentation()
        )

    def explain_input_error(self, error, batches, hosts):
        """Raises what a failure of the dataset in one of some batches means to a user.

        Args:
            error: one of `bad_images.INPUT_ERRORS`.
            batches: indices of global batches.
            hosts: number of hosts that read data.

        Raises:
            See `bad_images.explain_input_error`.
        """
        indices = (
            pipeline.train_indices(
                self.source,
                batch_size=self.batch_size,
                seed=self.seed,
                shuffle_window=self.settings.shuffle_window,
                step=batch,
                sharding=self.settings.sharding,
                hosts=hosts,
            )
            for batch in batches
        )
        indices = itertools.chain.from_iterable(indices)
        explain_input_error(error, self.source, indices, self.bad_images)
