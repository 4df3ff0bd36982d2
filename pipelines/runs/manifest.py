"""`manifest.json` of a run: everything besides `config.json` that is needed to repeat the run.

It holds the seed, the manifest of the training data, and one entry for each start of the run:
command, strategy, hosts, commit, versions, compiled ops, oneDNN.
"""

import glob
import os
import platform
import subprocess
import sys
import time

import custom_ops
from pipelines.distribution import onednn
from pipelines.errors import UserError
from pipelines.runs.json_file import read_json, write_json
from vit_tf.files import storage

_NAME = "manifest.json"
# A sweep, a suite, a demo and a study have their runs in folders of their own.
_DEEPEST_RUN = 6


def write_manifest(path, *, seed, data, strategy, hosts=1):
    """Writes the manifest; adds an entry for this start after the entries of earlier starts.

    Args:
        path: file name.
        seed: seed of the experiment.
        data: `DataSource.manifest()` of the training data.
        strategy: description of the strategy.
        hosts: number of processes that train.
    """
    start = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": [os.path.basename(sys.argv[0]), *sys.argv[1:]],
        "strategy": strategy,
        "hosts": hosts,
        **software(),
    }
    write_json(path, {"seed": seed, "data": data, "starts": [*_read_starts(path), start]})


def software() -> dict:
    """The commit of this code, versions, the compiled ops, and whether oneDNN is on."""
    # Here, since `onednn_of` is called before TensorFlow is imported.
    import keras
    import tensorflow as tf

    return {
        "git": _git_state(),
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
        },
        "ops": custom_ops.describe(),
        "onednn": onednn.is_on(),
    }


def read_data(path) -> dict:
    """Returns the manifest of the training data.

    Raises:
        UserError: if the file is missing or damaged.
    """
    data = read_json(path).get("data")
    if not isinstance(data, dict):
        raise UserError(f"{path} is damaged. Restore it.")
    return data


def read_labels(path) -> tuple[str, ...]:
    """Returns the class names of the training data, in label order.

    Raises:
        UserError: if the file is missing or damaged, or has no class names.
    """
    labels = read_data(path).get("labels")
    if not isinstance(labels, list):
        raise UserError(f"{path} has no labels. Restore it.")
    return tuple(labels)


def read_hosts(path) -> int | None:
    """Returns the number of hosts at the newest start; None if unknown or without a start."""
    starts = _read_starts(path)
    hosts = starts[-1].get("hosts") if starts and isinstance(starts[-1], dict) else None
    return hosts if type(hosts) is int and hosts > 0 else None


def onednn_of(folder, has_runs=False) -> bool | None:
    """Whether a run, which may be resumed, was started with oneDNN at first.

    It imports no TensorFlow, so it reads nothing behind a URL. `onednn_change` tells what follows.

    Args:
        folder: of the run.
        has_runs: whether it is the folder of a sweep, a suite, a demo or studies, which have their
            runs in folders below: then the first one counts.

    Returns:
        True without a run: a new one is started with it. None if the run does not say, since it was
        begun by a version of this project that left the choice to TensorFlow.
    """
    if storage.is_url(folder):
        return True
    here = glob.escape(folder)
    for depth in range(_DEEPEST_RUN + 1 if has_runs else 1):
        for path in sorted(glob.glob(os.path.join(here, *["*"] * depth, _NAME))):
            return _read_onednn(path)
    return True


def onednn_change(path) -> str | None:
    """A sentence if the run was started with oneDNN and goes on without it, or the reverse.

    Args:
        path: its `manifest.json`.
    """
    before, now = _read_onednn(path), onednn.is_on()
    if before is None and onednn.is_chosen():  # Behind a URL: see `onednn_of`.
        return (
            "this run does not say whether it was started with oneDNN, and goes on "
            f"{'with' if now else 'without'} it; {onednn.VARIABLE}={int(not now)} changes that"
        )
    if before is None or before == now:
        return None
    with_before, with_now = ("with" if on else "without" for on in (before, now))
    return (
        f"this run was started {with_before} oneDNN and goes on {with_now} it: its steps differ in "
        "their last bits from those of a run without interruption. To go on as before, stop it and "
        f"start it with {onednn.VARIABLE}={int(before)}"
    )


def _read_onednn(path):
    try:
        starts = _read_starts(path)
    except UserError:  # Who reads the run says that the file is damaged.
        return None
    # The first start decides, not one that the user has made with another setting.
    on = starts[0].get("onednn") if starts and isinstance(starts[0], dict) else None
    return on if isinstance(on, bool) else None


def _read_starts(path):
    starts = read_json(path).get("starts") if storage.exists(path) else []
    return starts if isinstance(starts, list) else []


def _git_state():
    """Returns the commit of this code, with "-dirty" if changed; None outside a checkout."""
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        output = subprocess.run(
            ["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return output.stdout.strip()
