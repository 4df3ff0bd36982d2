"""How far a run of the benchmark is, and when it will end."""

import datetime
import sys
import time

from benchmarks.peers.table import heading

# Seconds between two lines.
EVERY = 30.0
# Operations a second of a thread, in an estimate of which only the proportions count.
_RATE = 3e10


class Progress:
    """Prints lines to stderr while a run measures, so that stdout has the tables alone.

    The time left follows from the time so far and the operations of the measurements. It leaves out
    that some systems are slower, and that some are timed in one round only.

    Args:
        macs: model -> multiplications for an image.
        measured: `(model, threads, batch)` of every measurement.
        rounds, seconds: of a measurement, as in the driver's options.
    """

    def __init__(self, macs, measured, rounds, seconds):
        self._rounds, self._done, self._shown = rounds, 0.0, time.perf_counter()
        # A turn calls a system at least once, and the check of the logits before it too.
        self._work = {
            (model, threads, batch): max(batch * macs[model] / threads, seconds * _RATE)
            for model, threads, batch in measured
        }
        self._total = (rounds + 1) * sum(self._work.values())
        self._begin = self._shown

    def add(self, model, threads, batch, turn):
        """Counts a round: `turn` is its number, -1 for the check of the logits."""
        self._done += self._work[model, threads, batch]
        now = time.perf_counter()
        if now - self._shown < EVERY:
            return
        self._shown = now
        left = (now - self._begin) * (self._total / self._done - 1)
        last = "logits compared" if turn < 0 else f"round {turn + 1} of {self._rounds}"
        print(
            f"{self._done / self._total:.0%} done, ETA {datetime.timedelta(seconds=round(left))}; "
            f"{heading(model, batch, threads)}: {last}",
            file=sys.stderr,
            flush=True,
        )
