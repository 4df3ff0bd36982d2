"""CPU inference of ViTs beside OpenVINO, ONNX Runtime, PyTorch and Keras Hub.

All systems load the same random weights, made from one published `.npz`, and their logits are
first compared with this project's reference implementation. Exports of this project are
called with uint8 images (`serving_uint8`, preprocessing and all outputs included), the others with
float input that is normalized beforehand. In every round, each system in turn runs for --seconds,
after an untimed call unless that takes as long, while the processes of all others are stopped; then
the peak of the processor is measured. Processes are pinned to as many CPUs as there are threads. A
system that takes more than five times as long as the fastest is timed in the first round only.

Rates count the operations that a system executes. Ratios compare with the fastest other system of
the same dtype; above 1, the system of this line is faster. Differences are fractions of the largest
logit. Files are kept in build/peers. Lines on stderr show the progress. Exit code 1: something
requested did not run.

usage: make bench-peers ARGS="--models ViT-B/16 --batches 1 8 --threads 2"
       make bench-peers ARGS="train --help"
"""

import argparse
import json
import pathlib
import sys
import time

from benchmarks.peers import plot, table, train
from benchmarks.peers.files import prepare
from benchmarks.peers.machine import choose_cpus, machine
from benchmarks.peers.peak import fastest, peak_rates
from benchmarks.peers.processes import Worker, WorkerError, check_logits
from benchmarks.peers.progress import Progress
from benchmarks.peers.systems import ISAS, SYSTEMS, chosen_systems

MODELS = ("ViT-Ti/16", "ViT-S/16", "ViT-B/16", "ViT-B/32", "ViT-L/16")
# Takes a minute a round; only with --all.
LONG = {("ViT-L/16", 32)}
MOST_BATCH = 32
# As a multiple of the fastest: a slower system is not timed again.
SLOW = 5


def main():
    arguments = parse(sys.argv[1:])
    begin = time.perf_counter()
    lines = list(machine(arguments.isa))
    print(*lines, sep="\n", flush=True)
    results = Results()
    try:
        folders = {}
        for name in arguments.models:
            print(f"preparing the files of {name}", file=sys.stderr, flush=True)
            folders[name] = prepare(name, arguments.activation, arguments.systems)
        fields = {x: json.loads((folders[x] / "fields.json").read_text()) for x in folders}
        measured = [
            (name, threads, batch)
            for name in folders
            for threads in arguments.threads
            for batch in arguments.batches
            if not is_left_out(name, batch, arguments)
        ]
        macs = {name: fields[name]["macs"] for name in folders}
        progress = Progress(macs, measured, arguments.rounds, arguments.seconds)
        for name in folders:
            for threads in arguments.threads:
                run = Run(name, folders[name], fields[name], threads, arguments, results, progress)
                run.measure()
    except KeyboardInterrupt:
        results.skip("the rest: interrupted")
    finally:
        used = ", ".join(f"{package} {version}" for package, version in results.versions.items())
        print("", f"versions: {used or 'no system ran'}", *results.skipped, sep="\n")
        write(arguments, lines, results)
    print(f"{time.perf_counter() - begin:.0f} s")
    return 0 if results.rows and results.complete else 1


def is_left_out(name, batch, arguments):
    """Whether a batch of a model takes so long that only `--all` runs it."""
    return (name, batch) in LONG and not arguments.all


class Results:
    """The measurements of all runs so far.

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

    def __init__(self, name, folder, fields, threads, arguments, results, progress):
        self._name, self._folder, self._fields, self._threads = name, folder, fields, threads
        self._arguments, self._results, self._progress = arguments, results, progress
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
                if is_left_out(self._name, batch, self._arguments):
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
        self._progress.add(self._name, self._threads, batch, -1)
        if not seconds:
            return
        try:
            for turn in range(self._arguments.rounds):
                self._time_round(batch, turn, seconds)
                rates.append(peak_rates(self._threads, choose_cpus(self._threads)))
                self._progress.add(self._name, self._threads, batch, turn)
        finally:
            if rates and seconds:  # Complete rounds only, of systems that did not fail.
                self._add_rows(batch, differences, seconds, fastest(rates))

    def _time_round(self, batch, turn, seconds):
        """Extends the times of each system that is not slow; drops a system that fails."""
        best = min((min(times) for times in seconds.values() if times), default=0)
        names = [x for x, times in seconds.items() if not times or min(times) <= SLOW * best]
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
        prog="python -m benchmarks.peers", description=__doc__.partition("\n")[0]
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
    sys.exit(train.main(sys.argv[2:]) if sys.argv[1:2] == ["train"] else main())
