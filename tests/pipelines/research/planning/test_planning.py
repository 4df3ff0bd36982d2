"""Memory, times and largest batch of plans against sums by hand, and memory against a real run."""

import dataclasses
import math

import pytest

from pipelines.config import override, recipes
from pipelines.data import throughput
from pipelines.errors import UserError
from pipelines.research.planning.assumptions import Assumptions
from pipelines.research.planning.chips import find_chip
from pipelines.research.planning.measuring import MeasuredBatch, attempt
from pipelines.research.planning.planning import largest_batch, plan, plan_that_fits
from tests.pipelines.research.planning.chips import CHIP
from tests.tolerances import PLANNED_MEMORY
from vit_tf import cost
from vit_tf.config.variants import get_variant

B16 = 86_567_656  # Parameters (docs/paper.md A.11).
PLAIN = ("model.representation_size=none", "train.steps=1000")


def experiment_of(*assignments, model=PLAIN):
    """ViT-B/16 without pre-logits, as in docs/paper.md L.2, and its configuration."""
    experiment = override(recipes.get_recipe("jft_vit_b16"), [*model, *assignments])
    return experiment, experiment.model_config(1000)


def planned(*assignments, chip=CHIP, chips=16, chooses=False, model=PLAIN, **assumed):
    run = experiment_of(*assignments, model=model)
    return plan(*run, chip, chips, Assumptions(**assumed), chooses)


def test_times_of_a_step_by_hand():
    """ViT-B/16 in float32, 512 images on 32 devices: 16 images each; docs/paper.md L.2."""
    made = planned("train.batch_size=512", "train.checkpoint_every=100", message_us=0)
    flops = 6 * 17.564e9 * 16
    assert made.compute_time == pytest.approx(flops / (0.45 * 50e12), rel=1e-4)
    assert made.update_time == pytest.approx((2 * 12 + 4) * B16 / 500e9)
    size = 4 * B16
    summed = size / 500e9 + 1.5 * size / 80e9 + 0.375 * size / 8e9
    assert made.gradients.seconds == pytest.approx(summed)
    assert made.checkpoint_time == pytest.approx(12 * B16 / 0.5e9 / 100)
    on_devices = made.compute_time + made.update_time + made.gradients.seconds
    assert made.input_time == 0
    assert made.step_time == pytest.approx(on_devices + made.checkpoint_time)
    assert made.needed_input == pytest.approx(512 / 4 / on_devices)
    assert made.run_time == pytest.approx(1000 * made.step_time)
    assert made.core_days == pytest.approx(32 * 1000 * made.step_time / 86400)


def test_a_slow_input_sets_the_pace():
    """16 chips are four hosts: 512 images take 0.8 s at 160 images/s of each."""
    made = planned("train.batch_size=512", input_rate=160.0)
    assert made.input_time == pytest.approx(0.8)
    assert made.step_time == made.input_time + made.checkpoint_time
    fast = planned("train.batch_size=512", input_rate=1e6)
    assert fast.step_time == fast.device_time + fast.checkpoint_time


def test_utilization_is_that_of_the_measurement_of_the_input():
    assert Assumptions().utilization == throughput.UTILIZATION
    needed = throughput.needed_rate(get_variant("ViT-B/16"), 4 * 100)
    made = planned("train.batch_size=512", chips=4)
    assert needed == pytest.approx(512 / made.compute_time, rel=1e-9)


