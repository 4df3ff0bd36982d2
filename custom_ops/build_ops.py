"""Compiles the op library and the Python modules of the kernels: `python -m custom_ops.build_ops`.

The command builds for the interpreter that runs it and the TensorFlow installed there. It writes to
the place where `custom_ops.loader` looks: this package, or the file that the environment variable
`VIT_OPS_LIBRARY` names. The library for XLA is written beside the op library. It is optional: where
it cannot be built, a line says so, and the rest is built. Run the command again after every change
of TensorFlow's version, because binaries of one version do not fit another. `CXX` names a compiler
other than g++. With a CUDA toolkit the kernels for GPUs are built too, and the Python module of
these: `custom_ops/building/toolkit.py` says how to choose. If they cannot be built, a line says why
and the rest is built, unless the environment demands them. Sources and flags are listed in
`sources.bzl`, which Bazel reads too. Only changed sources are compiled again: object files are kept
in `build/ops` of a checkout, else in the user's cache folder. The terminal shows a line per phase;
`setup.log` beside that folder gets a line per file and the registers of the kernels for GPUs.
"""

import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys
import sysconfig
import time
from collections.abc import Callable

from custom_ops import library_file
from custom_ops.building import objects, products, toolkit
from custom_ops.building.build_plan import (
    PACKAGE,
    BuildError,
    Compiler,
    find_compiler,
    isas,
    jax_units,
    plan,
    probe,
    source_hash,
    sources,
)

KERNELS = "cuda_kernels.json"  # beside a module of `build_cuda_module`


@dataclasses.dataclass(frozen=True)
class _Job:
    """What to build, and with what.

    Attributes:
        library: file of the op library.
        modules: folder of the Python modules.
        compiler: for C++.
        target: the answer of `probe`.
        say: called with a line per phase.
    """

    library: pathlib.Path
    modules: pathlib.Path
    compiler: Compiler
    target: dict
    say: Callable


def build(library=None, modules=None, say=print):
    """Compiles and links the libraries and Python modules for the interpreter that runs this.

    Args:
        library: file to write the op library to, None for the one in this package. It is written
            atomically. The library for XLA is written beside it.
        modules: folder for the Python modules, None for this package.
        say: called with a line per phase.

    Returns:
        List of the paths written.

    Raises:
        BuildError: if there is no compiler, a compiler fails, or there is no TensorFlow. Without
            TensorFlow the Python modules are still built. What prevents only the kernels for GPUs
            is an error if the environment demands them, else a line.
    """
    library = pathlib.Path(library or PACKAGE / library_file.NAME)
    job = _Job(library, pathlib.Path(modules or PACKAGE), find_compiler(), probe(), say)
    tensorflow = job.target.get("tensorflow")
    say(
        f"ops: {job.compiler.version}; "
        + (f"TensorFlow {tensorflow['version']}" if tensorflow else "no TensorFlow")
        + f"; instruction sets {', '.join(isas(job.compiler))}"
    )
    tools = toolkit.tools()
    written, reason = _build_with_cuda(job)
    if reason:
        written = _build(job, None)
        say(f"ops: no kernels for GPUs: {reason}")
    if tensorflow is None:
        raise BuildError(
            f"{sys.executable} cannot import TensorFlow ({job.target['error']}). Install it first: "
            f"{sys.executable} -m pip install tensorflow"
        )
    record = {"tools": tools, "archs": toolkit.asked_archs(), "reason": reason}
    text = f"{json.dumps(record)}\n"
    objects.replace(library_file.cuda_file(library), lambda path: path.write_text(text))
    return written


def _build_with_cuda(job):
    """Builds all with the kernels for GPUs, if that is possible.

    Returns:
        List of the paths written, and "" or why nothing with these kernels can be built.

    Raises:
        BuildError: as `build`.
    """
    try:
        cuda = _find_cuda(job.compiler, job.say, needs_gpu=True)
        return ([], cuda) if isinstance(cuda, str) else (_build(job, cuda), "")
    except toolkit.CudaError as error:
        if toolkit.demanded():
            raise
        return [], " ".join(str(error).split())


