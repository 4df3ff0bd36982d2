"""A chip with round numbers, for sums by hand."""

from pipelines.research.planning.chips import Chip, Peaks

CHIP = Chip(
    name="round",
    kind="gpu",
    devices=2,
    memory_gb=60,
    memory_gb_per_s=1000,
    teraflops=Peaks(float32=100, mixed_bfloat16=200),
    link_gb_per_s=100,
    linked_chips=4,
    network_gb_per_s=10,
    chips_per_host=4,
)
