"""The model of an all-reduce against counts of real ones, and against sums by hand."""

import numpy as np
import pytest

from pipelines.errors import UserError
from pipelines.research.planning.all_reduce import all_reduce
from pipelines.research.planning.chips import find_chip
from tests.pipelines.research.planning.chips import CHIP

SIZE = 1_000_000_000


def halving_and_doubling(arrays):
    """Rabenseifner's all-reduce of a power of two of arrays.

    Returns:
        The sum that each member ends with, the bytes that one sends, and its messages.
    """
    count, sent, messages = len(arrays), 0, 0
    parts = [dict(enumerate(np.split(array, count))) for array in arrays]
    for distance in [count >> shift for shift in range(1, count.bit_length())]:
        kept = [
            {i: x for i, x in own.items() if i & distance == member & distance}
            for member, own in enumerate(parts)
        ]
        sent += sum(x.nbytes for i, x in parts[0].items() if i not in kept[0])
        parts = [
            {i: x + parts[member ^ distance][i] for i, x in own.items()}
            for member, own in enumerate(kept)
        ]
        messages += 1
    for distance in [1 << shift for shift in range(count.bit_length() - 1)]:
        sent += sum(x.nbytes for x in parts[0].values())
        parts = [own | parts[member ^ distance] for member, own in enumerate(parts)]
        messages += 1
    results = [np.concatenate([own[i] for i in range(count)]) for own in parts]
    return results, sent, messages


@pytest.mark.parametrize("members", [2, 4, 8])
def test_bytes_and_messages_are_those_of_an_all_reduce(members):
    arrays = np.random.default_rng(0).normal(size=(members, 64 * members))
    results, sent, messages = halving_and_doubling(list(arrays))
    for result in results:
        np.testing.assert_allclose(result, arrays.sum(0), atol=1e-12)
    cost = all_reduce(find_chip("v4"), members, arrays[0].nbytes, 1.0, 0.0)
    assert cost.link_bytes == sent and cost.network_bytes == 0
    latency = all_reduce(find_chip("v4"), members, 0, 1.0, 1.0)
    assert latency.seconds == messages


def test_three_levels_by_hand():
    """16 chips of two devices in groups of 4: memory, then links, then network."""
    cost = all_reduce(CHIP, 16, SIZE, utilization=0.8, message_seconds=1e-3)
    assert cost.link_bytes == 2 * 3 / 4 * SIZE
    assert cost.network_bytes == 2 * 3 / 4 * SIZE / 4
    # A device has half of 1000 GB/s; links have 100 GB/s, the network 10; 4 and 4 messages.
    expected = 1.0 / 500 + 1.5 / 80 + 0.375 / 8 + 8e-3
    assert cost.seconds == pytest.approx(expected, rel=1e-12)


def test_groups_are_equal_in_size():
    """6 chips are two groups of 3, not of 4 and 2."""
    cost = all_reduce(CHIP, 6, SIZE, utilization=1.0, message_seconds=0.0)
    assert cost.link_bytes == pytest.approx(4 / 3 * SIZE)
    assert cost.network_bytes == pytest.approx(SIZE / 3)


def test_one_device_sums_nothing():
    cost = all_reduce(find_chip("h100"), 1, SIZE, utilization=0.8, message_seconds=1.0)
    assert (cost.link_bytes, cost.network_bytes, cost.seconds) == (0, 0, 0)


def test_chips_beyond_the_links_need_a_known_network():
    assert all_reduce(find_chip("v3"), 1024, SIZE, 0.8, 0.0).network_bytes == 0
    with pytest.raises(UserError, match="--chips=1025 of TPU v3 are more than the 1,024"):
        all_reduce(find_chip("v3"), 1025, SIZE, 0.8, 0.0)
