"""CPU inference of ViTs beside OpenVINO, ONNX Runtime, PyTorch and Keras Hub.

All systems load the same random weights, made from one published `.npz`, and their logits are
first compared with those of this project's reference implementation. Exports of this project are
called with uint8 images (`serving_uint8`, preprocessing and all outputs included), the others with
float input that is normalised beforehand. In every round, each system in turn runs for --seconds,
after an untimed call unless that takes as long, while the processes of all others are stopped; then
the peak of the processor is measured. Processes are pinned to as many CPUs as there are threads.

Rates count the operations that a system executes. Ratios compare with the fastest other system of
the same dtype; above 1, the system of this line is faster. Differences are fractions of the largest
logit. Files are kept in build/peers. Exit code 1: something requested did not run.

usage: make bench-peers ARGS="--models ViT-B/16 --batches 1 8 --threads 2"
"""

import argparse
import json
import pathlib
import sys
import time

from tests.benchmarks.peers import plot, table
from tests.benchmarks.peers.files import prepare
from tests.benchmarks.peers.machine import choose_cpus, machine
from tests.benchmarks.peers.peak import fastest, peak_rates
from tests.benchmarks.peers.processes import Worker, WorkerError, check_logits
from tests.benchmarks.peers.systems import ISAS, SYSTEMS, chosen_systems

MODELS = ("ViT-Ti/16", "ViT-S/16", "ViT-B/16", "ViT-B/32", "ViT-L/16")
# Takes a minute a round; only with --all.
LONG = {("ViT-L/16", 32)}
MOST_BATCH = 32


def main():
    arguments = parse(sys.argv[1:])
    begin = time.perf_counter()
    lines = list(machine(arguments.isa))
    print(*lines, sep="\n", flush=True)
    results = Results()
    try:
        for name in arguments.models:
            folder = prepare(name, arguments.activation, arguments.systems)
            for threads in arguments.threads:
                Run(name, folder, threads, arguments, results).measure()
    except KeyboardInterrupt:
        results.skip("the rest: interrupted")
    finally:
        used = ", ".join(f"{package} {version}" for package, version in results.versions.items())
        print("", f"versions: {used or 'no system ran'}", *results.skipped, sep="\n")
        write(arguments, lines, results)
    print(f"{time.perf_counter() - begin:.0f} s")
    return 0 if results.rows and results.complete else 1


class Results:
    """What all runs have measured so far.

    Attributes:
        rows: the rows of the tables.
        versions: package -> version, of all systems that ran.
        skipped: one line for everything that did not run.
        complete: whether everything ran that was requested.
    """

    def __init__(self):
        self.rows, self.versions, self.skipped, self.complete = [], {}, [], True

    def skip(self, what, requested=True):
        self.skipped.append(f"not run: {what}")
        self.complete = self.complete and not requested


