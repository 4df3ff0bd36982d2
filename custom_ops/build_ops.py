"""Compiles the op library and the Python modules of the kernels: `python -m custom_ops.build_ops`.

The command builds for the interpreter that runs it and the TensorFlow installed there. It writes to
the place where `custom_ops.loader` looks: this package, or the file that the environment variable
`VIT_OPS_LIBRARY` names. The library for XLA is written beside the op library. It is optional: where
it cannot be built, a line says so, and the rest is built. Run the command again after every change
of TensorFlow's version, because binaries of one version do not fit another. `CXX` names a compiler
other than g++. With a GPU and a CUDA toolkit the kernels for GPUs are built too, and the Python
module of these: `custom_ops/building/toolkit.py` says how to choose. If they cannot be built, a
line says why and the rest is built, unless the environment demands them. Sources and flags are
listed in `sources.bzl`, which Bazel reads too. Ninja compiles what changed; `build/ops` of a
checkout, else the user's cache folder, keeps the object files (`building/ninja_build.py`).
"""

import functools
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys
import sysconfig
import time

from custom_ops import library_file
from custom_ops.building import ninja_build, products, toolkit
from custom_ops.building.build_plan import (
    PACKAGE,
    BuildError,
    find_compiler,
    isas,
    jax_units,
    plan,
    probe,
    source_hash,
    stamp_header,
)

say_at_once = functools.partial(print, flush=True)  # A pipe would keep lines until the end.


def build(library=None, modules=None, say=say_at_once):
    """Compiles and links the libraries and Python modules for the interpreter that runs this.

    Args:
        library: file to write the op library to, None for the one in this package. It is written
            atomically. The library for XLA is written beside it.
        modules: folder for the Python modules, None for this package.
        say: called with a line per phase and per file that is compiled.

    Returns:
        List of the paths written.

    Raises:
        BuildError: if there is no compiler, a compiler fails, or there is no TensorFlow. Without
            TensorFlow the Python modules are still built. What prevents only the kernels for GPUs
            is an error if the environment demands them, else a line.
    """
    library = pathlib.Path(library or PACKAGE / library_file.NAME)
    target = probe()
    written, record = _build_all(library, pathlib.Path(modules or PACKAGE), target, say)
    if record["reason"]:
        say(f"ops: no kernels for GPUs: {record['reason']}")
    if "tensorflow" not in target:
        raise BuildError(
            f"{sys.executable} cannot import TensorFlow ({target['error']}). Install it first: "
            f"{sys.executable} -m pip install tensorflow"
        )
    library_file.cuda_file(library).write_text(f"{json.dumps(record)}\n")
    return written


def build_modules(folder, say=say_at_once):
    """Compiles and links the Python modules of the kernels alone; needs no TensorFlow.

    Args:
        folder: where to write them.
        say: called with a line per phase and per file that is compiled.

    Raises:
        BuildError: as `build`.
    """
    target = {name: value for name, value in probe().items() if name != "tensorflow"}
    _build_all(None, pathlib.Path(folder), target, say)


def _build_all(library, modules, target, say):
    """Builds all that can be built here, with the kernels for GPUs if that is possible.

    Returns:
        List of the paths written, and the dict that `library_file.cuda_record` returns later.
    """
    compiler, tensorflow = find_compiler(), target.get("tensorflow")
    say(
        f"ops: {compiler.version}; "
        + (f"TensorFlow {tensorflow['version']}" if tensorflow else "no TensorFlow")
        + f"; instruction sets {', '.join(isas(compiler))}"
    )
    record = {"tools": toolkit.tools(), "archs": toolkit.asked_archs(), "reason": ""}
    try:
        cuda = _find_cuda(compiler, say, needs_gpu=True)
        if isinstance(cuda, toolkit.Toolkit):
            return _build(library, modules, target, compiler, cuda, say), record
        record["reason"] = cuda
    except BuildError as error:
        if toolkit.demanded():
            raise
        # If the kernels for GPUs are not the reason, it fails again without them.
        record["reason"] = " ".join(str(error).split())
    return _build(library, modules, target, compiler, None, say), record


def _build(library, modules, target, compiler, cuda, say):
    """Compiles and links all, with the kernels for GPUs if `cuda` is a toolkit.

    Returns:
        List of the paths written.
    """
    start = time.monotonic()
    units = plan(target, compiler, cuda)
    wanted = products.modules(modules, target, units, cuda)
    tensorflow, xla = target.get("tensorflow"), None
    if tensorflow:
        wanted.insert(0, products.library(library, "ops", units, tensorflow["link"], cuda))
        if units["xla"]:
            flags = [*tensorflow["link"], *tensorflow["xla"]["link"]]
            xla = products.library(library_file.for_xla(library), "xla", units, flags, cuda)
            wanted.append(xla)
    if not wanted:
        return []
    text = stamp_header(target, compiler, cuda)
    error = ninja_build.link(compiler, wanted, say, text, xla)
    if cuda is None:  # An earlier one is not for these sources.
        products.cuda_module(modules, target["suffix"]).unlink(missing_ok=True)
    if tensorflow:
        if xla is None:
            error = BuildError("this TensorFlow has no headers or library of XLA")
        _note_xla(library_file.for_xla(library), error, say)
    written = [product.path for product in wanted if not (error and product == xla)]
    paths = ", ".join(map(str, written))
    say(f"ops: wrote {paths} after {time.monotonic() - start:.0f} s")
    return written


