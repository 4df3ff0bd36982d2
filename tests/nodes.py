"""Clusters of one machine, whose nodes are network namespaces; their scripts source nodes.sh."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import subprocess
import tempfile

_PROGRAMS = {"ip": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
_SBIN = "/usr/sbin:/sbin"


def missing(programs) -> str:
    """What this machine lacks for a cluster, "" for nothing.

    Args:
        programs: name of a program that the cluster needs too -> its Debian package.
    """
    if os.getuid():
        return "needs root"
    path, programs = f"{os.environ['PATH']}:{_SBIN}", _PROGRAMS | programs
    if lacking := [name for name in programs if not shutil.which(name, path=path)]:
        packages = " ".join(sorted({programs[name] for name in lacking}))
        return f"needs {', '.join(lacking)}: apt-get install {packages}"
    allowed = subprocess.run(["unshare", "--net", "--uts", "--pid", "--fork", "true"], check=False)
    return "" if allowed.returncode == 0 else "needs the right to make network namespaces"


class Cluster:
    """Nodes node1, node2, ... of the script `SCRIPT` of a subclass.

    Args:
        folder: for state and logs.
        variables: environment variables of the script.

    Attributes:
        folder: as given.
        environment: all environment variables of the script.
    """

    SCRIPT: pathlib.Path

    def __init__(self, folder, **variables):
        self.folder = folder
        self.environment = os.environ | {"PATH": f"{os.environ['PATH']}:{_SBIN}"} | variables

    def __call__(self, *arguments):
        """Runs the script with the arguments."""
        # Files: the processes that it starts keep a pipe open.
        with open(self.folder / "cluster.log", "a+") as log:
            code = subprocess.run(
                [self.SCRIPT, *arguments], env=self.environment, stdout=log, stderr=log, check=False
            ).returncode
        if code:
            raise RuntimeError((self.folder / "cluster.log").read_text()[-2000:])


@contextlib.contextmanager
def running(name, make):
    """Starts a cluster, and ends it.

    Args:
        name: the cluster's name.
        make: a function of a folder; returns the `Cluster`.
    """
    # Paths of sockets are short. Tests that were killed have left a cluster in the same folder.
    folder = pathlib.Path(tempfile.gettempdir()) / f"vit_tf_{name}"
    folder.mkdir(exist_ok=True)
    made = make(folder)
    with open(folder.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # The network of another checkout would be the same.
        made("stop")
        try:
            made("start")
            yield made
        finally:
            made("stop")
            shutil.rmtree(folder)
