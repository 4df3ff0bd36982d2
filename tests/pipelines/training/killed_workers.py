"""Trains with two workers under `pipelines.launch`, and kills them at chosen moments.

usage: python -m tests.pipelines.training.killed_workers WORKDIR MOMENTS SEED [assignment ...]

MOMENTS are joined by commas, one for each kill; with "" the job is not disturbed. SIGKILL goes to
worker 0 and worker 1 in turn:

    save: while a checkpoint is written, after the first log line about steps of an attempt
    train: at a random time within a second after that line
    random:SECONDS: at a random time within so many seconds after the start of an attempt

Prints one JSON object: "exit", the exit code of the launcher, "attempts", their number, and
"killed", with for each kill

    moment, worker: when and which
    resumed: the step at which the attempt resumed, None if it began at step 0 or ended before
    newest: the newest whole checkpoint that was left, None without one
    saving: whether a folder with an unfinished checkpoint was left

The output of the workers goes to WORKDIR.log.
"""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

from pipelines.runs import checkpoints
from pipelines.runs.workdir import Workdir
from tests.pipelines.tiny import as_flags
from tests.pipelines.training.killed_run import is_saving

# Seconds between two looks; a checkpoint is written within milliseconds.
_POLL, _SHORT_POLL = 0.02, 0.001
_STARTED = "started 2 workers\n"


class Job:
    """The launcher, its log and its workers."""

    def __init__(self, workdir, kills, assignments):
        self.workdir, self.log = workdir, pathlib.Path(f"{workdir}.log")
        command = ["pipelines.launch", "--local_workers=2", "--restart_seconds=0"]
        command += [f"--restarts={kills + 3}", "--", "pretrain", f"--workdir={workdir}"]
        with open(self.log, "wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command, *as_flags(*assignments)],
                stdout=file,
                stderr=file,
            )

    def ended(self):
        return self.process.poll() is not None

    def attempts(self):
        """The log of each attempt so far."""
        return self.log.read_text().split(_STARTED)[1:]

    def pid(self, index):
        """The process of a worker; None if it has none."""
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == self.process.pid:
                    environment = (folder / "environ").read_text().split("\0")
                    (text,) = [x for x in environment if x.startswith("TF_CONFIG=")]
                    if json.loads(text.partition("=")[2])["task"]["index"] == index:
                        return int(folder.name)
            except (OSError, ValueError):  # It has just ended.
                continue
        return None


def wait_for(job, condition, poll=_POLL):
    """Waits; returns False if the job ends before."""
    while not condition():
        if job.ended():
            return False
        time.sleep(poll)
    return True


def kill(job, number, moment, worker, draw):
    """Kills a worker of attempt `number` at a moment; returns what was left, None at the end."""
    if not wait_for(job, lambda: len(job.attempts()) > number):
        return None
    begin = time.time()
    if moment in ("save", "train"):
        wait_for(job, lambda: re.search(r"\] step \d+/", job.attempts()[number]))
    if moment == "save":
        pid, since = job.pid(worker), time.time()
        wait_for(job, lambda: pid is None or _kill_in_save(job, pid, since), _SHORT_POLL)
    else:
        time.sleep(draw.uniform(0, float(moment.partition(":")[2] or 1)))
        # It may not have been started yet.
        wait_for(job, lambda: (pid := job.pid(worker)) and _kill(pid))
    if job.ended():
        return None
    wait_for(job, lambda: job.pid(worker) is None or len(job.attempts()) > number + 1)
    resumed = re.search(r"resuming from step (\d+)", job.attempts()[number])
    return {
        "moment": moment,
        "worker": worker,
        "resumed": resumed and int(resumed[1]),
        "newest": checkpoints.newest(Workdir(job.workdir).checkpoints),
        "saving": is_saving(job.workdir, begin),
    }


def _kill_in_save(job, pid, since):
    """Kills a worker if a checkpoint is written; stopped first, it cannot end that meanwhile."""
    if not (is_saving(job.workdir, since) and _kill(pid, signal.SIGSTOP)):
        return False
    saves = is_saving(job.workdir, since)
    return _kill(pid, signal.SIGKILL if saves else signal.SIGCONT) and saves


def _kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def main(workdir, moments, seed, *assignments):
    moments, draw, killed = [x for x in moments.split(",") if x], random.Random(int(seed)), []
    job = Job(workdir, len(moments), assignments)
    try:
        for number, moment in enumerate(moments):
            found = kill(job, number, moment, number % 2, draw)
            if found is None:
                break
            killed.append(found)
        code = job.process.wait()
    finally:
        job.process.kill()
    print(json.dumps({"exit": code, "attempts": len(job.attempts()), "killed": killed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
