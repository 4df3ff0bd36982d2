"""Settings that decide which examples fill a training batch; `data.sharding` applies them."""

import dataclasses

from pipelines.config.names import SHARDINGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """Decides, together with the data set, which examples are in which training batch.

    With sharding="files" the batches also depend on the number of hosts.

    Attributes:
        batch_size: examples in a global batch.
        shuffle_window: examples shuffled together; memory holds at most twice as many, encoded.
        seed: seed of the run, 0 .. 2**64 - 1.
        sharding: "global" or "files", see `data/sharding.py`.

    Raises:
        ValueError: if the sharding is unknown. The code that uses the numbers checks them.
    """

    batch_size: int
    shuffle_window: int
    seed: int
    sharding: str

    def __post_init__(self):
        if self.sharding not in SHARDINGS:
            raise ValueError(f"sharding={self.sharding!r} is unknown. Expected one of {SHARDINGS}.")
