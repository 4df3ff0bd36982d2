"""Training steps of ViTs on a CPU beside Keras Hub and PyTorch (timm).

All systems start with the same weights; the losses of their first three steps are compared before
anything is timed. In every round, each system in turn trains for --seconds on one batch, while the
processes of all others are stopped. A step: see `trainers.py`. Ratios compare with the fastest
other system of the same dtype; above 1, this project is faster. Exit code 1: something requested
did not run.

usage: make bench-peers ARGS="train --models ViT-S/16 --batches 8 --threads 2"
"""

import argparse
import json
import pathlib
import statistics
import sys

import numpy as np

from benchmarks.peers.files import prepare
from benchmarks.peers.machine import choose_cpus, machine
from benchmarks.peers.processes import Worker, WorkerError
from benchmarks.peers.systems import System
from benchmarks.peers.table import heading, spread

_KINDS = {
    "ours": ("trainers.Ours", {}),
    "keras-hub": ("trainers.KerasHub", {}),
    "pytorch": ("trainers.PyTorch", {}),
    "pytorch-compile": ("trainers.PyTorch", {"compile": True}),
}
# Largest difference of a loss from that of the first float32 system, as a fraction.
TOLERANCE = {"float32": 1e-3, "bfloat16": 3e-2}


def main(values):
    arguments = parse(values)
    lines = list(machine(None))
    print(*lines, sep="\n", flush=True)
    rows, skipped = [], []
    try:
        for model in arguments.models:
            folder = prepare(model, "gelu_tanh", {})
            for threads in arguments.threads:
                for batch in arguments.batches:
                    rows += measure(arguments, model, folder, threads, batch, skipped)
    except KeyboardInterrupt:
        skipped.append("the rest: interrupted")
    print("", *(f"not run: {line}" for line in skipped), sep="\n")
    if arguments.json:
        found = {"machine": lines, "skipped": skipped, "rows": rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if rows and not skipped else 1


def measure(arguments, model, folder, threads, batch, skipped):
    """The rows of one model, number of threads and batch, which are printed too."""
    workers, losses, title = {}, {}, heading(model, batch, threads)
    try:
        for name, system in systems(arguments, model).items():
            try:
                workers[name] = Worker(system, folder, threads)
                losses[name] = losses_of(workers[name], folder, batch)
            except WorkerError as error:
                skipped.append(f"{title}, {name}: {error}")
                if name in workers:
                    workers.pop(name).close()
        check(title, losses)
        seconds = {name: [] for name in workers}
        for turn in range(arguments.rounds):
            names = list(workers)
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                seconds[name] += workers[name].ask(seconds=arguments.seconds)["seconds"]
            print(f"{title}: round {turn + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
        rows = [
            {
                "model": model,
                "batch": batch,
                "threads": threads,
                "system": name,
                "dtype": name.rpartition(" ")[2],
                "versions": workers[name].versions,
                "losses": losses[name].tolist(),
                "seconds": times,
            }
            for name, times in seconds.items()
        ]
    finally:
        for worker in workers.values():
            worker.close()
    print(text(title, rows), flush=True)
    return rows


def systems(arguments, model):
    """Name -> row, of all systems and dtypes."""
    found = {}
    for dtype in arguments.dtypes:
        for name in arguments.systems:
            kind, options = _KINDS[name]
            given = options | {"model": model, "ema": arguments.ema}
            found[f"{name} {dtype}"] = System(kind, dtype, given, ours=name == "ours")
    return found


def losses_of(worker, folder, batch):
    """The losses of the first three steps."""
    path = folder / "losses.npy"
    try:
        worker.ask(images=str(folder / "images.npy"), batch=batch, logits=str(path))
        return np.load(path)
    finally:
        path.unlink(missing_ok=True)


def check(title, losses):
    """Ends the program if a system trains something else."""
    expected = next(iter(losses.values()), None)
    for name, found in losses.items():
        difference = np.abs(found / expected - 1).max()
        if not difference <= TOLERANCE[name.rpartition(" ")[2]]:
            sys.exit(f"error: {title}: the losses of {name} are {found}, not {expected}.")


def text(title, rows):
    """The table of one model, batch and number of threads."""
    lines = [
        f"\n{title}",
        f"{'system':26} {'img/s: best':>11} {'median':>8} {'spread':>7}  to best peer",
    ]
    for row in rows:
        own = [row["batch"] / pick(row["seconds"]) for pick in (min, statistics.median)]
        peers = [
            x for x in rows if x["dtype"] == row["dtype"] and not x["system"].startswith("ours")
        ]
        ratio = ""
        if row["system"].startswith("ours") and peers:
            best = [
                max(x["batch"] / pick(x["seconds"]) for x in peers)
                for pick in (min, statistics.median)
            ]
            ratio = " ".join(f"x{one / other:.2f}" for one, other in zip(own, best, strict=True))
        rate = f"{own[0]:11.2f} {own[1]:8.2f} {spread(row['seconds']):7.1%}"
        lines.append(f"{row['system']:26} {rate}  {ratio}".rstrip())
    return "\n".join(lines)


def parse(values):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers train", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--models", nargs="+", default=("ViT-Ti/16", "ViT-S/16", "ViT-B/32"))
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", choices=TOLERANCE, default=list(TOLERANCE))
    parser.add_argument("--systems", nargs="+", choices=_KINDS, default=list(_KINDS))
    parser.add_argument("--ema", action="store_true", help="with an average of the weights")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each system in a round")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path)
    found = parser.parse_args(values)
    if not all(1 <= batch <= 32 for batch in found.batches):
        parser.error(f"--batches must be from 1 to 32. Received: {found.batches}.")
    if found.rounds < 1:
        parser.error(f"--rounds must be at least 1. Received: {found.rounds}.")
    try:
        for threads in found.threads:
            choose_cpus(threads)
    except ValueError as error:
        parser.error(str(error))
    # The first one, in float32, is what the losses of the others are compared with.
    found.dtypes = sorted(found.dtypes, reverse=True)
    return found
