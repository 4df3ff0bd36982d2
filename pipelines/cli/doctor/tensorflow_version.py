"""Says that the commands need TensorFlow 2.20 where there is another one.

tf-models-official, the home of Orbit, pins it; `vit_tf` and `custom_ops` do not need it. So under
another TensorFlow a command that imports Orbit is refused at once, with exit code 2: it would fail
in any case, after it has read data. Other commands work there, so they go on after a warning, since
no test runs them with that TensorFlow. Nothing is imported here: `doctor` reports on packages that
may be broken.
"""

import importlib.metadata
import importlib.util
import sys

VERSION = "2.20"
# The commands that import Orbit. `tests/pipelines/cli/doctor` compares with their imports.
NEED_ORBIT = frozenset(
    {"demo", "evaluate", "fewshot", "finetune", "paper", "plan", "pretrain", "sweep"}
)
# TensorFlow is published under each of these names.
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")


def complaint() -> str | None:
    """A sentence about another TensorFlow; None if this is TensorFlow 2.20 or none."""
    _, version = _installed()
    if version is None or version.split(".")[:2] == VERSION.split("."):
        return None
    return (
        f"The commands are tested with TensorFlow {VERSION} only, which tf-models-official pins, "
        f"and this is TensorFlow {version}."
    )


def fix() -> str:
    """The command that installs what all commands need."""
    major, minor = VERSION.split(".")
    versions = f">={VERSION},<{major}.{int(minor) + 1}"
    return (
        f"Run: {sys.executable} -m pip install '{_installed()[0]}{versions}' "
        f"'tf-models-official{versions}'"
    )


def lacks_orbit() -> bool:
    """Whether there is no Orbit here, so that the commands of `NEED_ORBIT` cannot run."""
    return importlib.util.find_spec("orbit") is None


def _installed():
    """The distribution that has TensorFlow, and its version or None."""
    for name in _DISTRIBUTIONS:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    return _DISTRIBUTIONS[0], None
