"""Finds, checks and loads the compiled libraries once per process, and records why one is not used.

There is the op library, and beside it, optional, the library for XLA, which lets XLA compile the
ops. Nothing is loaded when this module is imported. A library that cannot be loaded, or that an
installation failed to build, causes one warning. A library that was never built causes none.
"""

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

# What the Python side calls; a library without one of them is too old.
OPS = (
    "vit_adamw_update",
    "vit_attention",
    "vit_attention_bias_grad",
    "vit_attention_grad",
    "vit_attention_taps",
    "vit_bias_gelu",
    "vit_bias_gelu_grad",
    "vit_encoder",
    "vit_extract_patches",
    "vit_extract_patches_grad",
    "vit_model",
    "vit_patch_embed",
    "vit_patch_embed_images_grad",
    "vit_patch_embed_kernel_grad",
    "vit_patch_embed_tables_grad",
    "vit_residual_norm",
    "vit_residual_norm_grad",
    "vit_rotary_encoder",
    "vit_rotary_model",
    "vit_sgd_update",
)


@dataclasses.dataclass(frozen=True)
class XlaLibrary:
    """The result of loading the library for XLA.

    Attributes:
        path: of the library if XLA can compile the ops, else None.
        reason: why it cannot.
        broken: whether a library exists and cannot be loaded.
        handle: ctypes handle, to call the functions of `library_info.cc`.
        cuda_archs: the GPUs that it has kernels for, as in the stamp; empty without CUDA.
    """

    path: str | None = None
    reason: str | None = None
    broken: bool = False
    handle: ctypes.CDLL | None = None
    cuda_archs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Library:
    """The result of loading the op library.

    Attributes:
        ops: module with a function for each op, or None.
        reason: why `ops` is None.
        broken: whether a library exists and cannot be loaded, or could not be built.
        path: of the library, broken or not.
        handle: ctypes handle, to call the functions of `library_info.cc`.
        isa_error: the problem with `VIT_ISA` when the library was loaded, with its value.
        xla: the library for XLA.
        cuda_archs: the GPUs that it has kernels for, as in the stamp; empty without CUDA.
    """

    ops: types.ModuleType | None = None
    reason: str | None = None
    broken: bool = False
    path: str | None = None
    handle: ctypes.CDLL | None = None
    isa_error: str | None = None
    xla: XlaLibrary = XlaLibrary(reason="the compiled ops are not used")
    cuda_archs: tuple[str, ...] = ()

    def isa_report(self) -> dict:
        """Instruction sets: `available` here, `chosen`, and the `error` in `VIT_ISA`, if any."""
        return json.loads(self.handle.vit_ops_isa_report()) if self.handle else {}

    def choose_isa(self, name):
        """Sets the instruction set of later calls; "" is the best one. For tests and benchmarks.

        Raises:
            ValueError: if the name is unknown, or this processor does not have the set.
        """
        for handle in filter(None, (self.handle, self.xla.handle)):
            handle.vit_ops_choose_isa.restype = ctypes.c_char_p
            if error := handle.vit_ops_choose_isa(name.encode()):
                raise ValueError(f"choose_isa({name!r}): {error.decode()}")


_lock = threading.Lock()
_library = None


def is_compiled():
    """Returns whether the compiled library can be used; the first call loads it."""
    return library().ops is not None


def compiled_ops():
    """Returns the module of the compiled ops, with functions such as `vit_attention`.

    It does not register their gradients; `custom_ops.load` does.

    Raises:
        ValueError: if there is no library that can be used.
    """
    state = library()
    if state.ops is None:
        raise ValueError(f"The compiled ops cannot be used: {state.reason}.")
    return state.ops


def library() -> Library:
    """The library of this process; the first call loads it."""
    global _library
    if _library is not None:
        return _library
    with _lock:
        first = _library is None
        found = _library = _library or _without_autograph(_load_all)()
    for part, where in ((found, ""), (found.xla, " under jit_compile=True")):
        if first and part.broken:
            warnings.warn(
                f"The compiled ops of custom_ops are not used{where}: {part.reason}. The slower "
                "TensorFlow reference takes their place.",
                RuntimeWarning,
                stacklevel=2,
            )
    return found


def _without_autograph(function):
    """Keeps AutoGraph from converting the function, which would log warnings."""
    tf = sys.modules.get("tensorflow")
    return tf.autograph.experimental.do_not_convert(function) if tf else function


def _load_all():
    found = _try_to_load()
    if found.ops is None:
        return found
    error = found.isa_report().get("error")
    xla = _load_for_xla(vars(found.ops).get("vit_ops_path"))
    return dataclasses.replace(found, isa_error=error, xla=xla, cuda_archs=_cuda_archs(found.path))