@pytest.mark.parametrize(
    ("assignments", "parts"),
    [
        ([], {"weights": 4, "gradients": 4, "optimizer": 8}),
        (["optimizer.name=sgd"], {"weights": 4, "gradients": 4, "optimizer": 4}),
        (["optimizer.momentum_dtype=bfloat16"], {"weights": 4, "gradients": 4, "optimizer": 6}),
        (
            ["train.ema_decay=0.9", "train.accumulate_steps=4"],
            {"weights": 4, "gradients": 4, "optimizer": 8, "average": 4, "sum of gradients": 4},
        ),
        (
            ["optimizer.clip_norm=1"],
            {"weights": 4, "gradients": 4, "optimizer": 8, "clipped gradients": 4},
        ),
        (
            ["model.dtype=mixed_bfloat16"],
            {"weights": 4, "gradients": 4, "optimizer": 8, "weights in 16 bits": 2},
        ),
        (  # 32 devices share what an update needs.
            ["train.shard_optimizer=true", "train.ema_decay=0.9", "optimizer.clip_norm=1"],
            {
                "weights": 4,
                "gradients": 4,
                "optimizer": 8 / 32,
                "average": 4 / 32,
                "clipped gradients": 4 / 32,
            },
        ),
    ],
    ids=str,
)
def test_memory_by_part(assignments, parts):
    """Bytes of a parameter by hand, and the activations of the images of a device."""
    made = planned("train.batch_size=512", *assignments)
    images = 16 // made.experiment.train.accumulate_steps
    dtype = made.experiment.model.dtype
    kept = cost.activation_bytes(made.config, images, dtype, compiled=False)
    live = cost.activation_bytes(made.config, images, dtype, training=False, compiled=False)
    expected = {name: math.ceil(size * B16) for name, size in parts.items()}
    expected |= {"activations": kept, "gradients of activations": live}
    assert made.sizes.memory == expected
    assert made.needed_memory == sum(expected.values())


def test_slices_are_sent_twice_updated_once_and_saved_whole():
    own = ("train.batch_size=512", "train.checkpoint_every=100")
    whole, shared = (planned(*own, *more) for more in ((), ("train.shard_optimizer=true",)))
    assert shared.gradients.seconds == 2 * whole.gradients.seconds
    assert shared.gradients.link_bytes == 2 * whole.gradients.link_bytes
    assert shared.update_time == pytest.approx((2 * (4 + 8 / 32) + 4) * B16 / 500e9)
    assert shared.checkpoint_time == whole.checkpoint_time
    chip = dataclasses.replace(CHIP, memory_gb=8)
    run = experiment_of("train.shard_optimizer=true")
    few, many = (largest_batch(*run, chip, Assumptions(), devices) for devices in (1, 32))
    assert few < many


def test_standardized_kernels_are_kept_twice():
    """All convolutions of BiT and of a stem (docs/paper.md A.11); norms are below 1 %."""
    body, stem = 23_500_352, 13_946_176
    assert cost.standardized_bytes("BiT-R50x1") == pytest.approx(2 * 4 * body, rel=0.01)
    assert cost.standardized_bytes("R26+ViT-S/32") == pytest.approx(2 * 4 * stem, rel=0.01)
    assert cost.standardized_bytes("ViT-B/16") == cost.standardized_bytes("AxialResNet-26S") == 0


@pytest.mark.parametrize("assumed", [{}, {"usable_memory": 0.5}])
@pytest.mark.parametrize("kind", ["gpu", "cpu"])
def test_the_largest_batch_fits_and_one_image_more_does_not(kind, assumed):
    chip = dataclasses.replace(CHIP, kind=kind, devices=1)
    largest = largest_batch(*experiment_of(), chip, Assumptions(**assumed))
    fits = planned(f"train.batch_size={largest}", chip=chip, chips=1, **assumed)
    assert fits.needed_memory <= fits.usable_memory == 60e9 * assumed.get("usable_memory", 0.9)
    with pytest.raises(UserError, match=f"enough for {largest:,} images"):
        planned(f"train.batch_size={largest + 1}", chip=chip, chips=1, **assumed)


def test_a_model_that_never_fits():
    tiny = dataclasses.replace(CHIP, memory_gb=1)
    assert largest_batch(*experiment_of(), tiny, Assumptions()) == 0
    with pytest.raises(UserError, match="enough for 0 images. Set model.recompute=blocks, "):
        planned("train.batch_size=512", chip=tiny)


def test_micro_batches_are_the_fewest_that_fit():
    """4,096 images on 4 devices: 1,024 each."""
    made = planned("train.batch_size=4096", chips=2, chooses=True)
    steps = made.experiment.train.accumulate_steps
    assert made.sizes.images == 1024 // steps
    assert made.needed_memory <= made.usable_memory
    with pytest.raises(UserError, match=f"Set train.accumulate_steps={steps}, "):
        planned("train.batch_size=4096", chips=2)
    fewer = ["train.batch_size=4096", f"train.accumulate_steps={steps // 2}"]
    with pytest.raises(UserError, match="does not fit on --chips=2 of round: "):
        planned(*fewer, chips=2)
    kept = planned("train.batch_size=512", "train.accumulate_steps=4", chooses=True)
    assert kept.experiment.train.accumulate_steps == 4


