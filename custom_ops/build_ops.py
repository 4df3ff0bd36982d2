"""Compiles the op library and the Python module of the kernels: `python -m custom_ops.build_ops`.

The command builds for the interpreter that runs it and the TensorFlow installed there. It writes to
the place where `custom_ops.loader` looks: this package, or the file that the environment variable
`VIT_OPS_LIBRARY` names. The library for XLA is written beside the op library. It is optional: where
it cannot be built, a line says so, and the rest is built. Run the command again after every change
of TensorFlow's version, because binaries of one version do not fit another. `CXX` names a compiler
other than g++. Sources and flags are listed in `sources.bzl`, which Bazel reads too. Only changed
sources are compiled again: object files are kept in `build/ops` of a checkout, else in the user's
cache folder.
"""

import concurrent.futures
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import time

from custom_ops import library_file
from custom_ops.build_plan import (
    HEADER_LISTS,
    PACKAGE,
    BuildError,
    find_compiler,
    isas,
    last_line,
    plan,
    probe,
    source_hash,
    sources,
)

_OBJECTS_KEPT = 4  # Versions of each object in the cache.


def build(library=None, modules=None, say=print):
    """Compiles and links the libraries and the Python module for the interpreter that runs this.

    Args:
        library: file to write the op library to, None for the one in this package. It is written
            atomically. The library for XLA is written beside it.
        modules: folder for the Python module, None for this package.
        say: called with lines of progress.

    Returns:
        List of the paths written.

    Raises:
        BuildError: if there is no compiler, the compiler fails, or there is no TensorFlow. Without
            TensorFlow the Python module is still built.
    """
    start = time.monotonic()
    compiler = find_compiler()
    target = probe()
    tensorflow = target.get("tensorflow")
    units = plan(target, compiler)
    say(
        f"ops: {compiler.version}; "
        + (f"TensorFlow {tensorflow['version']}" if tensorflow else "no TensorFlow")
        + f"; instruction sets {', '.join(isas(compiler))}"
    )
    library = pathlib.Path(library or PACKAGE / library_file.NAME)
    products = []
    if tensorflow:
        flags = [*sources()["OP_LINKOPTS"], *tensorflow["link"]]
        products.append((library, [*units["info"], *units["ops"]], flags))
    if units["module"]:
        path = pathlib.Path(modules or PACKAGE) / f"_vit_kernels{target['suffix']}"
        products.append((path, units["module"], []))
    written = []
    if products:
        cache = _cache()
        # The first one of them takes longest to compile.
        wanted = [*units["xla"], *units["kernels"], *(u for _, own, _ in products for u in own)]
        stamp = _write_stamp(cache, target, compiler)
        objects, errors = _compile(compiler, wanted, stamp, say, optional=units["xla"])

        def link(path, own, flags):
            inputs = [objects[unit] for unit in (*own, *units["kernels"])]
            _link(compiler, inputs, flags, path, cache)
            say(f"ops: wrote {path} after {time.monotonic() - start:.0f} s")
            written.append(path)

        for product in products:
            link(*product)
        if tensorflow:
            _link_for_xla(link, library, units, errors, tensorflow, say)
    if not tensorflow:
        raise BuildError(
            f"{sys.executable} cannot import TensorFlow ({target['error']}). Install it first: "
            f"{sys.executable} -m pip install tensorflow"
        )
    return written


def _link_for_xla(link, library, units, errors, tensorflow, say):
    """Links the library for XLA, or says why there is none and writes it to a file."""
    path = library_file.for_xla(library)
    reason = library_file.not_built(path)
    try:
        if not units["xla"]:
            raise BuildError("this TensorFlow has no headers or library of XLA")
        if errors:
            raise errors[0]
        flags = [*sources()["OP_LINKOPTS"], *tensorflow["link"], *tensorflow["xla"]["link"]]
        link(path, [*units["info"], *units["xla"]], flags)
        reason.unlink(missing_ok=True)
    except BuildError as error:
        text = " ".join(str(error).split())
        say(f"ops: no library for XLA: {text}")
        path.unlink(missing_ok=True)  # An earlier one is not for these sources.
        reason.write_text(text, encoding="utf-8")


def is_current():
    """Whether the binaries in this package fit its sources and the installed TensorFlow.

    Fast: it imports nothing and starts no process.
    """
    stamp = library_file.read_stamp(PACKAGE / library_file.NAME)
    try:
        version = importlib.metadata.version("tensorflow")
    except importlib.metadata.PackageNotFoundError:
        return False
    if stamp is None or (stamp["sources"], stamp["tensorflow"]) != (source_hash(), version):
        return False
    xla = library_file.for_xla(PACKAGE / library_file.NAME)
    if not (xla.exists() or library_file.not_built(xla).exists()):
        return False
    module = PACKAGE / f"_vit_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
    return module.exists() or importlib.util.find_spec("pybind11") is None


