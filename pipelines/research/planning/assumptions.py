"""The numbers that a plan takes as given. Loads no framework, so flags can show the defaults."""

import dataclasses
import math

from pipelines.config.fields import check, check_fraction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What a plan does not compute. A GB has 1e9 bytes.

    Attributes:
        utilization: part of the peak that forward and backward passes reach.
        link_utilization: part of the rates of links and networks that is reached.
        usable_memory: part of the memory that the run may fill.
        message_us: latency of a message between chips, in microseconds.
        storage_gb_per_s: rate at which one host writes a checkpoint.
        input_rate: images per second that one host delivers; None: as many as are needed.
    """

    utilization: float = 0.45
    link_utilization: float = 0.8
    usable_memory: float = 0.9
    message_us: float = 5.0
    storage_gb_per_s: float = 0.5
    input_rate: float | None = None

    def __post_init__(self):
        for name in ("utilization", "link_utilization", "usable_memory"):
            check_fraction(f"--{name}", getattr(self, name))
        check("--message_us", self.message_us, 0 <= self.message_us < math.inf, "at least 0")
        for name in ("storage_gb_per_s", "input_rate"):
            value = getattr(self, name)
            check(f"--{name}", value, value is None or 0 < value < math.inf, "above 0")
