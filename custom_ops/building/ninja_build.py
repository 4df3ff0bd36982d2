"""Compiles units and links products with ninja, which runs only what a change affects.

Everything is in one folder: `build.ninja`, copies of the sources (`sources/`), and the object files
and linked files. Each of these has its messages beside it (`.txt`), an object file also the headers
that it reads (`.d`). A copy of a source is written again only when the text differs. So the times
of files tell ninja what changed, even after a git checkout, in a copy of the folder, or if several
installations share it. The name of an object file holds a hash of its flags and compiler: builds
for several versions of TensorFlow or sets of GPUs keep theirs side by side.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import time

from custom_ops.building import build_plan, resources, toolkit
from custom_ops.building.build_plan import BuildError, Unit, last_line

# The flag of g++ and clang++ that leaves out a folder in the names of files that the code contains.
# That of nvcc is in `Toolkit.path_flags`.
_FILE_NAMES = "-fmacro-prefix-map"
_KEPT = 30 * 24 * 3600  # Object files of other versions of TensorFlow, flags and compilers.
_STATUS = "ops: ["  # Begins ninja's lines about progress.
_RULE = """builddir = ..
rule run
  command = $words > $out.txt 2>&1 || { rm -f $out; exit 1; }
  depfile = $depfile
  description = $what
