"""A SLURM cluster of this machine, its jobs, and the script of docs/cluster.md."""

import contextlib
import pathlib
import re
import subprocess
import sys
import time

from tests import documents, nodes
from tests.checkout import ROOT

PROGRAMS = {
    **dict.fromkeys(["slurmctld", "slurmd", "sbatch"], "slurm-wlm"),
    "munged": "munge",
}
_ENDED = {"COMPLETED", "FAILED", "TIMEOUT", "CANCELLED"}


def script(workdir, flags) -> str:
    """The script of docs/cluster.md with other settings, workdir and interpreter."""
    page = documents.blocks((ROOT / "docs/cluster.md").read_text())
    (block,) = [x.code for x in page if "sbatch train.sbatch" in x.code]
    text = block.partition("<<'END'\n")[2].partition("\nEND\n")[0] + "\n"
    settings = re.compile(r"--experiment imagenet_vit_b16 .*?(?= \\$)", re.MULTILINE)
    for pattern, new in (
        (settings, " ".join(flags)),
        (re.compile(re.escape("/shared/runs/b16")), str(workdir)),
        (re.compile(r"(?<=\s)\.venv/bin/python"), sys.executable),
    ):
        text, count = pattern.subn(new.replace("\\", r"\\"), text)
        assert count == 1, pattern
    return text


class Cluster(nodes.Cluster):
    """A SLURM cluster.

    Args:
        folder: for state and logs.
        count: number of nodes.
    """

    SCRIPT = pathlib.Path(__file__).with_name("cluster.sh")

    def __init__(self, folder, count):
        super().__init__(
            folder,
            SLURM_CLUSTER_DIR=str(folder),
            SLURM_CONF=str(folder / "slurm.conf"),
            NODES=str(count),
            SLURMD_TIMEOUT="60",
            PYTHONPATH=str(ROOT),
            TF_CPP_MIN_LOG_LEVEL="3",
        )

    def ask(self, *command):
        """What a command of SLURM prints."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        ).stdout

    def submit(self, workdir, flags, *options):
        """Starts the documented script; returns the `Job`."""
        path = self.folder / f"{workdir.name}.sbatch"
        path.write_text(script(workdir, flags))
        log = self.folder / f"{workdir.name}.log"
        command = ["sbatch", "--parsable", f"--chdir={ROOT}", f"--output={log}", *options, path]
        return Job(self, self.ask(*map(str, command)).strip(), workdir, log)


class Job:
    """A job of a `Cluster`, which trains in `workdir`."""

    def __init__(self, cluster, number, workdir, log):
        self.cluster, self.number, self.workdir, self._log = cluster, number, workdir, log

    @property
    def log(self):
        """What it has printed so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def state(self):
        """SLURM's word for its state."""
        return self._field("JobState")

    @property
    def restarts(self):
        """How often SLURM has queued it again."""
        return int(self._field("Restarts"))

    def _field(self, name):
        shown = self.cluster.ask("scontrol", "show", "job", self.number, "--oneliner")
        return re.search(rf"\b{name}=(\S+)", shown)[1]

    @property
    def step(self):
        """The newest step in metrics.jsonl, 0 without one."""
        with contextlib.suppress(OSError):
            steps = re.findall(r'"step": (\d+)', (self.workdir / "metrics.jsonl").read_text())
            return int(steps[-1]) if steps else 0
        return 0

    def wait(self, condition, seconds=180):
        """Waits until a function of this job returns true."""
        end = time.monotonic() + seconds
        while not condition(self):
            assert time.monotonic() < end, f"{self.state}, step {self.step}\n{self.log[-6000:]}"
            # CANCELLED is a moment of a job that is queued again.
            assert self.state not in _ENDED - {"CANCELLED"}, self.log[-6000:]
            time.sleep(0.05)

    def wait_for_step(self, step):
        """Waits until it has logged a step."""
        self.wait(lambda job: job.step >= step)

    def wait_for_starts(self, count):
        """Waits until training has begun so often."""
        self.wait(lambda job: job.log.count("first step took") >= count)

    def wait_for_requeue(self, count):
        """Waits until SLURM has queued it again so often, and lets it start soon."""
        self.wait(lambda job: job.restarts >= count and job.state == "PENDING")
        # SLURM itself would wait for two minutes. A start in the second of the requeue fails: "Job
        # credential revoked".
        self.cluster.ask("scontrol", "update", f"JobId={self.number}", "StartTime=now+3")

    def end(self, seconds=240):
        """Waits for its end; returns SLURM's exit code."""
        end = time.monotonic() + seconds
        while self.state not in _ENDED:
            assert time.monotonic() < end, self.log[-6000:]
            time.sleep(0.2)
        return self._field("ExitCode")