def _cache():
    if (PACKAGE.parent / "setup.py").is_file():
        cache = PACKAGE.parent / "build" / "ops"
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        cache = pathlib.Path(home) / "vit_tf" / "ops"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def _write_stamp(cache, target, compiler):
    """Writes the header that goes into the library as its stamp; custom_ops/BUILD has the same."""
    version = target.get("tensorflow", {}).get("version", "")
    text = (
        f'#define VIT_OPS_TENSORFLOW "{version}"\n'
        f'#define VIT_OPS_ISAS "{" ".join(isas(compiler))}"\n'
        f'#define VIT_OPS_SOURCES "{source_hash()}"\n'
    )
    folder = cache / f"stamp-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    (folder / "custom_ops").mkdir(parents=True, exist_ok=True)
    _replace(folder / "custom_ops" / "build_stamp.h", lambda path: path.write_text(text))
    return folder


def _compile(compiler, units, stamp, say, optional=()):
    """Compiles the units whose object files the cache does not have.

    Returns:
        Dict from unit to object file, without units in `optional` that do not compile, and the list
        of their errors.
    """
    cache = stamp.parent
    headers = {
        name: "".join((PACKAGE / file).read_text() for file in sources()[name])
        for name in HEADER_LISTS
    }
    xla = [*sources()["XLA_OPS"], *sources()["CUDA_XLA_OPS"]]
    objects = {}
    for unit in units:
        text = (PACKAGE / unit.source).read_text()
        # Include folders are not part of the key: pip's isolated builds change them every time.
        parts = [*compiler.command, compiler.version, *unit.flags, text]
        parts += [unit.package, headers["HEADERS"]]
        if unit.source in (*sources()["OPS"], *xla):
            parts.append(headers["OP_HEADERS"])
        if unit.source in xla:
            parts.append(headers["XLA_HEADERS"])
        if unit.source in sources()["MODULE"]:
            parts.append(headers["MODULE_HEADERS"])
        if "build_stamp.h" in text:
            parts.append(stamp.name)
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        objects[unit] = cache / f"{unit.name}-{key}.o"
    missing = [unit for unit in units if not objects[unit].exists()]
    errors = []

    def compile_one(unit):
        start = time.monotonic()
        _replace(
            objects[unit],
            lambda path: _run(
                [
                    *compiler.command,
                    *unit.flags,
                    f"-iquote{PACKAGE.parent}",
                    f"-iquote{stamp}",
                    *unit.includes,
                    *("-c", str(PACKAGE / unit.source), "-o", str(path)),
                ],
                f"compile custom_ops/{unit.source}",
                cache / f"{unit.name}.log",
            ),
        )
        return time.monotonic() - start

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = {pool.submit(compile_one, unit): unit for unit in missing}
        try:
            for i, future in enumerate(concurrent.futures.as_completed(running)):
                unit = running[future]
                try:
                    say(f"ops: {i + 1:2}/{len(missing)} {unit.name} {future.result():.0f} s")
                except BuildError as error:
                    if unit not in optional:
                        raise
                    errors.append(error)
                    del objects[unit]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for unit in objects:
        os.utime(objects[unit])
        _prune(cache, unit.name)
    return objects, errors


def _prune(cache, name):
    """Deletes all but the most recently used object files of a name."""
    found = cache.glob(f"{name}-{'?' * 16}.o")
    for path in sorted(found, key=lambda path: path.stat().st_mtime)[:-_OBJECTS_KEPT]:
        path.unlink(missing_ok=True)


def _link(compiler, objects, flags, path, cache):
    options = [*sources()["LINKOPTS"], *flags]
    _replace(
        path,
        lambda temporary: _run(
            [*compiler.command, "-shared", "-o", str(temporary), *map(str, objects), *options],
            f"link {path.name}",
            cache / "link.log",
        ),
    )


def _run(command, what, log):
    done = subprocess.run(
        command,
        env=os.environ | {"LC_ALL": "C"},  # The messages are searched for English words below.
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode == 0:
        return
    log.write_text(f"{shlex.join(command)}\n{done.stdout}")
    lines = [x for x in done.stdout.splitlines() if re.search(r"\berror\b|undefined|Error", x)]
    first = "\n  ".join(lines[:3]) or last_line(done.stdout) or f"exit code {done.returncode}"
    raise BuildError(f"Could not {what}; all messages are in {log}:\n  {first}")


def _replace(path, write):
    """Calls `write(temporary path)`, then renames the file, so that it is never incomplete."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        write(pathlib.Path(temporary))
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        pathlib.Path(temporary).unlink(missing_ok=True)
        raise


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