def _build(job, cuda):
    """Compiles and links all, with the kernels for GPUs if `cuda` is a toolkit.

    Returns:
        List of the paths written.

    Raises:
        BuildError: if something but the kernels for GPUs fails.
        CudaError: if the kernels fail, or what is linked with them.
    """
    start = time.monotonic()
    units = plan(job.target, job.compiler, cuda)
    wanted = products.modules(job.modules, job.target, units, cuda)
    xla, tensorflow = None, job.target.get("tensorflow")
    if tensorflow:
        ops = products.library(job.library, "ops", units, tensorflow["link"], cuda)
        wanted.insert(0, ops)
        if units["xla"]:
            flags = [*tensorflow["link"], *tensorflow["xla"]["link"]]
            xla = products.library(library_file.for_xla(job.library), "xla", units, flags, cuda)
    if not wanted:
        return []
    stamp = _write_stamp(objects.cache(), job.target, job.compiler, cuda)
    for_xla = [*units["xla"], *units["cuda_xla"]]
    for_gpus = [*units["cuda"], *units["cuda_ops"], *units["cuda_module"]]
    # The kernels for GPUs and the first one of these take longest to compile.
    files = [*units["cuda"], *for_xla, *(unit for product in wanted for unit in product.units)]
    files = list(dict.fromkeys(files))
    # Kernels that are demanded end the build as soon as one fails.
    optional = for_xla if toolkit.demanded() else [*for_xla, *for_gpus]
    job.say(f"ops: compiling what changed of {len(files)} files; details in {objects.log()}")
    compiled, errors = objects.compile_units(job.compiler, files, stamp, optional)
    if failed := [errors[unit] for unit in for_gpus if unit in errors]:
        raise toolkit.cuda_error(failed[0])
    written = []

    def link(product):
        _link(job.compiler, product, compiled, stamp)
        written.append(product.path)

    if tensorflow:  # Until all is written the record belongs to other files.
        library_file.cuda_file(job.library).unlink(missing_ok=True)
    for product in wanted:
        try:
            link(product)
        except BuildError as error:
            # Without the kernels it fails again if they are not the reason.
            if cuda is None:
                raise
            raise toolkit.cuda_error(error) from None
    if cuda is None:  # An earlier one is not for these sources.
        products.cuda_module(job.modules, job.target["suffix"]).unlink(missing_ok=True)
    if tensorflow:
        failed = [errors[unit] for unit in for_xla if unit in errors]
        _link_for_xla(link, job.library, xla, failed, job.say)
    paths = ", ".join(map(str, written))
    job.say(f"ops: wrote {paths} after {time.monotonic() - start:.0f} s")
    return written


def build_modules(folder, say=print):
    """Compiles and links the Python modules of the kernels alone; needs no TensorFlow.

    Args:
        folder: where to write them.
        say: called with a line per phase.

    Raises:
        BuildError: as `build`.
    """
    target = {name: value for name, value in probe().items() if name != "tensorflow"}
    folder = pathlib.Path(folder)
    job = _Job(folder / library_file.NAME, folder, find_compiler(), target, say)
    _, reason = _build_with_cuda(job)
    if reason:
        _build(job, None)


