"""Runs a job of several workers on this machine, and starts it again after a worker is lost."""

import contextlib
import logging
import signal
import time

from pipelines.distribution.local_workers import LocalWorkers
from pipelines.distribution.signals import Signals
from pipelines.errors import (
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    EXIT_WORKER_LOST,
    Interrupted,
    RunError,
    UserError,
    WorkerError,
    counted,
)

_log = logging.getLogger(__name__)

# Seconds between two looks at the workers.
_POLL = 0.02
# The longest pause before a restart, in seconds. An attempt of ten times as long was no failed
# start, so the pause after it is the first one again.
_LONGEST_PAUSE = 60.0
_AGAIN = "Start the same command again to go on from the newest checkpoint"


def launch(command, workers, *, restarts=10, pause=1.0, grace=60.0):
    """Runs a job until all workers have ended with exit code 0.

    If a worker is killed by a signal, or ends because another one was lost (exit code 76), all are
    started again with the same command, which goes on from the newest checkpoint.

    Args:
        command: the command line of each worker; `TF_CONFIG` tells it the others and its index.
        workers: number of workers.
        restarts: most restarts.
        pause: seconds before the first restart. Each further pause is twice as long, at most a
            minute.
        grace: seconds in which the workers must end after SIGTERM, and after one is lost; then they
            are killed.

    Raises:
        UserError: a worker ended with exit code 2; its message.
        RunError: a worker failed for another reason; its message.
        WorkerError: workers were lost more often than `restarts`.
        Interrupted: after SIGTERM or Ctrl-C, of this process or of a worker.
        KeyboardInterrupt: they came before a worker had anything to save, or a second time.
    """
    following, done = pause, 0
    with Signals() as signals:
        while True:
            begin = time.monotonic()
            lost = _attempt(command, workers, grace, signals)
            if lost is None:
                return
            if done == restarts:
                raise WorkerError(
                    f"{lost}, and --restarts={restarts} allows no further start. {_AGAIN}."
                )
            done += 1
            if time.monotonic() - begin > 10 * _LONGEST_PAUSE:
                following = pause
            _log.info(f"{lost}: restart {done} of at most {restarts} in {following:g} s")
            _pause(following, signals)
            following = min(2 * following, _LONGEST_PAUSE)


def _pause(seconds, signals):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            signals.check()
        except Interrupted:
            raise Interrupted(f"Interrupted between two attempts. {_AGAIN}.") from None
        time.sleep(_POLL)


def _attempt(command, workers, grace, signals):
    """Runs all workers once. Returns the reason for a restart, or None if the job is done."""
    with contextlib.closing(LocalWorkers(command, workers)) as job:
        _log.info(f"started {counted(workers, 'worker')}")
        interrupted, deadline = False, None
        while job.poll():
            stop = not interrupted and (_is_signaled(signals) or job.output.is_closed)
            interrupted |= stop
            failed = _first_failed(job)
            if not stop and deadline is None and failed and failed.code != EXIT_INTERRUPTED:
                # Workers that have lost another one find it out themselves.
                stop = not _is_loss(failed)
                deadline = time.monotonic() + grace
            if stop:
                job.terminate()
                deadline = time.monotonic() + grace
            if deadline is not None and time.monotonic() > deadline:
                job.close()
            time.sleep(_POLL)
        return _judge(job, interrupted, grace)


def _is_signaled(signals):
    try:
        signals.check()
    except Interrupted:
        return True
    return False


def _first_failed(job):
    """The worker whose end is the reason for the end of the job; None if none has failed."""
    wrong = [worker for worker in job.ended if worker.code == EXIT_USAGE]
    return next(iter(wrong or [worker for worker in job.ended if worker.code]), None)


def _is_loss(worker):
    return worker.code < 0 or worker.code == EXIT_WORKER_LOST


def _judge(job, interrupted, grace):
    """As `_attempt`, of a job that has ended; shows the errors that the result does not have."""
    failed = _first_failed(job)
    explains = failed is not None and failed.code > 0 and not _stopped(failed)
    text = _message(job, failed) if explains else None
    for worker in job.workers:
        # Others may name the worker whose message it is.
        if not (text and text in worker.errors):
            worker.show_errors()
    if failed is None:
        return None
    if explains:
        text = text or f"Worker {failed.index} ended with exit code {failed.code}."
        raise (UserError if failed.code == EXIT_USAGE else RunError)(text)
    killed = [str(worker.index) for worker in job.workers if worker.killed]
    if interrupted and killed:
        raise WorkerError(
            f"Worker {', '.join(killed)} did not end within {grace:g} s and was killed. {_AGAIN}."
        )
    codes = {worker.code for worker in job.workers}
    if interrupted and not codes & {EXIT_INTERRUPTED, EXIT_WORKER_LOST}:
        raise KeyboardInterrupt
    if interrupted or failed.code == EXIT_INTERRUPTED:
        raise Interrupted(f"Interrupted. {_AGAIN}.")
    return _loss(failed)


def _message(job, failed):
    """The message of the worker that has failed first, or of one that failed for its reason."""
    messages = [worker.errors for worker in job.ended if worker.code == failed.code]
    return min(
        [text for text in messages if failed.errors in text or text in failed.errors], key=len
    )


def _stopped(worker):
    """Whether the exit code says that the job goes on when it is started again."""
    return worker.code in (EXIT_INTERRUPTED, EXIT_WORKER_LOST)


def _loss(worker):
    if worker.code == EXIT_WORKER_LOST:
        return f"worker {worker.index} lost another one"
    with contextlib.suppress(ValueError):
        return f"worker {worker.index} was killed by {signal.Signals(-worker.code).name}"
    return f"worker {worker.index} was killed by signal {-worker.code}"
