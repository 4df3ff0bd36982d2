"""The sum of the gradients over all devices: what it moves, and how long that takes.

The model and its assumptions are described in docs/scaling.md.
"""

import dataclasses
import math

from pipelines.errors import UserError
from pipelines.research.planning.chips import Chip


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllReduce:
    """One sum over all devices, after which each of them has the result.

    Attributes:
        link_bytes: bytes that a chip sends over its links, and as many that it receives.
        network_bytes: bytes that a chip sends over the network, and as many that it receives.
        seconds: duration.
    """

    link_bytes: float
    network_bytes: float
    seconds: float


def all_reduce(chip: Chip, chips, size, utilization, message_seconds) -> AllReduce:
    """The cost of summing an array over all devices of `chips` chips.

    The sum goes up three levels: the devices of a chip, through its memory; the chips of a group,
    over their links; the groups, over the network, each chip with its part of the array. At a
    level with n members, a member sends 2 (n - 1) / n of its array in 2 ceil(log2 n) messages
    (Rabenseifner's algorithm: Thakur, Rabenseifner and Gropp, 2005). The levels
    follow each other.

    Args:
        chip: the `Chip`.
        chips: their number.
        size: bytes of the array.
        utilization: part of the rates of links and network that is reached.
        message_seconds: latency of a message.

    Raises:
        UserError: if the chips are in several groups, and the rate of the network between them is
            not known.
    """
    groups = groups_of(chip, chips)
    group = math.ceil(chips / groups)
    link_bytes = _sent(group, size)
    network_bytes = _sent(groups, size / group)
    seconds = _sent(chip.devices, size) * chip.devices / (1e9 * chip.memory_gb_per_s)
    seconds += link_bytes / (1e9 * chip.link_gb_per_s * utilization)
    if groups > 1:
        seconds += network_bytes / (1e9 * chip.network_gb_per_s * utilization)
    seconds += message_seconds * (_messages(group) + _messages(groups))
    return AllReduce(link_bytes=link_bytes, network_bytes=network_bytes, seconds=seconds)


def groups_of(chip: Chip, chips) -> int:
    """The number of groups of linked chips; arguments and errors as for `all_reduce`."""
    groups = math.ceil(chips / chip.linked_chips)
    if groups > 1 and chip.network_gb_per_s is None:
        raise UserError(
            f"--chips={chips} of {chip.name} are more than the {chip.linked_chips:,} that links "
            "join, and the rate of the network beyond them is not published. Take at most "
            f"{chip.linked_chips:,}, or a file with network_gb_per_s."
        )
    return groups


def _sent(members, size):
    """Bytes that a member sends, at the least, so that all have the sum of arrays of `size`."""
    return 2 * (members - 1) / members * size


def _messages(members):
    """Messages that follow each other in a sum and a spread over a binary tree of members."""
    return 2 * math.ceil(math.log2(members))
