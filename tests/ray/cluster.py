"""A Ray cluster of this machine, whose nodes are network namespaces, and commands on them."""

import json
import os
import pathlib
import subprocess
import sys
import time

from tests import nodes
from tests.checkout import ROOT

ADDRESS = "10.213.87.1:6399"
_TIMEOUT = 600  # Seconds; generous, because the machine may be busy.


class Cluster(nodes.Cluster):
    """A Ray cluster.

    Args:
        folder: for state and logs.
    """

    SCRIPT = pathlib.Path(__file__).with_name("cluster.sh")

    def __init__(self, folder):
        super().__init__(
            folder,
            RAY_CLUSTER_DIR=str(folder),
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN_PATH=str(folder / "token"),
            PYTHON=sys.executable,
            # Ray starts processes of its own, which have to find it.
            PYTHONPATH=os.pathsep.join([str(ROOT), *sys.path]),
            TF_CPP_MIN_LOG_LEVEL="3",
        )

    def predict(self, node, path, *flags):
        """Starts `predict` on a node; returns the `Prediction`."""
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "pipelines.predict", *flags, f"--output={path}"]
        command += ["--engine=ray", f"--ray_address={ADDRESS}"]
        return Prediction(
            subprocess.Popen(
                [self.SCRIPT, "on", node, *command],
                env=self.environment,
                stdout=pipe,
                stderr=pipe,
                text=True,
            ),
            path,
        )

    def actors(self, node):
        """The process numbers of the actors of a node, as the node has them."""
        found = subprocess.run(
            [self.SCRIPT, "on", node, "pgrep", "-f", "^ray::.*Actor"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return found.stdout.split()


class Prediction:
    """A running `predict`, which writes to `path`."""

    def __init__(self, process, path):
        self._process, self._path = process, path

    @property
    def _counts(self):
        state = pathlib.Path(f"{self._path}.partial", "state.json")
        parts = json.loads(state.read_text())["parts"] if state.exists() else []
        return [part["count"] for part in parts]

    @property
    def parts(self):
        """How many parts are done."""
        return len(self._counts)

    @property
    def done(self):
        """How many images are done."""
        return sum(self._counts)

    def wait_for_parts(self, count):
        """Waits until so many are done; it must not have ended."""
        end = time.monotonic() + _TIMEOUT
        while self.parts < count:
            assert time.monotonic() < end and self._process.poll() is None, self.end()
            time.sleep(0.05)

    def end(self):
        """Waits for the end; returns exit code and stderr."""
        _, err = self._process.communicate(timeout=_TIMEOUT)
        return self._process.returncode, err
