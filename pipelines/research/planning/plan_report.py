"""Plans and the paper's costs as text and as JSON values."""

import dataclasses
from typing import get_args

from pipelines.config.names import Dtype
from pipelines.errors import counted
from pipelines.reports.text_table import aligned
from pipelines.research.planning.chips import chip_table
from pipelines.research.planning.planning import DAY, Estimate, is_compiled, largest_batch
from pipelines.training.dry_run import with_prefix
from vit_tf import cost
from vit_tf.config.vit import Recompute

_UNITS = ((DAY, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "us"))


def plan_record(plan: Estimate, price=None, others=()) -> dict:
    """A plan as JSON values: times in seconds, memory in bytes, rates in images per second.

    Args:
        plan: the `Estimate`.
        price: price of a chip for an hour, or None.
        others: chips beside those of the table for which the largest batch is given.
    """
    config, experiment, summed = plan.config, plan.experiment, plan.gradients
    record = {
        "model": experiment.model.name,
        "parameters": cost.parameters(config),
        "macs": cost.macs(config),
        "exaflops": plan.sizes.training_flops / 1e18,
        "chip": plan.chip.name,
        "chips": plan.chips,
        "devices": plan.devices,
        "hosts": plan.hosts,
        "batch_size": experiment.train.batch_size,
        "accumulate_steps": experiment.train.accumulate_steps,
        "images": plan.sizes.images,
        "dtype": experiment.model.dtype,
        "memory": plan.sizes.memory,
        "usable_memory": plan.usable_memory,
        "activations": _activations(plan),
        "largest_batch": _largest_batches(plan, others),
        "link_bytes": summed.link_bytes,
        "network_bytes": summed.network_bytes,
        "step": {
            "compute": plan.compute_time,
            "update": plan.update_time,
            "all_reduce": summed.seconds,
            "input": plan.input_time,
            "checkpoint": plan.checkpoint_time,
            "total": plan.step_time,
        },
        "images_per_second": experiment.train.batch_size / plan.step_time,
        "needed_images_per_second_per_host": plan.needed_input,
        "steps": experiment.train.steps,
        "run_seconds": plan.run_time,
        "core_days": plan.core_days,
        "assumptions": dataclasses.asdict(plan.assumptions),
    }
    return record if price is None else record | {"cost": _cost(plan, price)}


def plan_text(record) -> str:
    """A `plan_record` for people."""
    step, memory = record["step"], record["memory"]
    rows = [[f"  {name}", f"{size / 1e9:,.3f}"] for name, size in memory.items()]
    rows.append(["  together", f"{sum(memory.values()) / 1e9:,.3f}"])
    flops = round(1e18 * record["exaflops"] / record["steps"])
    sent = f"a chip sends {record['link_bytes'] / 1e9:,.3f} GB over its links"
    if record["network_bytes"]:
        sent += f" and {record['network_bytes'] / 1e9:,.3f} GB over the network"
    rate = f"{record['needed_images_per_second_per_host']:,.0f} images/s are needed"
    hosts = f"from each of {counted(record['hosts'], 'host')}"
    given = record["assumptions"]["input_rate"]
    offered = "assumed to be delivered" if given is None else f"{given:,.0f} are delivered"
    times = [
        ["  compute", duration(step["compute"]), ""],
        ["  update", duration(step["update"]), ""],
        ["  all-reduce", duration(step["all_reduce"]), sent],
        ["  input", duration(step["input"]), f"{rate} {hosts}, {offered}; beside the other parts"],
        ["  checkpoint", duration(step["checkpoint"]), "of each step, on average"],
        ["  together", duration(step["total"]), f"{record['images_per_second']:,.0f} images/s"],
    ]
    total = f"{duration(record['run_seconds'])} for {record['steps']:,} steps"
    price = f", cost {record['cost']:,.2f}" if "cost" in record else ""
    where = f"{record['chips']:,} x {record['chip']}, {counted(record['devices'], 'device')}"
    images = f"{counted(record['images'], 'image')} at a time in {record['dtype']}"
    return "\n".join(
        [
            f"model: {record['model']}, {record['parameters']:,} parameters, "
            f"{with_prefix(record['macs'], 'MACs')} per image forward",
            f"compute: {with_prefix(flops, 'FLOPs')} per step, {record['exaflops']:,.4g} exaFLOPs "
            f"for all {record['steps']:,} steps",
            f"memory of each device in GB, {images}:",
            *aligned(rows, left=(0,)),
            f"activations of {counted(record['images'], 'image')} in GB:",
            *_activation_rows(record["activations"]),
            "largest number of images at a time on a device:",
            *_largest_rows(record["largest_batch"]),
            f"step on {where}:",
            *aligned(times, left=(0, 2)),
            f"run: {total}, {record['core_days']:,.4g} core-days{price}",
            *assumption_lines(record["assumptions"]),
        ]
    )


