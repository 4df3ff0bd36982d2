"""What the kernels use of a multiprocessor: registers, shared memory, spills, occupancy."""

import json
import pathlib
import re
import subprocess

from benchmarks.gpu import machine
from custom_ops import build_ops
from custom_ops.building.resources import TUNED, short_names

# Warps that a multiprocessor holds, by compute capability.
_WARPS = {"80": 64, "86": 48, "89": 48, "90": 64, "100": 64, "120": 48}
_REGISTERS = 65536
# Registers are given to a warp in multiples of the first number; the warps that they suffice for
# are a multiple of the second one, the parts of a multiprocessor.
_UNIT, _PARTS = 256, 4


def rows(module, programs, variant=""):
    """The kernels of a module that `build_ops.build_cuda_module` wrote.

    Args:
        module: path of the module.
        programs: folder of the programs of the CUDA toolkit, for cuobjdump.
        variant: its name, which stands before those of the kernels; "" for the module itself. What
            a variant spills is no problem.

    Returns:
        List of dicts, tuned sizes first: `name`, `arch`, `registers`, `shared` (bytes of a block,
        without what the launch adds), `spilled` (bytes), `threads` (most of a block), `occupancy`
        (the part of the warps of a multiprocessor that registers allow), the last two None where
        cuobjdump does not tell the threads; and `problems`.

    Raises:
        OSError: if there is no list of kernels beside the module.
    """
    path = pathlib.Path(module).with_name(build_ops.KERNELS)
    threads = threads_of(_ptx(module, programs))
    found = [row(kernel, threads.get(kernel["name"])) for kernel in json.loads(path.read_text())]
    found = sorted(found, key=lambda row: (TUNED.search(row["name"]) is None, row["name"]))
    if variant:
        return [x | {"name": f"{variant}: {x['name']}", "problems": []} for x in found]
    if found and not TUNED.search(found[0]["name"]):
        problem = "none of them has the name of a tuned size, so that no spill is found; is c++filt"
        found.insert(0, {"name": "kernels", "problems": [f"{problem} of binutils missing?"]})
    return found


def row(kernel, threads):
    """A row of the table, from the fields of a `resources.Kernel` and the threads of a block."""
    spills = kernel["spilled"] and TUNED.search(kernel["name"])
    problems = [f"{kernel['spilled']} bytes of registers are spilled"] if spills else []
    found = {"threads": threads, "occupancy": None, "problems": problems}
    if threads:
        found["occupancy"] = occupancy(kernel["registers"], threads, kernel["arch"])
    return kernel | found


def occupancy(registers, threads, arch):
    """The part of the warps of a multiprocessor that registers allow, 0 to 1."""
    most = _WARPS[arch.rstrip("a")]
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // _UNIT) * _UNIT
    suffice = _REGISTERS // of_warp // _PARTS * _PARTS
    blocks = min(suffice, most) // warps
    return blocks * warps / most


def threads_of(ptx):
    """Dict from the name of each kernel with launch bounds to the most threads of a block."""
    found = re.findall(r"\.entry\s+(\w+)[^{]*?\.maxntid\s+(\d+)", ptx)
    names = short_names([name for name, _ in found])
    return {name: int(count) for name, (_, count) in zip(names, found, strict=True)}


def _ptx(module, programs):
    """The PTX in a module, "" where cuobjdump is missing or fails."""
    program = machine.program("cuobjdump", programs)
    if program is None:
        return ""
    command = [program, "--dump-ptx", str(module)]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except subprocess.TimeoutExpired:
        return ""
