"""What the kernels for GPUs use: registers, shared memory and spills, as ptxas reports them."""

import dataclasses
import re
import shutil
import subprocess

# What ptxas says of a kernel without a problem; all else in a log is a warning or an error.
_EXPECTED = (
    r"ptxas info\s+: (\d+ bytes gmem.*|Function properties for .*|Compile time = .*)",
    r"ptxas info\s+: Compiling entry function '(?P<name>[^']+)' for 'sm_(?P<arch>\w+)'",
    r"\s+(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads",
    r"ptxas info\s+: Used (?P<registers>\d+) registers(?P<rest>.*)",
)
# Names of kernels of the head sizes and dtypes that are tuned; no register of them may be spilled.
TUNED = re.compile(r"<(__nv_bfloat16|__half), (64|80)\b")


@dataclasses.dataclass(frozen=True)
class Kernel:
    """The resources of a kernel.

    Attributes:
        name: of the C++ template with its arguments, shortened.
        arch: the compute capability it was compiled for.
        registers: of a thread.
        shared: bytes of shared memory of a block, without what the launch adds.
        spilled: bytes that a thread stores and loads again for lack of registers.
    """

    name: str
    arch: str
    registers: int
    shared: int
    spilled: int


def parse(log) -> tuple[list[Kernel], list[str]]:
    """Reads the output of nvcc with `-Xptxas=-v`.

    Returns:
        The kernels, and the lines that are not about resources: warnings and errors.
    """
    found, others, kernel = [], [], {}
    for line in log.splitlines():
        match = next((m for m in (re.fullmatch(p, line) for p in _EXPECTED) if m), None)
        if match is None:
            others += [line] if line.strip() else []
            continue
        kernel |= match.groupdict()
        if "registers" in kernel and "name" in kernel:
            shared = re.search(r"(\d+) bytes smem", kernel["rest"])
            spilled = int(kernel["stores"]) + int(kernel["loads"])
            found.append(
                Kernel(
                    kernel["name"],
                    kernel["arch"],
                    int(kernel["registers"]),
                    int(shared[1]) if shared else 0,
                    spilled,
                )
            )
            kernel = {}
    names = short_names([kernel.name for kernel in found])
    return [
        dataclasses.replace(kernel, name=name) for kernel, name in zip(found, names, strict=True)
    ], others


def short_names(mangled) -> list[str]:
    """Names of C++ functions without return type, namespaces and parameters.

    Without c++filt they stay as they are, and `TUNED` finds none.
    """
    if not mangled or shutil.which("c++filt") is None:
        return list(mangled)
    text = "\n".join(mangled)
    done = subprocess.run(["c++filt"], input=text, capture_output=True, text=True, check=True)
    return [_short(name) for name in done.stdout.splitlines()]


def _short(name):
    name = re.sub(r"\(anonymous namespace\)::|\w*_GLOBAL__N_\w*::|\bvit::", "", name)
    name = re.sub(r"\((unsigned |int|long|bool|char)[\w ]*\)|^void ", "", name)
    depth = 0
    for i, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            return name[:i]
    return name


def table(kernels) -> str:
    """The kernels as text: a line for each, sorted by name."""
    rows = [("kernel", "arch", "registers", "shared bytes", "spilled bytes")]
    ordered = sorted(kernels, key=lambda kernel: (kernel.name, kernel.arch))
    rows += [tuple(map(str, dataclasses.astuple(kernel))) for kernel in ordered]
    width = max(len(row[0]) for row in rows)
    return "\n".join(
        f"{name:{width}} {arch:>5} {registers:>9} {shared:>12} {spilled:>13}"
        for name, arch, registers, shared, spilled in rows
    )
