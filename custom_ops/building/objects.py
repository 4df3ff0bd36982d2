"""Compiles units to object files, which a cache keeps, and links them."""

import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import tempfile
import time

from custom_ops.building import build_plan, resources, toolkit
from custom_ops.building.build_plan import BuildError, last_line

_KEPT = 4  # Versions of each object in the cache.
# The flag of g++ and clang++ that leaves out a folder in the names of files that the code contains.
# That of nvcc is in `Toolkit.path_flags`.
_FILE_NAMES = "-fmacro-prefix-map"


def cache():
    """The folder of the object files: of the checkout, else of the user. Creates it."""
    checkout = build_plan.PACKAGE.parent
    if (checkout / "setup.py").is_file():
        folder = checkout / "build" / "ops"
    else:
        home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        folder = pathlib.Path(home) / "vit_tf" / "ops"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def log():
    """The file with the details of all builds: of the checkout, else of the user."""
    return cache().parent / "setup.log"


def compile_units(compiler, units, stamp, optional=()):
    """Compiles the units whose object files the cache does not have; appends to `log()`.

    Args:
        compiler: a `Compiler`, for units that have no other.
        units: a list of `Unit`. Of those with the same name the first is that of the report.
        stamp: folder that holds `custom_ops/build_stamp.h`. The cache is the folder around it.
        optional: units that may fail.

    Returns:
        Dict from unit to object file, without units in `optional` that do not compile, and a dict
        from these to their errors.
    """
    files = _object_files(compiler, units, stamp)
    missing = [unit for unit in units if not _is_there(unit, files[unit])]
    errors = {}

    def compile_one(unit):
        start = time.monotonic()
        replace(files[unit], lambda path: _compile_one(compiler, unit, stamp, path, files[unit]))
        return time.monotonic() - start

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = {pool.submit(compile_one, unit): unit for unit in missing}
        try:
            for i, future in enumerate(concurrent.futures.as_completed(running)):
                unit = running[future]
                try:
                    _note(f"{i + 1:2}/{len(missing)} {unit.name} {future.result():.0f} s")
                except BuildError as error:
                    if unit not in optional:
                        raise
                    errors[unit] = error
                    del files[unit]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    for unit in files:
        os.utime(files[unit])
    # Variants of a unit have its name.
    for name, count in collections.Counter(unit.name for unit in files).items():
        _prune(stamp.parent, name, max(_KEPT, count))
    kernels = {unit.name: unit for unit in reversed(units) if unit.compiler}.values()
    if kernels and not errors.keys() & set(kernels):
        lines = _report_kernels(stamp.parent, [files[unit] for unit in kernels])
        for line in lines if any(unit.compiler for unit in missing) else ():
            _note(f"nvcc: {line}")
    return files, errors


def _note(line):
    with log().open("a", encoding="utf-8") as file:
        file.write(f"ops: {line}\n")


def _is_there(unit, file):
    return file.exists() and (unit.compiler is None or log_of(file).exists())


def log_of(file):
    """The file with what nvcc said when it compiled an object file."""
    return file.with_suffix(".txt")


def link(compiler, files, flags, path, logs):
    """Links object files to a library.

    Args:
        compiler: a `Compiler`.
        files: the object files.
        flags: of the linker, after those of `sources.bzl`.
        path: file to write, atomically.
        logs: folder for the messages of a failure.
    """
    lists = build_plan.sources()
    exports = f"-Wl,--version-script={build_plan.PACKAGE / lists['EXPORTS']}"
    options = [exports, *lists["LINKOPTS"], *flags]
    replace(
        path,
        lambda temporary: _run(
            [*compiler.command, "-shared", "-o", str(temporary), *map(str, files), *options],
            f"link {path.name}",
            logs / "link.log",
        ),
    )


def replace(path, write):
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


def _object_files(compiler, units, stamp):
    """Dict from unit to the object file, whose name depends on all that goes into it."""
    found = {}
    for unit in units:
        text = (build_plan.PACKAGE / unit.source).read_text()
        headers = [
            "".join((build_plan.PACKAGE / file).read_text() for file in files)
            for files in build_plan.headers_of(unit.source)
        ]
        own = unit.compiler or compiler
        # Include folders are not part of the key: pip's isolated builds change them every time.
        parts = [*own.command, own.version, *unit.flags, _FILE_NAMES, text, unit.package, *headers]
        if "build_stamp.h" in text:
            parts.append(stamp.name)
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
        found[unit] = stamp.parent / f"{unit.name}-{key}.o"
    return found


def _compile_one(compiler, unit, stamp, path, file):
    """Compiles a unit to `path`, which will be renamed to `file`."""
    include = "-I" if unit.compiler else "-iquote"  # nvcc has no -iquote.
    command = [
        *(unit.compiler or compiler).command,
        *unit.flags,
        *(f"{include}{folder}" for folder in (build_plan.PACKAGE.parent, stamp)),
        *unit.includes,
        *(() if unit.compiler else _without_folders(unit)),
        *("-c", str(build_plan.PACKAGE / unit.source), "-o", str(path)),
    ]
    log = stamp.parent / f"{unit.name}.log"
    try:
        said = _run(command, f"compile custom_ops/{unit.source}", log)
    except BuildError as error:
        raise toolkit.cuda_error(error) if unit.compiler else error from None
    if unit.compiler:
        replace(log_of(file), lambda text: text.write_text(said))


def _without_folders(unit):
    """Flags that make the object file the same wherever the sources and the headers are."""
    headers = [flag.removeprefix("-isystem") for flag in unit.includes]
    return [f"{_FILE_NAMES}={folder}/=" for folder in (build_plan.PACKAGE.parent, *headers)]


def kernels_in(files):
    """What `resources.parse` returns of all that nvcc said when it compiled these object files."""
    return resources.parse("\n".join(log_of(file).read_text() for file in files))


def _report_kernels(folder, files):
    """Writes what the kernels for GPUs use to `cuda_kernels.txt`; returns warnings, its lines.

    PTX alone says nothing of kernels: then the file stays as it is.
    """
    kernels, others = kernels_in(files)
    if not kernels:
        return others
    table = resources.table(kernels)
    replace(folder / "cuda_kernels.txt", lambda path: path.write_text(f"{table}\n"))
    return [*others, *table.splitlines()]


def _prune(folder, name, kept):
    """Deletes all but the `kept` most recently used object files of a name."""
    found = folder.glob(f"{name}-{'?' * 16}.o")
    for path in sorted(found, key=lambda path: path.stat().st_mtime)[:-kept]:
        path.unlink(missing_ok=True)
        log_of(path).unlink(missing_ok=True)


def _run(command, what, log):
    """Runs a compiler and returns what it said; a failure is an error with the log's place."""
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"LC_ALL": "C"},  # The messages are searched for English words below.
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise BuildError(f"Could not {what}: {command[0]}: {error.strerror}") from None
    if done.returncode == 0:
        return done.stdout
    log.write_text(f"{shlex.join(command)}\n{done.stdout}")
    telling = re.compile(r"\berror\b|undefined|Error|cannot find")
    lines = [line for line in done.stdout.splitlines() if telling.search(line)]
    first = "\n  ".join(lines[:3]) or last_line(done.stdout) or f"exit code {done.returncode}"
    raise BuildError(f"Could not {what}; all messages are in {log}:\n  {first}")