def _cuda_archs(path):
    stamp = library_file.read_stamp(path) if path else None
    return tuple(stamp["cuda_archs"].split()) if stamp else ()


def _load_for_xla(ops_path):
    """Loads the library for XLA that lies beside the op library.

    Args:
        ops_path: of the op library; None if ops of another copy were loaded before.
    """
    import tensorflow as tf

    if ops_path is None:
        return XlaLibrary(
            reason="this program loaded the compiled ops of another installation before"
        )
    path = library_file.for_xla(ops_path)
    if not path.exists():
        why = library_file.why_not_built(path)
        problem = f"could not be built: {why}" if why else "has not been built"
        return XlaLibrary(reason=f"the library for XLA {problem}. Build it with `{REBUILD}`")
    reason = library_file.why_unusable(path, tf.__version__)
    if reason is None and library_file.other_sources(path, ops_path):
        reason = f"{path} was built from other sources than {ops_path}"
    if reason is None:
        try:
            # It registers its kernels with TensorFlow.
            handle = _declare(ctypes.CDLL(str(path)))
            return XlaLibrary(str(path), handle=handle, cuda_archs=_cuda_archs(path))
        except OSError as error:
            reason = f"{path} does not load: {error}"
    return XlaLibrary(reason=f"{reason}. Build it again with `{REBUILD}`", broken=True)


def _try_to_load():
    paths = library_file.candidates()
    named = os.environ.get(library_file.VARIABLE)
    present = [str(path) for path in paths if named or path.exists()]
    if not present and (why := library_file.why_not_built()):
        reason = (
            f"it could not be built when it was installed: {why}. Then build it with `{REBUILD}`"
        )
        return Library(reason=reason, broken=True)
    if not present:
        return Library(reason=f"no compiled library has been built. Build it with `{REBUILD}`")
    try:
        import tensorflow as tf
    except Exception as error:  # A broken installation can raise any exception.
        return Library(reason=f"TensorFlow cannot be imported: {error}", path=present[0])
    loaded = _loaded_before()
    if loaded is not None:
        return loaded
    reasons = []
    for path in present:
        reason = library_file.why_unusable(path, tf.__version__)
        if reason is None:
            try:
                ops = tf.load_op_library(path)
            except (tf.errors.OpError, RuntimeError, OSError) as error:
                reason = f"{path} does not load: {' '.join(str(error).split())}"
            else:
                own = {name: getattr(ops, name) for name in OPS if hasattr(ops, name)}
                # TensorFlow leaves out what another copy, with fewer ops, has registered before.
                functions = _functions_of_plugins() | own
                missing = [name for name in OPS if name not in functions]
                if not missing and len(own) < len(OPS):
                    ops = types.ModuleType("vit_ops")
                    vars(ops).update(functions)
                elif not missing:
                    # Kept for a second import of this package in the same process.
                    ops.vit_ops_path = path
                if not missing:
                    return Library(ops, path=path, handle=_open(path))
                reason = f"{path} has no {missing[0]}: it belongs to another version of custom_ops"
        reasons.append(reason)
    fix = f"Build it again with `{REBUILD}`"
    if named:
        fix += f", or unset {library_file.VARIABLE}"
    return Library(reason=f"{'; '.join(reasons)}. {fix}", broken=True, path=present[0])


def _loaded_before():
    """The library if this process loaded the ops before this module was imported.

    That happens after a second import of this package, or when a program loaded the copy inside a
    SavedModel. A second copy cannot be loaded: TensorFlow registers each op once.
    """
    for module in _plugins():
        if all(name in vars(module) for name in OPS):
            path = vars(module).get("vit_ops_path")
            return Library(module, path=path, handle=_open(path) if path else None)
    return None


def _functions_of_plugins():
    """The functions of our ops in all libraries that this process has loaded, by name."""
    return {
        name: vars(module)[name] for module in _plugins() for name in OPS if name in vars(module)
    }


def _plugins():
    """The modules of op libraries that this process has loaded."""
    for module in list(sys.modules.values()):
        # `hasattr` would trigger the lazy imports of some packages.
        if isinstance(module, types.ModuleType) and vars(module).get("_IS_TENSORFLOW_PLUGIN"):
            yield module


def _open(path):
    # RTLD_NOLOAD returns only a library that is loaded already. A new file at the same path is
    # another library, and would register the ops twice.
    return _declare(ctypes.CDLL(path, mode=os.RTLD_NOLOAD))


def _declare(handle):
    handle.vit_ops_isa_report.restype = ctypes.c_char_p
    return handle