class Run:
    """The measurements of one model with one number of threads."""

    def __init__(self, name, folder, threads, arguments, results):
        self._name, self._folder, self._threads = name, folder, threads
        self._arguments, self._results = arguments, results
        self._fields = json.loads((folder / "fields.json").read_text())
        self._workers = {}

    def measure(self):
        """Measures all batches, and prints a table of each."""
        try:
            for name, system in self._arguments.systems.items():
                try:
                    worker = Worker(system, self._folder, self._threads, self._arguments.isa)
                except WorkerError as error:
                    self._skip(name, error)
                    continue
                self._workers[name] = worker
                self._results.versions |= worker.versions
            for batch in self._arguments.batches:
                if (self._name, batch) in LONG and not self._arguments.all:
                    self._skip(f"batch {batch}", "takes long; --all runs it", requested=False)
                    continue
                self._measure_batch(batch)
        finally:
            for worker in self._workers.values():
                worker.close()

    def _measure_batch(self, batch):
        """Adds the rows of a batch, also if it is interrupted after some rounds."""
        differences, rates = self._verify(batch), []
        seconds = {name: [] for name in differences}
        if not seconds:
            return
        try:
            for turn in range(self._arguments.rounds):
                self._time_round(batch, turn, seconds)
                rates.append(peak_rates(self._threads, choose_cpus(self._threads)))
        finally:
            if rates and seconds:  # Of complete rounds, and of systems that did not fail.
                self._add_rows(batch, differences, seconds, fastest(rates))

    def _time_round(self, batch, turn, seconds):
        """Extends the times of each system; drops a system that fails."""
        names = list(seconds)
        # The first one changes, so that none always follows the same one.
        first = turn % len(names) if names else 0
        for name in names[first:] + names[:first]:
            try:
                answer = self._workers[name].ask(seconds=self._arguments.seconds)
            except WorkerError as error:
                del seconds[name]
                self._skip(f"{name}, batch {batch}", error)
                continue
            seconds[name] += answer["seconds"]

    def _add_rows(self, batch, differences, seconds, peaks):
        rows = []
        for name, times in seconds.items():
            system = SYSTEMS[name]
            rows.append(
                {
                    "model": self._name,
                    "batch": batch,
                    "threads": self._threads,
                    "system": name,
                    "dtype": system.dtype,
                    "ours": system.ours,
                    "macs": self._fields["fused_macs" if system.fused else "macs"],
                    "difference": differences[name],
                    "seconds": times,
                    "peaks": peaks,
                }
            )
        table.summarize(rows, peaks, self._arguments.isa)
        print(table.text(rows, peaks), flush=True)
        self._results.rows += rows

    def _verify(self, batch):
        """Prepares this batch everywhere; the difference of the logits of each system."""
        found = {}
        for name, worker in self._workers.items():
            try:
                found[name] = check_logits(worker, name, self._folder, batch)
            except WorkerError as error:
                self._skip(f"{name}, batch {batch}", error)
        return found

    def _skip(self, what, reason, requested=True):
        what = f"{self._name}, {self._threads} threads, {what}: {reason}"
        self._results.skip(what, requested)


def parse(values):
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.peers", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="MODEL")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each system in a round")
    parser.add_argument(
        "--systems", nargs="+", help=f"some of {', '.join(SYSTEMS)}; `ours` for ours-...; `all`"
    )
    parser.add_argument("--activation", choices=["gelu_tanh", "gelu_erf"], default="gelu_tanh")
    parser.add_argument("--isa", choices=ISAS, help="limit all systems to an instruction set")
    parser.add_argument("--all", action="store_true", help="also ViT-L/16 with batches of 32")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path)
    parser.add_argument("--plot", metavar="FILE", type=pathlib.Path, help=".png or .svg")
    found = parser.parse_args(values)
    for name in ("batches", "threads"):
        if min(getattr(found, name)) < 1:
            parser.error(f"--{name} must be at least 1. Received: {getattr(found, name)}.")
    if max(found.batches) > MOST_BATCH:
        parser.error(f"--batches must be at most {MOST_BATCH}. Received: {found.batches}.")
    if found.rounds < 1:
        parser.error(f"--rounds must be at least 1. Received: {found.rounds}.")
    try:
        for threads in found.threads:
            choose_cpus(threads)
        found.systems = chosen_systems(found.systems)
    except ValueError as error:
        parser.error(str(error))
    return found


def write(arguments, lines, results):
    """Writes the JSON and the plot, also of a run that was interrupted."""
    if arguments.json:
        settings = {"isa": arguments.isa, "activation": arguments.activation}
        settings |= {"rounds": arguments.rounds, "seconds": arguments.seconds}
        found = {"machine": lines, "versions": results.versions, "settings": settings}
        found |= {"skipped": results.skipped, "rows": results.rows}
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")
    if arguments.plot and results.rows:
        plot.draw(results.rows, arguments.plot)


if __name__ == "__main__":
    sys.exit(main())
