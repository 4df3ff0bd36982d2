"""Which examples fill a training batch, as plain numbers; `data.sharding` decides it from them."""

import dataclasses

from pipelines.config.names import SHARDINGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """What decides, with the data set alone, which examples are in which training batch.

    With sharding="files" the number of hosts decides too.

    Attributes:
        batch_size: examples in a global batch.
        shuffle_window: examples shuffled together; about as many encoded images are held in memory.
        seed: seed of the run, 0 .. 2**64 - 1.
        sharding: "global" or "files", see `data/sharding.py`.

    Raises:
        ValueError: if the sharding is unknown. Numbers are checked where they are used.
    """

    batch_size: int
    shuffle_window: int
    seed: int
    sharding: str

    def __post_init__(self):
        if self.sharding not in SHARDINGS:
            raise ValueError(f"sharding={self.sharding!r} is unknown. Expected one of {SHARDINGS}.")
