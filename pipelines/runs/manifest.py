"""`manifest.json` of a run: everything besides `config.json` that is needed to repeat the run.

It holds the seed, the manifest of the training data, and one entry for each start of the run:
command, strategy, hosts, commit, versions, compiled ops.
"""

import os
import platform
import subprocess
import sys
import time

import keras
import tensorflow as tf

import custom_ops
from pipelines.errors import UserError
from pipelines.runs.json_file import read_json, write_json
from vit_tf.files import storage


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
        "git": _git_state(),
        "versions": {
            "python": platform.python_version(),
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
        },
        "ops": custom_ops.describe(),
    }
    write_json(path, {"seed": seed, "data": data, "starts": [*_read_starts(path), start]})


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