def scaling_text(records) -> str:
    """The time of a step for several numbers of chips, each with a `plan_record`."""
    first = records[0]
    header = ["chips", "devices", "micro-batches", "images", "compute", "update", "all-reduce"]
    header += ["input", "checkpoint", "step", "images/s", "computing", "core-days"]
    header += ["cost"] * ("cost" in first)
    rows = [
        [
            f"{record['chips']:,}",
            f"{record['devices']:,}",
            f"{record['accumulate_steps']:,}",
            f"{record['images']:,}",
            *(f"{1000 * seconds:,.2f}" for seconds in record["step"].values()),
            f"{record['images_per_second']:,.0f}",
            f"{100 * record['step']['compute'] / record['step']['total']:.0f} %",
            f"{record['core_days']:,.4g}",
            *([f"{record['cost']:,.2f}"] if "cost" in record else []),
        ]
        for record in records
    ]
    return "\n".join(
        [
            f"{first['model']} in {first['dtype']}, batches of {first['batch_size']:,}, on "
            f"{first['chip']}; times of a step in ms, images at a time on a device:",
            *aligned([header, *rows], left=()),
            *assumption_lines(first["assumptions"]),
        ]
    )


def paper_text(record) -> str:
    """The result of `paper_costs` for people."""
    header = ["model", "data", "epochs"]
    table_6 = [
        [*_named(row), f"{row['formula']:,.1f}", f"{row['cost']:,}", f"{row['ratio']:.3f}"]
        for row in record["table_6"]
    ]
    table_2 = [
        [
            *_named(row),
            f"{row['exaflops']:,.1f}",
            f"{row['cost']:,}",
            f"{100 * row['utilization']:.1f} %",
        ]
        for row in record["table_2"]
    ]
    return "\n".join(
        [
            "table 6: exaFLOPs of the formula (docs/paper.md L.3) and of the paper",
            *aligned([[*header, "formula", "paper", "paper / formula"], *table_6], left=(0, 1)),
            "",
            "table 2: utilization of TPU v3 (61.5 TFLOP/s per core) that its core-days imply",
            *aligned([[*header, "exaFLOPs", "core-days", "utilization"], *table_2], left=(0, 1)),
        ]
    )


def assumption_lines(assumptions) -> list[str]:
    """The assumptions of a plan, as lines of text."""
    used = {
        "utilization": "of the peak is reached in forward and backward passes",
        "link_utilization": "of the rates of links and networks is reached",
        "message_us": "microseconds for a message between chips",
        "usable_memory": "of the memory may be filled",
        "storage_gb_per_s": "GB/s for checkpoints",
        "input_rate": "images/s from each host",
    }
    lines = [
        f"  --{name}={assumptions[name]:g}: {meaning}"
        for name, meaning in used.items()
        if assumptions[name] is not None
    ]
    if assumptions["input_rate"] is None:
        lines.append("  the hosts deliver as many images as are needed")
    lines.append("  the all-reduce and the update overlap with nothing; evaluations take no time")
    return ["assumed (docs/scaling.md):", *lines]


def duration(seconds) -> str:
    """A time with three digits and the largest unit that it reaches, such as "2.05 s"."""
    size, unit = next((x for x in _UNITS if seconds >= x[0]), _UNITS[-1])
    return f"{seconds / size:,.3g} {unit}"


def _cost(plan, price):
    return price * plan.chips * plan.run_time / 3600


def _named(row):
    return [row["model"], row["data"], str(row["epochs"])]


def _variants(config):
    """The configuration with each choice of `model.recompute` that its family has."""
    if not hasattr(config, "recompute"):
        return {"none": config}
    return {name: config.replace(recompute=name) for name in get_args(Recompute)}


def _activations(plan):
    """Bytes by `model.recompute` and dtype, for the images of the plan."""
    compiled = is_compiled(plan.chip)
    return {
        name: {
            dtype: cost.activation_bytes(config, plan.sizes.images, dtype, compiled=compiled)
            for dtype in get_args(Dtype)
        }
        for name, config in _variants(plan.config).items()
    }


def _largest_batches(plan, others):
    """Largest batch of a device by chip, `model.recompute` and dtype; None: no such dtype."""
    found = []
    for chip in [*chip_table().values(), *others]:
        images = {
            name: {dtype: _largest(plan, config, chip, dtype) for dtype in get_args(Dtype)}
            for name, config in _variants(plan.config).items()
        }
        found.append({"chip": chip.name, "memory": chip.device_memory, "images": images})
    return found


def _largest(plan, config, chip, dtype):
    if getattr(chip.teraflops, dtype) is None:
        return None
    model = dataclasses.replace(plan.experiment.model, dtype=dtype)
    experiment = dataclasses.replace(plan.experiment, model=model)
    return largest_batch(experiment, config, chip, plan.assumptions, plan.devices)


def _activation_rows(activations):
    rows = [
        [f"  model.recompute={name}", *(f"{size / 1e9:,.3f}" for size in sizes.values())]
        for name, sizes in activations.items()
    ]
    return aligned([["", *get_args(Dtype)], *rows], left=(0,))


def _largest_rows(batches):
    """Rows by chip; both 16-bit types take the same memory, and a chip may have one of them."""
    rows = []
    for entry in batches:
        row = [f"  {entry['chip']}", f"{entry['memory'] / 1e9:,.1f} GB"]
        for images in entry["images"].values():
            halves = [images[name] for name in ("mixed_bfloat16", "mixed_float16")]
            half = next((count for count in halves if count is not None), None)
            row += ["-" if x is None else f"{x:,}" for x in (images["float32"], half)]
        rows.append(row)
    names = [
        f"{name}{', recomputed' * (recompute == 'blocks')}"
        for recompute in batches[0]["images"]
        for name in ("float32", "16 bits")
    ]
    return aligned([["", "memory", *names], *rows], left=(0,))