def _note_xla(path, error, say):
    """Says why there is no library for XLA, and writes it to a file; deletes an earlier library."""
    reason = library_file.not_built(path)
    if error is None:
        return reason.unlink(missing_ok=True)
    text = " ".join(str(error).split())
    say(f"ops: no library for XLA: {text}")
    path.unlink(missing_ok=True)
    reason.write_text(text, encoding="utf-8")


def build_cuda_module(folder=None, say=say_at_once, variants=None):
    """Compiles and links the Python module of the kernels for GPUs alone; needs no TensorFlow.

    Args:
        folder: where to write it, None for this package.
        say: called with a line per phase and per file that is compiled.
        variants: dict from folders to flags of nvcc, which come after its usual ones: a module more
            is written to each. All are compiled at the same time.

    Returns:
        The path written. Variants have the same name in their folders.

    Raises:
        BuildError: if there is no CUDA toolkit or no pybind11, or a compiler fails.
    """
    compiler, target = find_compiler(), probe()
    cuda = _find_cuda(compiler, say)
    if isinstance(cuda, str):
        raise BuildError(
            f"The module _vit_cuda needs the nvcc of a CUDA toolkit, but {cuda}: set CUDA_HOME."
        )
    folder = pathlib.Path(folder or PACKAGE)
    path = products.cuda_module(folder, target["suffix"])
    found = products.modules(folder, target, plan(target, compiler, cuda), cuda)
    found = [product for product in found if product.path == path]
    if not found:
        raise BuildError(f"The module _vit_cuda needs pybind11: {sys.executable} -m pip install it")
    found += [products.variant(found[0], *variant) for variant in (variants or {}).items()]
    ninja_build.link(compiler, found, say)
    return path


def build_jax_library(platform, folder, say=say_at_once, include=None):
    """Compiles and links the XLA handlers of the ops for JAX; needs no TensorFlow.

    The library has one function, `vit_ops_handler(name)`, which returns the address of the handler
    of the op of this name, such as "VitAttention", or null. `jax.ffi.register_ffi_target` takes it.

    Args:
        platform: "cpu" or "CUDA", as JAX names it.
        folder: where to write the library.
        say: called with a line per phase and per file that is compiled.
        include: folder of the headers of XLA's FFI, None for the folder of the installed jaxlib.

    Returns:
        The path written.

    Raises:
        BuildError: if there is no jaxlib, for "CUDA" no CUDA toolkit, or a compiler fails.
    """
    compiler, version = find_compiler(), f"headers in {include}"
    if include is None:
        found = importlib.util.find_spec("jaxlib")
        if found is None or not found.submodule_search_locations:
            raise BuildError(f"The handlers for JAX need jaxlib: {sys.executable} has none.")
        include = pathlib.Path(found.submodule_search_locations[0]) / "include"
        version = f"jaxlib {importlib.metadata.version('jaxlib')}"
    cuda = _find_cuda(compiler, say) if platform == "CUDA" else None
    if isinstance(cuda, str):
        raise BuildError(f"The handlers for JAX on GPUs need nvcc, but {cuda}: set CUDA_HOME.")
    path = pathlib.Path(folder) / f"_vit_jax_{platform.lower()}.so"
    units = jax_units(include, version, compiler, cuda)
    ninja_build.link(compiler, [products.jax_library(path, units, cuda)], say)
    return path


def _find_cuda(compiler, say, needs_gpu=False):
    """The CUDA toolkit, which a line tells, or why there is none."""
    found = toolkit.find(compiler, needs_gpu)
    if isinstance(found, toolkit.Toolkit):
        say(f"ops: {found.compiler.version} for {', '.join(found.targets)} ({found.why})")
    return found


def is_current(say=None):
    """Whether what `main` builds is there and fits the sources, the installed TensorFlow and CUDA.

    Fast: it imports nothing and starts no process.

    Args:
        say: called with a line if they do, but lack the kernels for GPUs since these failed.
    """
    path = pathlib.Path(os.environ.get(library_file.VARIABLE) or PACKAGE / library_file.NAME)
    stamp = library_file.read_stamp(path)
    try:
        version = importlib.metadata.version("tensorflow")
    except importlib.metadata.PackageNotFoundError:
        return False
    if stamp is None or (stamp["sources"], stamp["tensorflow"]) != (source_hash(), version):
        return False
    targets, record = stamp["cuda_archs"].split(), library_file.cuda_record(path)
    if toolkit.differs(targets, record):
        return False
    xla = library_file.for_xla(path)
    if not (xla.exists() or library_file.not_built(xla).exists()):
        return False
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    modules = [PACKAGE / f"_vit_kernels{suffix}"]
    if targets:
        modules.append(products.cuda_module(PACKAGE, suffix))
    if importlib.util.find_spec("pybind11") and not all(path.exists() for path in modules):
        return False
    if say and toolkit.tools() and record["reason"]:
        say(f"ops: built without kernels for GPUs: {record['reason']}")
    return True


def main():
    """Builds where the environment variable says, or into this package."""
    try:
        build(os.environ.get(library_file.VARIABLE))
    except BuildError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {error.strerror}: {error.filename}")


if __name__ == "__main__":
    main()