@pytest.mark.parametrize(
    ("memory_gb", "changed"),
    [
        (30, []),
        (3, ["train.accumulate_steps"]),
        (1.95, ["model.dtype", "model.recompute", "train.accumulate_steps"]),
    ],
)
def test_settings_with_which_a_run_fits(memory_gb, changed):
    """On the two devices of a chip: the state takes 1.39 GB, 32 images in float32 8.85 GB."""
    chip = dataclasses.replace(CHIP, memory_gb=2 * memory_gb)
    experiment, _ = experiment_of("train.batch_size=64")
    where = 1000, chip, 1, Assumptions(usable_memory=1.0)
    made, settings = plan_that_fits(experiment, *where)
    assert [setting.partition("=")[0] for setting in settings] == changed
    assert made.needed_memory <= made.usable_memory
    again, none = plan_that_fits(override(experiment, settings), *where)
    assert none == () and again.experiment == made.experiment
    micro = override(experiment, ["train.accumulate_steps=32"])
    fewest, _ = plan_that_fits(micro, *where, fewest=True)
    assert fewest.experiment == made.experiment
    with pytest.raises(UserError, match="does not fit.*recompute=blocks, a 16-bit model.dtype"):
        plan_that_fits(experiment, 1000, dataclasses.replace(chip, memory_gb=1), *where[2:])


def test_batch_norm_has_no_micro_batches():
    small = dataclasses.replace(CHIP, memory_gb=2)
    with pytest.raises(UserError, match="Set a 16-bit model.dtype, more --chips, or a smaller"):
        other = ("model.name=AxialResNet-26S", "train.steps=1000")
        planned("train.batch_size=4096", model=other, chip=small, chips=2, chooses=True)


@pytest.mark.parametrize(
    ("chip", "chips", "message"),
    [
        ("v3", 3, r"--chips=3 of TPU v3, 6 devices, times train.accumulate_steps=1"),
        ("v100", 1, "NVIDIA V100 SXM2 32 GB has no peak for model.dtype=mixed_bfloat16"),
    ],
)
def test_chips_that_do_not_fit_the_run(chip, chips, message):
    settings = ["train.batch_size=4096", "model.dtype=mixed_bfloat16"]
    with pytest.raises(UserError, match=message):
        planned(*settings, chip=find_chip(chip), chips=chips)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"utilization": 0}, "--utilization must be above 0 and at most 1. Received: 0"),
        ({"usable_memory": 1.5}, "--usable_memory must be above 0 and at most 1"),
        ({"link_utilization": float("nan")}, "--link_utilization must be"),
        ({"message_us": -1}, "--message_us must be at least 0"),
        ({"storage_gb_per_s": 0}, "--storage_gb_per_s must be above 0"),
        ({"input_rate": float("inf")}, "--input_rate must be above 0"),
    ],
    ids=str,
)
def test_assumptions_that_make_no_sense(values, message):
    with pytest.raises(UserError, match=message):
        Assumptions(**values)


@pytest.mark.process
@pytest.mark.heavy("training")
@pytest.mark.parametrize(
    "model",
    [
        "ViT-S/16",
        *(pytest.param(x, marks=pytest.mark.release) for x in ("R26+ViT-S/32", "BiT-R50x1")),
    ],
)
def test_memory_is_that_of_a_real_run(model):
    """The peak that two steps of 16 images add to the built model, in a process of its own."""
    request = MeasuredBatch(
        assignments=(f"model.name={model}", "model.image_size=224"),
        images=16,
        passes="training",
        timings=0,
        classes=10,
    )
    found = attempt(request)
    added = found["peak"] - found["built"]
    assert request.planned(compiled=True)[1] == pytest.approx(added, rel=PLANNED_MEMORY), found
