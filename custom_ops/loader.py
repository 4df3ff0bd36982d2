"""Which implementation of the ops runs, and why; the compiled library, loaded on first use.

Three things can ask for an implementation, and the first that names anything but "auto" decides:

1.  the `implementation=` argument of a call;
2.  the innermost `with custom_ops.implementation(...)`, whose "auto" hides what is outside it;
3.  the environment variable `VIT_OPS`.

"auto" is the compiled library where there is one, and the reference otherwise. It never fails: a
library that cannot be used, or that an installation failed to build, is warned about once; one that
was never wanted is no news.
"""

import contextlib
import contextvars
import ctypes
import dataclasses
import json
import os
import sys
import threading
import types
import warnings

from custom_ops import library_file
from custom_ops.library_file import REBUILD

CHOICES = ("auto", "compiled", "reference")
ENVIRONMENT_VARIABLE = "VIT_OPS"
ISA_VARIABLE = "VIT_ISA"
# What the Python side calls; a library without one of them is too old.
OPS = (
    "vit_attention",
    "vit_attention_bias_grad",
    "vit_attention_grad",
    "vit_attention_taps",
    "vit_extract_patches",
    "vit_extract_patches_grad",
    "vit_patch_embed",
    "vit_patch_embed_images_grad",
    "vit_patch_embed_kernel_grad",
    "vit_patch_embed_tables_grad",
)


@dataclasses.dataclass(frozen=True)
class _State:
    """The outcome of the one attempt to load.

    Attributes:
        ops: module with a function for each op, or None.
        reason: why there is none.
        broken: whether there should be a library, but not one that can be loaded.
        path: of the library, or of the one that is broken.
        handle: for the functions of `library_info.cc`.
    """

    ops: types.ModuleType | None = None
    reason: str | None = None
    broken: bool = False
    path: str | None = None
    handle: ctypes.CDLL | None = None


_lock = threading.Lock()
_state = None
_scoped = contextvars.ContextVar("custom_ops_implementation", default=None)


def is_compiled():
    """Returns whether calls can run in the compiled library; loads it if that was not tried yet."""
    return _load().ops is not None


def load():
    """Returns the module of the compiled ops, such as `load().vit_attention`.

    Raises:
        ValueError: if there is no library that can be used.
    """
    state = _load()
    if state.ops is None:
        raise ValueError(f"The compiled ops cannot be used: {state.reason}.")
    return state.ops


def describe():
    """Describes the state of the compiled library, for reports and bug reports.

    Returns:
        Dict with
        `compiled`: bool, as `is_compiled()`;
        `implementation`: what a call without an `implementation=` argument is asked to use here:
            "auto", "compiled" or "reference";
        `path`: of the library, also of one that cannot be used; None without one;
        `reason`: why the library is not used, and what to do; None if it is;
        `broken`: whether there is a library that cannot be used, or that could not be built;
        `tensorflow`, `compiler`: what it was built for and with;
        `outdated`: whether it was built from other sources than those in this package;
        `isas`: dict of `built`, `available` (on this processor), `chosen` and `error` (what is
            wrong with `VIT_ISA`);
        `cuda_archs`: list, empty without CUDA; `xla_library`: its path, None without one.

    Raises:
        ValueError: if `VIT_OPS` has an unknown value.
    """
    state = _load()
    stamp = library_file.read_stamp(state.path) if state.path else None
    report = {
        "compiled": state.ops is not None,
        "implementation": requested(None)[0],
        "path": state.path,
        "reason": state.reason,
        "broken": state.broken,
        "tensorflow": None,
        "compiler": None,
        "outdated": False,
        "isas": {"built": [], "available": [], "chosen": None, "error": None},
        "cuda_archs": [],
        "xla_library": None,
    }
    if stamp:
        from custom_ops import build_plan

        report["tensorflow"], report["compiler"] = stamp["tensorflow"], stamp["compiler"]
        report["outdated"] = stamp["sources"] != build_plan.source_hash()
        report["isas"]["built"] = stamp["isas"].split()
    if state.handle:
        report["isas"] |= _isa_report(state.handle)
    return report


@contextlib.contextmanager
def implementation(name):
    """Chooses the implementation of every call inside the `with` block.

    Blocks nest, and the choice ends with the block even after an exception. It belongs to the
    current thread (it is a context variable): a thread started inside does not inherit it. In a
    `tf.function` the choice that counts is the one at tracing.

    Args:
        name: "auto", "compiled" or "reference".

    Raises:
        ValueError: if the name is unknown, or "compiled" where there is no compiled library.
    """
    source = f"implementation({name!r})"
    _choose(_check_known(name, source), source)
    token = _scoped.set(name)
    try:
        yield
    finally:
        _scoped.reset(token)


