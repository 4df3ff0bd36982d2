"""The stages of the encoder op for CPUs: time, rate, and fraction of the peak.

A stage is one kind of layer in all blocks, each with its own weights: `encoder_stages.cc` runs it
alone, at the sizes and in the parts that the encoder chooses, after a check of the results. `sum`
are all stages; `encoder` is the op without TensorFlow, in memory that is used again, as it is by
the stages, and then in new memory for each call, as in the op. "rows: first" computes only token 0
of each image in the last block, as a classifier does.

All settings are measured in turn, and in each the stages in turn. Rounds repeat until the time is
up; there is at least one. The peak of the processor is measured at the end of each round. `share`
is the fraction of the sum of the best times.

usage: python -m benchmarks.bench_encoder [--models ViT-B/16] [--batches 1 8] [--threads 1 2]
    [--precisions float32 bfloat16] [--isa avx512 ...] [--seconds 60] [--json FILE]
"""

import argparse
import collections
import dataclasses
import itertools
import json
import pathlib
import statistics
import time

from benchmarks.peers.files import run
from benchmarks.peers.machine import choose_cpus, machine
from benchmarks.peers.operations import operations, tokens_of
from benchmarks.peers.peak import fastest, peak_rates
from benchmarks.peers.systems import UNITS, choose_peak
from benchmarks.peers.table import heading, spread
from custom_ops.building import build_plan, ninja_build
from custom_ops.building.build_plan import Unit
from custom_ops.building.ninja_build import Product
from tests.checkout import ROOT
from vit_tf.config import VARIANTS, get_variant

BUILD = ROOT / "build" / "encoder_stages"
STAGES = ("layer_norm", "qkv", "attention", "out", "fc1", "fc2")
WHOLE = ("encoder", "encoder, new memory")
PRECISIONS = ("float32", "bfloat16")
ISAS = ("avx2", "avx512", "avx512_bf16", "amx")
# Seconds of one setting in one round; each stage runs at least once.
TURN = 0.5


@dataclasses.dataclass(frozen=True)
class Setting:
    """The settings of one run of the program; `isa` is empty for the best one."""

    model: str
    batch: int
    threads: int
    precision: str
    isa: str


def main():
    arguments = parse()
    lines = list(machine(", ".join(filter(None, arguments.isa))))[:2]
    print(*lines, sep="\n", flush=True)
    program, settings = build(), settings_of(arguments)
    begin = time.perf_counter()
    seconds, peaks = collections.defaultdict(list), collections.defaultdict(list)
    for done in itertools.count(1):
        # The first one changes, so that none always follows the same one.
        first = (done - 1) % len(settings)
        for setting in settings[first:] + settings[:first]:
            seconds[setting].append(measure(program, setting))
        for threads in arguments.threads:
            peaks[threads].append(peak_rates(threads, choose_cpus(threads)))
        spent = time.perf_counter() - begin
        if spent + spent / done > arguments.seconds:
            break
    rows = []
    for setting in settings:
        for which in ("all", "first"):
            found = rows_of(setting, which, seconds[setting], fastest(peaks[setting.threads]))
            print(text(found), flush=True)
            rows += found
    if arguments.json:
        found = {"machine": lines, "rounds": done, "rows": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\nrounds: {done}; {time.perf_counter() - begin:.0f} s")


def parse():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_encoder", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--models", nargs="+", default=["ViT-B/16"], choices=models(), metavar="MODEL"
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS, choices=PRECISIONS)
    parser.add_argument("--isa", nargs="+", default=[""], choices=ISAS, help="default: the best")
    parser.add_argument("--seconds", type=float, default=60, help="no new round would end later")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path)
    found = parser.parse_args()
    for name in ("batches", "threads"):
        if min(getattr(found, name)) < 1:
            parser.error(f"--{name} must be at least 1. Received: {getattr(found, name)}.")
    try:
        for threads in found.threads:
            choose_cpus(threads)
    except ValueError as error:
        parser.error(str(error))
    return found


def models():
    """The variants whose cost is their encoder's: ViTs without a stem, and none axial."""
    configs = {name: get_variant(name) for name in VARIANTS}
    return sorted(
        name
        for name, config in configs.items()
        if config.family == "vit" and config.stem is None and not config.axial
    )


