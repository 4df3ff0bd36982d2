"""The chips that `plan` knows: a table with the public source of each number, or a file."""

import dataclasses
import functools
import os
from typing import Any, Literal

from pipelines.config.fields import check, check_at_least, check_choices, from_json
from pipelines.config.names import Dtype
from pipelines.errors import UserError
from pipelines.runs.json_file import read_json
from vit_tf.config.near_names import did_you_mean

_TABLE = os.path.join(os.path.dirname(__file__), "chips.json")
_COUNTS = ("devices", "linked_chips", "chips_per_host")
_RATES = ("memory_gb", "memory_gb_per_s", "link_gb_per_s", "network_gb_per_s")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peaks of a chip, in 1e12 FLOPs per second without sparsity; None: it has no such products.

    Attributes:
        float32, mixed_bfloat16, mixed_float16: for each dtype policy of a model.
    """

    float32: float | None = None
    mixed_bfloat16: float | None = None
    mixed_float16: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """A chip: its memory, computation and connections. Its JSON has the same fields.

    A GB has 1e9 bytes. A rate is that of one chip in one direction.

    Attributes:
        name: for people.
        kind: the compiled ops run on a "cpu", the reference on a "tpu" and a "gpu".
        devices: number of devices of TensorFlow in a chip; each is a replica, with its part of
            the memory.
        memory_gb: its memory.
        memory_gb_per_s: the rate of its memory.
        teraflops: its `Peaks`.
        link_gb_per_s: all links that join it to near chips, together.
        linked_chips: the largest number of chips that such links join.
        network_gb_per_s: its part of the network that joins these groups; None: not published.
        chips_per_host: chips that one host feeds.
        sources: field -> where its number is published.
    """

    name: str
    kind: Literal["tpu", "gpu", "cpu"]
    devices: int = 1
    memory_gb: float
    memory_gb_per_s: float
    teraflops: Peaks
    link_gb_per_s: float
    linked_chips: int
    network_gb_per_s: float | None = None
    chips_per_host: int
    sources: dict = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self):
        check_choices(self)
        for name in _COUNTS:
            check_at_least(name, getattr(self, name), 1)
        rates = {name: getattr(self, name) for name in _RATES}
        rates |= {f"teraflops.{name}": x for name, x in dataclasses.asdict(self.teraflops).items()}
        for name, value in rates.items():
            check(name, value, value is None or value > 0, "above 0")

    def peak(self, dtype: Dtype) -> float:
        """FLOPs per second of one device for a dtype policy.

        Raises:
            UserError: if the chip has no products of this type.
        """
        peaks = {name: x for name, x in dataclasses.asdict(self.teraflops).items() if x is not None}
        if dtype not in peaks:
            raise UserError(
                f"{self.name} has no peak for model.dtype={dtype}. Set it to one of "
                f"{', '.join(peaks)}."
            )
        return 1e12 * peaks[dtype] / self.devices

    @property
    def device_memory(self) -> float:
        """Bytes of the memory of one device."""
        return 1e9 * self.memory_gb / self.devices


@functools.cache
def chip_table() -> dict[str, Chip]:
    """The chips by the name that `--chip` has for them."""
    return {name: _chip(values, f"{name}: ") for name, values in read_json(_TABLE).items()}


def find_chip(name) -> Chip:
    """The chip with a name of the table, or of a JSON file with the fields of a `Chip`.

    Raises:
        UserError: if there is neither, or the file describes no chip.
    """
    known = chip_table()
    if name.lower() in known:
        return known[name.lower()]
    if not (os.path.exists(name) or name.endswith(".json")):
        raise UserError(
            f"--chip={name} is neither a chip nor a file.{did_you_mean(name, known)} The chips are "
            f"{', '.join(known)}; docs/scaling.md has the file of another one."
        )
    return _chip(read_json(name), f"{name}: ")


def _chip(values: dict[str, Any], place) -> Chip:
    absent = dataclasses.MISSING
    missing = [
        field.name
        for field in dataclasses.fields(Chip)
        if field.default is field.default_factory is absent and field.name not in values
    ]
    if missing:
        raise UserError(f"{place}the chip has no {', '.join(missing)}. Add what is missing.")
    try:
        return from_json(Chip, values, "")
    except UserError as error:
        raise UserError(f"{place}{error}") from None