def build_cuda_module(folder=None, say=print, variants=None):
    """Compiles and links the Python module of the kernels for GPUs alone; needs no TensorFlow.

    Beside it comes the file `KERNELS`, a list of the fields of each `resources.Kernel`, as JSON.

    Args:
        folder: where to write it, None for this package.
        say: called with a line per phase.
        variants: dict from folders to flags of nvcc, which come after its usual ones: a module more
            is written to each, with its own `KERNELS`. All are compiled at the same time.

    Returns:
        The path written. Variants have the same name in their folders.

    Raises:
        BuildError: if there is no CUDA toolkit or no pybind11, or a compiler fails.
    """
    compiler = find_compiler()
    target = probe()
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
    units = list(dict.fromkeys(unit for product in found for unit in product.units))
    stamp = _write_stamp(objects.cache(), target, compiler, cuda)
    say(f"ops: compiling what changed of {len(units)} files; details in {objects.log()}")
    compiled, _ = objects.compile_units(compiler, units, stamp)
    for product in found:
        _link(compiler, product, compiled, stamp)
        kernels, _ = objects.kernels_in([compiled[x] for x in product.units if x.compiler])
        text = json.dumps([dataclasses.asdict(kernel) for kernel in kernels])
        table = product.path.with_name(KERNELS)
        objects.replace(table, lambda path, text=text: path.write_text(text))
    return path


def build_jax_library(platform, folder, say=print, include=None):
    """Compiles and links the XLA handlers of the ops for JAX; needs no TensorFlow.

    The library has one function, `vit_ops_handler(name)`, which returns the address of the handler
    of the op of this name, such as "VitAttention", or null. `jax.ffi.register_ffi_target` takes it.

    Args:
        platform: "cpu" or "CUDA", as JAX names it.
        folder: where to write the library.
        say: called with a line per phase.
        include: folder of the headers of XLA's FFI, None for that of the installed jaxlib.

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
    units = jax_units(include, version, compiler, cuda)
    stamp = _write_stamp(objects.cache(), {}, compiler, cuda)
    compiled, _ = objects.compile_units(compiler, units, stamp)
    path = pathlib.Path(folder) / f"_vit_jax_{platform.lower()}.so"
    flags = (*sources()["OP_LINKOPTS"], *(cuda.link if cuda else ("-lpthread",)))
    _link(compiler, products.Product(path, units, flags), compiled, stamp)
    return path


def _link(compiler, product, compiled, stamp):
    """Links a product from the object files that its units were compiled to."""
    files = [compiled[unit] for unit in product.units]
    objects.link(compiler, files, product.flags, product.path, stamp.parent)


def _find_cuda(compiler, say, needs_gpu=False):
    """The CUDA toolkit, which a line tells, or why there is none."""
    found = toolkit.find(compiler, needs_gpu)
    if isinstance(found, toolkit.Toolkit):
        say(f"ops: {found.compiler.version} for {', '.join(found.targets)} ({found.why})")
    return found


def _link_for_xla(link, library, product, errors, say):
    """Links the library for XLA, or says why there is none and writes it to a file."""
    path = library_file.for_xla(library)
    reason = library_file.not_built(path)
    try:
        if product is None:
            raise BuildError("this TensorFlow has no headers or library of XLA")
        if errors:
            raise errors[0]
        link(product)
        reason.unlink(missing_ok=True)
    except BuildError as error:
        text = " ".join(str(error).split())
        say(f"ops: no library for XLA: {text}")
        path.unlink(missing_ok=True)  # An earlier one is not for these sources.
        reason.write_text(text, encoding="utf-8")


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


def _write_stamp(cache, target, compiler, cuda):
    """Writes the header that goes into the library as its stamp; custom_ops/BUILD has the same."""
    version = target.get("tensorflow", {}).get("version", "")
    text = (
        f'#define VIT_OPS_TENSORFLOW "{version}"\n'
        f'#define VIT_OPS_ISAS "{" ".join(isas(compiler))}"\n'
        f'#define VIT_OPS_CUDA_ARCHS "{" ".join(cuda.targets if cuda else ())}"\n'
        f'#define VIT_OPS_SOURCES "{source_hash()}"\n'
    )
    folder = cache / f"stamp-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    (folder / "custom_ops").mkdir(parents=True, exist_ok=True)
    objects.replace(folder / "custom_ops" / "build_stamp.h", lambda path: path.write_text(text))
    return folder


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
