"""oneDNN: the library whose products and convolutions TensorFlow can use on a CPU.

TensorFlow reads the variable below when it is imported. Without it, TensorFlow leaves oneDNN off on
processors without VNNI, bf16 and AMX, where oneDNN is faster as well: docs/benchmarks.md has the
numbers. So commands turn it on, unless the user has set the variable. With and without oneDNN,
results differ in their last bits, so a run goes on with what it was started with.
"""

import os
import platform
import sys

VARIABLE = "TF_ENABLE_ONEDNN_OPTS"

# Whether `choose` has set the variable, and not the user.
_chosen_here = False


def choose(on: bool | None = True):
    """Sets the variable before TensorFlow is imported; a later call replaces an earlier one.

    It does nothing if the user has set the variable, if TensorFlow has been imported already, and
    on other processors than x86-64.

    Args:
        on: whether oneDNN is to be used; None leaves it to TensorFlow.
    """
    global _chosen_here
    users_own = os.environ.get(VARIABLE) and not _chosen_here
    if users_own or "tensorflow" in sys.modules or platform.machine() != "x86_64":
        return
    _chosen_here = on is not None
    if on is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = str(int(on))


def environment_for_commands() -> dict[str, str]:
    """The environment without the variable that `choose` has set: a command chooses for its run."""
    return {x: y for x, y in os.environ.items() if x != VARIABLE or not _chosen_here}


def is_chosen() -> bool:
    """Whether `choose` has set the variable."""
    return _chosen_here


def is_on() -> bool:
    """Whether TensorFlow, which this imports, uses oneDNN in this process."""
    # No public function of TensorFlow tells.
    from tensorflow.python.util import _pywrap_util_port  # noqa: TID251

    return _pywrap_util_port.IsMklEnabled()


def describe() -> str:
    """Whether oneDNN is on, and who decided."""
    value = os.environ.get(VARIABLE)
    if _chosen_here:
        who = "chosen by the command"
    else:
        who = f"{VARIABLE}={value}" if value else "TensorFlow's default for this processor"
    return f"{'on' if is_on() else 'off'}, {who}"
