"""The compiled ops beside the same math in plain TensorFlow, and beside PyTorch's attention.

For every row, outputs and gradients (for a training step the loss) are first checked to be equal.
Then the implementations are timed in turn, each with untimed calls for 30 ms and one timed call.
This repeats --rounds times, at most 12 times for models. A row prints the best and the median time,
the spread (the middle half of the times as a fraction of the median), and the fraction of the FMA
peak of these threads, which is measured right after. Ratios above 1 mean that the compiled ops are
faster. PyTorch runs in a separate process in the environment .venv-peers, if `make peers` has made
it. Each number of threads runs in a separate process, because it is set once per process.

usage: python -m benchmarks.bench_ops [--threads 1 2] [--rounds 30] [--only attention ...]
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.peers.peak import peak_rates
from benchmarks.peers.systems import choose_peak

ROOT = pathlib.Path(__file__).parent.parent
PEERS = ROOT / ".venv-peers" / "bin" / "python"
# Seconds of untimed calls before each timed one.
WARM_UP = 0.03
GROUPS = ("attention", "axial", "patches", "models")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rounds < 2:
        parser.error(f"--rounds must be at least 2. Received: {arguments.rounds}.")
    if arguments.child:
        return run(arguments.threads[0], arguments.rounds, arguments.only)
    options = ["--rounds", str(arguments.rounds), "--only", *arguments.only, "--child"]
    for threads in arguments.threads:
        command = [sys.executable, "-m", "benchmarks.bench_ops", "--threads", str(threads)]
        subprocess.run([*command, *options], cwd=ROOT, check=True)


class Torch:
    """PyTorch in a separate process; false if its environment is missing."""

    def __init__(self, threads):
        self._threads, self._process = threads, None
        if PEERS.exists():
            self._process = subprocess.Popen(
                [PEERS, pathlib.Path(__file__).with_name("torch_attention.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )

    def __bool__(self):
        return self._process is not None

    def ask(self, **request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def load(self, qkv, heads, dtype, backward):
        """Prepares attention; returns `[out]` or `[out, d_qkv]`, float32."""
        import numpy as np

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "qkv.npy")
            np.save(path, qkv)
            self.ask(load=path, heads=heads, dtype=dtype, backward=backward, threads=self._threads)
            path = os.path.join(folder, "results.npz")
            self.ask(save=path)
            with np.load(path) as results:
                return list(results.values())

    def time(self):
        seconds = self.ask(warm_up=WARM_UP)["seconds"]
        # PyTorch's threads spin for some milliseconds after their work: keep this out of the next
        # timing.
        time.sleep(0.05)
        return seconds


def _time(call):
    """Seconds of one call after warm-up calls: threads are awake, memory is mapped."""
    begin = time.perf_counter()
    while time.perf_counter() < begin + WARM_UP:
        call()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def peak(threads):
    """float32 operations a second of this many threads, on the CPUs of this process."""
    return choose_peak(peak_rates(threads, os.sched_getaffinity(0)), "float32")[1]


class Table:
    """Runs and prints rows; `rows` are their numbers."""

    def __init__(self, threads, rounds):
        self.threads, self.rounds, self.rows = threads, rounds, []

    def row(self, name, ours, theirs, operations, wanted, torch=None, most_rounds=None):
        """Times two or three implementations in turn.

        Args:
            name: name of the row.
            ours, theirs: functions without arguments that return when they are done.
            operations: multiplications and additions of the work.
            wanted: claimed ratio to plain TensorFlow, for two threads.
            torch: optional `Torch`, loaded with the same work.
            most_rounds: maximum rounds of a slow row.
        """
        candidates = {"ours": lambda: _time(ours), "tensorflow": lambda: _time(theirs)}
        if torch:
            candidates["pytorch"] = torch.time
        seconds = {key: [] for key in candidates}
        for _ in range(2):
            ours(), theirs()
        for turn in range(min(self.rounds, most_rounds or self.rounds)):
            # The first one changes, so that none always finds the same caches.
            keys = list(candidates)
            for key in keys[turn % len(keys) :] + keys[: turn % len(keys)]:
                seconds[key].append(candidates[key]())
        row = {"name": name, "threads": self.threads, "wanted": wanted}
        for key, times in seconds.items():
            low, median, high = statistics.quantiles(times, n=4)
            row[key] = {
                "best_ms": min(times) * 1e3,
                "median_ms": median * 1e3,
                "spread": (high - low) / median,
            }
        row["of_peak"] = operations / min(seconds["ours"]) / peak(self.threads)
        print(self._text(row), flush=True)
        self.rows.append(row)

    @staticmethod
    def _text(row):
        line = f"{row['name']:36} {row['threads']}"
        for key in ("ours", "tensorflow", "pytorch"):
            if key in row:
                numbers = row[key]
                line += f"  {key} {numbers['best_ms']:8.2f} {numbers['median_ms']:8.2f} ms"
                line += f" {numbers['spread']:4.0%}"
            if key in row and key != "ours":
                best, median = (
                    row[key][which] / row["ours"][which] for which in ("best_ms", "median_ms")
                )
                line += f" x{best:4.2f} x{median:4.2f}"
        wanted = f"  (wanted x{row['wanted']})" if row["wanted"] else ""
        return f"{line}  {row['of_peak']:4.0%} of peak{wanted}"


def run(threads, rounds, groups):
    import tensorflow as tf

    import custom_ops
    from benchmarks import op_rows
    from pipelines.distribution import onednn

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    if not custom_ops.is_compiled():
        sys.exit(f"error: the compiled library is not used: {custom_ops.describe()['reason']}")
    print(
        f"\n{threads} threads, {custom_ops.describe()['isas']['chosen']}, TensorFlow "
        f"{tf.__version__} with{'' if onednn.is_on() else 'out'} oneDNN, FMA peak "
        f"{peak(threads) / 1e9:.0f} GFLOP/s; best, median, spread; ratios of the best and of the "
        "medians"
    )
    table, torch = Table(threads, rounds), Torch(threads)
    if not torch:
        print("PyTorch: not run, .venv-peers is missing (make peers)")
    for group in groups:
        getattr(op_rows, group)(table, torch)
    print(json.dumps(table.rows))


if __name__ == "__main__":
    main()