def settings_of(arguments):
    return [
        Setting(*values)
        for values in itertools.product(
            arguments.models,
            arguments.batches,
            arguments.threads,
            arguments.precisions,
            arguments.isa,
        )
    ]


def build():
    """Compiles and links the program where sources have changed; returns its path."""
    compiler, flags = build_plan.find_compiler(), build_plan.sources()["TEST_COPTS"]
    source = "benchmarks/encoder_stages.cc"
    ours = Unit(f"../{source}", "encoder_stages", tuple(flags))
    kernels = build_plan.plan({}, compiler)["kernels"]
    objects = ninja_build.compile_units(compiler, kernels, ROOT / "build" / "ops").values()
    program = Product(BUILD / "program", (ours,), ("-pthread",), (*map(str, objects),))
    files = [source, *(path.relative_to(ROOT) for path in (ROOT / "tests" / "cc").glob("*.h"))]
    BUILD.mkdir(parents=True, exist_ok=True)
    ninja_build.link(compiler, [program], print, place=BUILD, files=files)
    program.path.chmod(0o755)
    return program.path


def measure(program, setting):
    """Times of one run: dict from "all" and "first" to dicts from stages to seconds; "isa"."""
    config = get_variant(setting.model)
    sizes = [setting.batch, tokens_of(config), config.hidden_size, config.heads]
    sizes += [config.mlp_size, config.layers]
    options = [setting.precision, setting.isa, setting.threads, TURN]
    cpus = ",".join(map(str, choose_cpus(setting.threads)))
    return json.loads(run("taskset", "-c", cpus, str(program), *map(str, [*sizes, *options])))


def rows_of(setting, which, runs, peaks):
    """The rows of one setting: the stages, their sum, and the encoder.

    `best` and `median` are seconds, `flops` operations per second of the best time, `of_peak` the
    same as a fraction of the peak, both None for the layer norms; `share` is the best time as a
    fraction of the sum.

    Args:
        setting: a `Setting`.
        which: "all" or "first".
        runs: results of `measure`.
        peaks: operations per second by unit, of this number of threads.
    """
    work = operations(get_variant(setting.model), setting.batch, which == "first")
    isa = runs[0]["isa"]
    unit, peak = choose_peak(peaks, setting.precision, isa if isa in UNITS else None)
    rows = []
    for stage in (*STAGES, *WHOLE):
        seconds = [one for measured in runs for one in measured[which][stage]]
        row = dataclasses.asdict(setting) | {"isa": isa, "rows": which, "stage": stage}
        row |= {"best": min(seconds), "median": statistics.median(seconds)}
        rows.append(row | {"spread": spread(seconds), "work": work.get(stage, sum(work.values()))})
    stages = rows[: len(STAGES)]
    total = stages[0] | {"stage": "sum", "spread": None, "work": sum(work.values())}
    total |= {key: sum(row[key] for row in stages) for key in ("best", "median")}
    rows.insert(len(STAGES), total)
    for row in rows:
        work_done = row.pop("work")
        row["flops"] = work_done / row["best"] if work_done else None
        row["of_peak"] = row["flops"] and row["flops"] / peak
        row |= {"unit": unit, "peak": peak, "share": row["best"] / total["best"]}
    return rows


def text(rows):
    """The table of the rows of one setting."""
    first = rows[0]
    title = heading(first["model"], first["batch"], first["threads"])
    lines = [
        f"\n{title}, {first['precision']}, {first['isa']}, rows: {first['rows']}; peak of "
        f"{first['unit']} {first['peak'] / 1e9:,.0f} GFLOP/s",
        f"{'stage':20} {'ms: best':>9} {'median':>9} {'spread':>6} {'share':>6} {'GFLOP/s':>8} "
        f"{'of peak':>7}",
    ]
    for row in rows:
        wide = f"{row['spread']:6.1%}" if row["spread"] is not None else f"{'-':>6}"
        rate = f"{'-':>8} {'-':>7}"
        if row["flops"]:
            rate = f"{row['flops'] / 1e9:8.0f} {row['of_peak']:7.1%}"
        lines.append(
            f"{row['stage']:20} {row['best'] * 1e3:9.3f} {row['median'] * 1e3:9.3f} {wide} "
            f"{row['share']:6.1%} {rate}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
