"""Builds the ops of a checkout, for the instruction sets that this processor uses only.

Usage: `python -P build.py TREE OBJECTS [CHANGED]`. Without CHANGED it builds all, and copies the
object files to the folder OBJECTS. With CHANGED, the path of a changed source, it compiles what
reads this source; other object files come from OBJECTS. These include the kernels for other
instruction sets and for GPUs, which therefore do not have the change.
"""

import pathlib
import re
import shutil
import subprocess
import sys

TREE, OBJECTS = map(pathlib.Path, sys.argv[1:3])
CHANGED = sys.argv[3] if len(sys.argv) > 3 else None
sys.path.insert(0, str(TREE))

from custom_ops import build_ops  # noqa: E402
from custom_ops.building import build_plan, objects, toolkit  # noqa: E402


def main():
    """Copies object files before or after the build."""
    compiler = build_plan.find_compiler()
    cuda = toolkit.find(compiler)
    parts = build_plan.plan(
        build_plan.probe(), compiler, cuda if isinstance(cuda, toolkit.Toolkit) else None
    )
    units = [unit for part in parts.values() for unit in part if not _reads_stamp(unit)]
    files = objects._object_files(compiler, units, objects.cache() / "no_stamp")
    if CHANGED is None:
        build_ops.build()
        OBJECTS.mkdir(parents=True, exist_ok=True)
    own = _own_isas(compiler)
    for unit, file in files.items():
        saved = OBJECTS / f"{unit.name}.o"
        pairs = [(saved, file), (objects.log_of(saved), objects.log_of(file))]
        for kept, used in pairs if unit.compiler else pairs[:1]:
            if CHANGED is None:
                shutil.copyfile(used, kept)
            elif not _is_affected(unit, own):
                shutil.copyfile(kept, used)
    if CHANGED is not None:
        build_ops.build()


def _reads_stamp(unit):
    """Whether a unit depends on the hash of all sources; it compiles in seconds."""
    return "build_stamp.h" in (build_plan.PACKAGE / unit.source).read_text()


def _own_isas(compiler):
    """The instruction sets that the kernels use here: from AVX-512 on, several, by data type."""
    command = [*compiler.command, "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"]
    macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    known = build_plan.sources()["ISA_MACROS"]
    found = [name for name, macro in known.items() if f"#define {macro} " in macros]
    return [name for name in found if name.startswith(("avx512", "amx"))] or found[-1:]


def _is_affected(unit, own):
    """Whether a unit has to be compiled after the change."""
    isa = unit.name.partition("-")[2]
    is_foreign = isa in build_plan.sources()["ISA_COPTS"] and isa not in own
    return not (unit.compiler or is_foreign) and CHANGED in _read_by(unit.source)


def _read_by(source):
    """The paths of a source and of all files of this project that it includes."""
    found, waiting = set(), [f"custom_ops/{source}"]
    while waiting:
        path = waiting.pop()
        if path not in found and (TREE / path).is_file():
            found.add(path)
            waiting += re.findall(r'#include "(custom_ops/[^"]+)"', (TREE / path).read_text())
    return found


if __name__ == "__main__":
    main()
