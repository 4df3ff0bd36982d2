"""Builds the ops of a checkout, for the instruction sets that this processor uses only.

Usage: `python -P build.py TREE OBJECTS [CHANGED]`. Without CHANGED it builds all, and copies the
folder of the build to OBJECTS. With CHANGED, the path of a changed source, it compiles what reads
this source, beginning with OBJECTS; but the kernels for other instruction sets and for GPUs stay as
they are, and do not have the change.
"""

import pathlib
import shutil
import subprocess
import sys

TREE, OBJECTS = map(pathlib.Path, sys.argv[1:3])
CHANGED = sys.argv[3] if len(sys.argv) > 3 else None
sys.path.insert(0, str(TREE))

from custom_ops import build_ops  # noqa: E402
from custom_ops.building import build_plan, ninja_build, toolkit  # noqa: E402


def main():
    """Builds."""
    place = ninja_build.folder()
    if CHANGED is None:
        build_ops.build()
        shutil.copytree(place, OBJECTS)
    else:
        shutil.rmtree(place)
        shutil.copytree(OBJECTS, place)
        shutil.copyfile(TREE / CHANGED, place / "sources" / CHANGED)
        _leave_out(place)
        build_ops.build()


def _leave_out(place):
    """Makes object files newer than the changed source; only the others are compiled."""
    compiler = build_plan.find_compiler()
    cuda, own = toolkit.find(compiler), _own_isas(compiler)
    known = cuda if isinstance(cuda, toolkit.Toolkit) else None
    parts = build_plan.plan(build_plan.probe(), compiler, known)
    units = [unit for part in parts.values() for unit in part]
    files = [ninja_build.object_of(compiler, unit) for unit in units if _is_foreign(unit, own)]
    files = [file for file in files if file.exists()]
    for file in files:
        file.touch()
    names = [f"../{path.name}" for file in files for path in (file, ninja_build.log_of(file))]
    command = [ninja_build.find_ninja(), "-f", "../build.ninja", "-t", "restat", *names]
    subprocess.run(command, cwd=place / "sources", check=True)


def _own_isas(compiler):
    """The instruction sets that the kernels use here: from AVX-512 on, several, by data type."""
    command = [*compiler.command, "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"]
    macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    known = build_plan.sources()["ISA_MACROS"]
    found = [name for name, macro in known.items() if f"#define {macro} " in macros]
    return [name for name in found if name.startswith(("avx512", "amx"))] or found[-1:]


def _is_foreign(unit, own):
    """Whether a unit is for GPUs or for an instruction set that the kernels do not use here."""
    isa = unit.name.partition("-")[2]
    is_other = isa in build_plan.sources()["ISA_COPTS"] and isa not in own
    return unit.compiler is not None or is_other


if __name__ == "__main__":
    main()