def resolve(name=None):
    """Returns what a call runs, "compiled" or "reference".

    Args:
        name: the call's own `implementation=` argument; None is the same as "auto".

    Raises:
        ValueError: if the name or `VIT_OPS` is unknown, or asks for a compiled library that is
            not there; if the compiled library would run and `VIT_ISA` names no instruction set
            of this processor.
    """
    return _choose(*requested(name))


def requested(name):
    """Returns `(choice, where it came from)`, by the precedence in the module's docstring."""
    if name is not None and _check_known(name, f"implementation={name!r}") != "auto":
        return name, f"implementation={name!r}"
    if _scoped.get() is not None:
        return _scoped.get(), f"implementation({_scoped.get()!r})"
    # An empty value is how a shell unsets a variable for one command.
    value = os.environ.get(ENVIRONMENT_VARIABLE) or "auto"
    source = f"{ENVIRONMENT_VARIABLE}={value}"
    return _check_known(value, source), source


def _check_known(name, source):
    if name not in CHOICES:
        raise ValueError(f"{source} is unknown. Use one of {', '.join(map(repr, CHOICES))}.")
    return name


def _choose(choice, source):
    if choice == "reference":
        return choice
    state = _load()
    if state.ops is None:
        if choice == "compiled":
            raise ValueError(
                f"{source} asks for the compiled library, but {state.reason}. Use 'auto' or "
                "'reference' to do without."
            )
        return "reference"
    if os.environ.get(ISA_VARIABLE) and state.handle:
        error = _isa_report(state.handle)["error"]
        if error:
            raise ValueError(f"{ISA_VARIABLE}={os.environ[ISA_VARIABLE]}: {error}")
    return "compiled"


def _load():
    global _state
    if _state is not None:
        return _state
    with _lock:
        first = _state is None
        if first:
            _state = _without_autograph(_try_to_load)()
    if first and _state.broken:
        warnings.warn(
            f"The compiled ops of custom_ops are not used: {_state.reason}. The slower TensorFlow "
            "reference takes their place.",
            RuntimeWarning,
            stacklevel=2,
        )
    return _state


def _without_autograph(function):
    """Keeps AutoGraph, which converts what a `tf.function` calls, from complaints about this."""
    tf = sys.modules.get("tensorflow")
    return tf.autograph.experimental.do_not_convert(function) if tf else function


def _try_to_load():
    paths = library_file.candidates()
    named = os.environ.get(library_file.VARIABLE)
    present = [str(path) for path in paths if named or path.exists()]
    if not present and (why := library_file.why_not_built()):
        reason = (
            f"it could not be built when it was installed: {why}. Then build it with `{REBUILD}`"
        )
        return _State(reason=reason, broken=True)
    if not present:
        return _State(reason=f"no compiled library has been built. Build it with `{REBUILD}`")
    try:
        import tensorflow as tf
    except ImportError as error:
        return _State(reason=f"TensorFlow cannot be imported: {error}", path=present[0])
    loaded = _loaded_before()
    if loaded is not None:
        return loaded
    reasons = []
    for path in present:
        reason = library_file.complaint(path, tf.__version__)
        if reason is None:
            try:
                ops = tf.load_op_library(path)
            except (tf.errors.OpError, RuntimeError, OSError) as error:
                reason = f"{path} does not load: {' '.join(str(error).split())}"
            else:
                missing = [name for name in OPS if not hasattr(ops, name)]
                if not missing:
                    # Kept for a second import of this package in the same process.
                    ops.vit_ops_path = path
                    return _State(ops, path=path, handle=_open(path))
                reason = f"{path} has no {missing[0]}: it belongs to another version of custom_ops"
        reasons.append(reason)
    fix = f"Build it again with `{REBUILD}`"
    if named:
        fix += f", or unset {library_file.VARIABLE}"
    return _State(reason=f"{'; '.join(reasons)}. {fix}", broken=True, path=present[0])


def _loaded_before():
    """The state if this process has our ops already, from before this module was imported.

    That is this package after a second import, or whoever loaded the copy of a SavedModel. To load
    another copy would be of no use: TensorFlow gives its functions to the first one only.
    """
    for module in list(sys.modules.values()):
        # Not `hasattr`, which would import what some packages import lazily.
        found = vars(module) if isinstance(module, types.ModuleType) else {}
        if found.get("_IS_TENSORFLOW_PLUGIN") and all(name in found for name in OPS):
            path = found.get("vit_ops_path")
            return _State(module, path=path, handle=_open(path) if path else None)
    return None


def _open(path):
    # By the name under which it is loaded and only if it is: a new file at that path is another
    # library, and its ops would be registered twice.
    handle = ctypes.CDLL(path, mode=os.RTLD_NOLOAD)
    handle.vit_ops_isa_report.restype = ctypes.c_char_p
    return handle


def _isa_report(handle):
    return json.loads(handle.vit_ops_isa_report())
