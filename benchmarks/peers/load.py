"""A server under load: concurrent clients, each with one image at a time.

Every client is a thread which sends its image again as soon as it has an answer: this project's
export through `serving_uint8`, OpenVINO through an infer request of its own. The last logits of
each client are compared with the reference implementation's. The systems take turns of --seconds;
the processes of the others are stopped. Prints the median and the 99th percentile of
the latency, images per second, and resident memory at the beginning and end of each turn. Memory is
flat if the median of a turn's last quarter is at most 1 % above that of its second; that of this
project's exports must be. Exit code 1: it is not, or a system did not run.

usage: make bench-peers-load ARGS="--model ViT-B/16 --seconds 30"
"""

import argparse
import json
import pathlib
import statistics
import sys

import numpy as np

from benchmarks.peers.files import prepare
from benchmarks.peers.machine import choose_cpus, machine
from benchmarks.peers.processes import Worker, WorkerError, check_load, check_logits
from benchmarks.peers.systems import ISAS, SYSTEMS, chosen_systems

DEFAULT = ("ours-fused", "openvino", "openvino-throughput")
# Largest growth of the memory in a turn, as a fraction.
MOST_GROWTH = 0.01


def main():
    arguments = parse(sys.argv[1:])
    lines = list(machine(arguments.isa))
    print(*lines, sep="\n", flush=True)
    folder = prepare(arguments.model, arguments.activation, arguments.systems)
    turns, skipped = [], []
    try:
        measure(arguments, folder, turns, skipped)
    except KeyboardInterrupt:
        skipped.append("the rest: interrupted")
    finally:
        print("", *(f"not run: {line}" for line in skipped), sep="\n")
        if arguments.json:
            names = ("model", "clients", "threads", "seconds")
            found = {"machine": lines, "settings": {x: getattr(arguments, x) for x in names}}
            found |= {"skipped": skipped, "turns": turns}
            arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    return exit_code(turns, skipped)


def measure(arguments, folder, turns, skipped):
    """Runs the turns; extends the list of their rows, and of lines about skipped turns."""
    workers, running = {}, []
    try:
        for name, system in arguments.systems.items():
            try:
                workers[name] = Worker(system, folder, arguments.threads, arguments.isa)
                check_logits(workers[name], name, folder, batch=1)
            except WorkerError as error:
                skipped.append(f"{name}: {error}")
                continue
            running.append(name)
            print(f"{name}: {workers[name].versions}")
        title = f"{arguments.model}, {arguments.clients} clients, {arguments.threads} threads"
        print(f"\n{title}, {arguments.seconds:g} s a turn", flush=True)
        for turn in range(arguments.rounds):
            for name in list(running):
                try:
                    answer, difference = check_load(
                        workers[name], name, folder, arguments.clients, arguments.seconds
                    )
                except WorkerError as error:
                    running.remove(name)
                    skipped.append(f"{name}, turn {turn + 1}: {error}")
                    continue
                row = {"system": name, "ours": SYSTEMS[name].ours, "turn": turn + 1}
                turns.append(row | summary(**answer) | {"difference": difference})
                print(text(turns[-1]), flush=True)
    finally:
        for worker in workers.values():
            worker.close()


def exit_code(turns, skipped):
    """0 if everything ran, and the memory of this project's exports is flat."""
    flat = all(row["flat"] for row in turns if row["ours"])
    return 0 if turns and flat and not skipped else 1


def summary(latencies, elapsed, memory):
    """The numbers of a turn.

    Args:
        latencies: seconds of each call.
        elapsed: seconds of the turn.
        memory: samples of the resident bytes.
    """
    quarter = len(memory) // 4
    early, late = memory[quarter : 2 * quarter] or memory, memory[-quarter:] or memory
    growth = statistics.median(late) / statistics.median(early) - 1
    return {
        "calls": len(latencies),
        "p50": float(np.percentile(latencies, 50)),
        "p99": float(np.percentile(latencies, 99)),
        "images_per_second": len(latencies) / elapsed,
        "memory_begin": memory[0],
        "memory_end": memory[-1],
        "growth": growth,
        "flat": growth <= MOST_GROWTH,
    }


def text(row):
    return (
        f"{row['system']:26} turn {row['turn']}: p50 {row['p50'] * 1e3:8.1f} ms, p99 "
        f"{row['p99'] * 1e3:8.1f} ms, {row['images_per_second']:7.2f} img/s, {row['calls']} calls, "
        f"memory {row['memory_begin'] / 1e6:,.0f} to {row['memory_end'] / 1e6:,.0f} MB"
        f" ({'flat' if row['flat'] else 'NOT flat'}, {row['growth']:+.2%}), "
        f"difference {row['difference']:.1e}"
    )


def parse(values):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers.load", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--model", default="ViT-B/16")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2, help="of each system")
    parser.add_argument("--seconds", type=float, default=30, help="of each turn")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each system")
    parser.add_argument(
        "--systems", nargs="+", default=DEFAULT, help=f"some of {', '.join(SYSTEMS)}"
    )
    parser.add_argument("--activation", choices=["gelu_tanh", "gelu_erf"], default="gelu_tanh")
    parser.add_argument("--isa", choices=ISAS, help="limit all systems to an instruction set")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path)
    found = parser.parse_args(values)
    for name in ("clients", "threads", "seconds", "rounds"):
        if getattr(found, name) < 1:
            parser.error(f"--{name} must be at least 1. Received: {getattr(found, name)}.")
    try:
        choose_cpus(found.threads)
        found.systems = chosen_systems(found.systems)
    except ValueError as error:
        parser.error(str(error))
    return found


if __name__ == "__main__":
    sys.exit(main())