"""


@dataclasses.dataclass(frozen=True)
class Product:
    """A file to link from the objects of `units`, and from the object files at `objects`."""

    path: pathlib.Path
    units: tuple[Unit, ...]
    flags: tuple[str, ...]  # of the linker
    objects: tuple[str, ...] = ()


def folder() -> pathlib.Path:
    """The folder of the build: of the checkout, else of the user."""
    checkout = build_plan.PACKAGE.parent
    if (checkout / "setup.py").is_file():
        return checkout / "build" / "ops"
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(home) / "vit_tf" / "ops"


def link(compiler, products, say, stamp="", optional=None, place=None, files=()):
    """Compiles and links products; replaces their files atomically, after all are linked.

    Args:
        compiler: a `Compiler`, for units that have no other.
        products: a list of `Product`.
        say: called with a line per file that is compiled or linked.
        stamp: text of `custom_ops/build_stamp.h`, which the units of INFO read.
        optional: a product that may fail.
        place: folder of the build, None for `folder()`.
        files: paths below the checkout of sources and headers that `sources.bzl` does not list.

    Returns:
        The error of `optional`, None if there is none.

    Raises:
        BuildError: if another product fails. It is a `CudaError` if nvcc fails, or the linker with
            what nvcc compiled.
    """
    place = place or folder()
    units = dict.fromkeys(unit for product in reversed(products) for unit in product.units)
    with _made(place, compiler, units, products, say, stamp, files) as (objects, linked):
        errors = {product: _error_of(product, objects, linked[product]) for product in products}
        for product, error in errors.items():
            if error and product != optional:
                raise error
        for product, error in errors.items():
            if not error:
                _replace(product.path, linked[product])
        kernels, _ = kernels_in([objects[unit] for unit in units if unit.compiler])
        if kernels:  # PTX alone says nothing of its kernels.
            (place / "cuda_kernels.txt").write_text(f"{resources.table(kernels)}\n")
    return errors.get(optional)


def compile_units(compiler, units, place) -> dict[Unit, pathlib.Path]:
    """Compiles units in a folder, as `link` does; returns the object file of each.

    Raises:
        BuildError: if one fails; a `CudaError` if nvcc compiles it.
    """
    with _made(place, compiler, units, (), lambda line: None) as (objects, _):
        for unit, file in objects.items():
            if not file.exists():
                raise _error_of_unit(unit, file)
    return objects


def object_of(compiler, unit) -> pathlib.Path:
    """The object file of a unit that `link` compiled, in this or an earlier build."""
    return folder() / _name(compiler, unit)


def log_of(file) -> pathlib.Path:
    """The file with what the compiler or linker said when it wrote a file."""
    return file.with_name(f"{file.name}.txt")


def kernels_in(files):
    """What `resources.parse` returns of all that nvcc said when it compiled these object files."""
    return resources.parse("\n".join(log_of(file).read_text() for file in files))


def _replace(path, file):
    """Copies a file and renames the copy to a path, which never holds a part of it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        shutil.copyfile(file, temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def find_ninja() -> str:
    """Path of ninja, of this interpreter or else on the `PATH`.

    Raises:
        BuildError: if there is none.
    """
    places = [sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
    found = shutil.which("ninja", path=os.pathsep.join(places))
    if found is None:
        raise BuildError(
            "There is no ninja, which runs the compilers. Install it: "
            f"{sys.executable} -m pip install ninja"
        )
    return found


@contextlib.contextmanager
def _made(place, compiler, units, products, say, stamp="", files=()):
    """Runs ninja in a folder; in the `with` block no other process changes the folder.

    What fails has no file afterwards.

    Yields:
        Dict from unit to object file, dict from product to linked file.
    """
    ninja = find_ninja()
    (place / "sources").mkdir(parents=True, exist_ok=True)
    with open(place / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            say(f"ops: another build uses {place}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        _copy_sources(place / "sources", files)
        objects = {unit: place / _name(compiler, unit) for unit in units}
        rules = [_compile_rule(compiler, *pair, stamp) for pair in objects.items()]
        linked = {}
        for product in products:
            names = [*(f"../{objects[unit].name}" for unit in product.units), *product.objects]
            key = _hash([*compiler.command, compiler.version, *names, *product.flags])
            linked[product] = file = place / f"{key}-{product.path.name}"
            command = [*compiler.command, "-o", f"../{file.name}", *names, *product.flags]
            exports = f"custom_ops/{build_plan.sources()['EXPORTS']}"
            rules.append(_rule(file, [*names, exports], command, f"link {product.path.name}"))
        (place / "build.ninja").write_text("".join([_RULE, *rules]))
        command = [ninja, "-f", "../build.ninja", "-k0", f"-j{len(os.sched_getaffinity(0))}"]
        said = []  # By ninja, beside its progress.
        with subprocess.Popen(
            command,
            cwd=place / "sources",
            # The messages are searched for English words.
            env=os.environ | {"NINJA_STATUS": f"{_STATUS}%f/%t] ", "LC_ALL": "C"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # If this process is killed, the compilers keep the lock until they end.
            pass_fds=(lock.fileno(),),
        ) as process:
            for line in process.stdout or ():
                if line.startswith(_STATUS):
                    say(line.strip())
                else:
                    said.append(line.strip())
        every = [*objects.values(), *linked.values()]
        # 1: the file of what failed does not exist, and its log tells why.
        if process.returncode not in (0, 1) or (
            process.returncode and all(file.exists() or not log_of(file).exists() for file in every)
        ):
            raise BuildError(f"ninja fails in {place}: {' '.join(said[:3])}")
        _prune(place, every)
        yield objects, linked


def _prune(place, used):
    """Deletes files of other builds that are older than `_KEPT` seconds."""
    names = {file.name for file in used}
    for path in place.glob("*-*"):
        of = path.name.removesuffix(".txt").removesuffix(".d")
        if of not in names and path.is_file() and path.stat().st_mtime < time.time() - _KEPT:
            path.unlink()


def _copy_sources(place, files):
    """Makes a folder hold the sources and no other file; writes what differs."""
    root = build_plan.PACKAGE.parent
    own = [*build_plan.source_files(), build_plan.sources()["EXPORTS"]]
    wanted = {place / path: root / path for path in (*(f"custom_ops/{x}" for x in own), *files)}
    for path in place.rglob("*"):
        if path.is_file() and path not in wanted:
            path.unlink()
    for copy, path in wanted.items():
        _write_if_new(copy, path.read_bytes())


def _write_if_new(path, content):
    if not path.is_file() or path.read_bytes() != content:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _hash(parts):
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _name(compiler, unit):
    """Name of an object file.

    Folders of headers are no part of it: pip's isolated builds change them every time, and ninja
    then compiles again.
    """
    own = unit.compiler or compiler
    return f"{unit.name}-{_hash([*own.command, own.version, *unit.flags, unit.package])}.o"


def _compile_rule(compiler, unit, file, stamp):
    source = os.path.normpath(f"custom_ops/{unit.source}")
    folders = ["."]
    if unit.source in build_plan.sources()["INFO"]:
        folders.append(f"../{file.stem}")
        _write_if_new(file.with_suffix("") / "custom_ops" / "build_stamp.h", stamp.encode())
    include = "-I" if unit.compiler else "-iquote"  # nvcc has no -iquote.
    headers = (".", *(flag.removeprefix("-isystem") for flag in unit.includes))
    command = [
        *(unit.compiler or compiler).command,
        *unit.flags,
        *(f"{include}{folder}" for folder in folders),
        *unit.includes,
        # The object file is the same wherever the headers are.
        *(() if unit.compiler else [f"{_FILE_NAMES}={folder}/=" for folder in headers]),
        *("-MMD", "-MF", f"../{file.name}.d", "-c", source, "-o", f"../{file.name}"),
    ]
    return _rule(file, [source], command, f"compile {unit.name}", f"../{file.name}.d")


def _rule(file, inputs, command, what, depfile=""):
    """The lines of build.ninja for a file."""
    text, what = (x.replace("$", "$$") for x in (shlex.join(map(str, command)), what))
    made, log, *paths = (
        re.sub(r"[$ :]", r"$\g<0>", path)
        for path in (f"../{file.name}", f"../{log_of(file).name}", *inputs)
    )
    return (
        f"build {made} | {log}: run {' '.join(paths)}\n"
        f"  words = {text}\n  depfile = {depfile}\n  what = {what}\n"
    )


def _error_of(product, objects, file):
    """Why a product was not linked, None if it was."""
    # An error of plain C++ is the more certain one.
    for unit in sorted(product.units, key=lambda unit: unit.compiler is not None):
        if not objects[unit].exists():
            return _error_of_unit(unit, objects[unit])
    if file.exists():
        return None
    error = _error(f"link {product.path.name}", file)
    of_cuda = any(unit.compiler for unit in product.units)
    return toolkit.cuda_error(error) if of_cuda else error


def _error_of_unit(unit, file):
    error = _error(f"compile custom_ops/{unit.source}", file)
    return toolkit.cuda_error(error) if unit.compiler else error


def _error(what, file):
    """A `BuildError` with what the compiler or linker said."""
    log = log_of(file)
    said = log.read_text(errors="replace") if log.exists() else ""
    telling = re.compile(r"\berror\b|undefined|Error|cannot find|not found")
    lines = [line for line in said.splitlines() if telling.search(line)]
    first = "\n  ".join(lines[:3]) or last_line(said) or "no message"
    return BuildError(f"Could not {what}; all messages are in {log}:\n  {first}")
