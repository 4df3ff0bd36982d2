"""Builds the module of the kernels for the GPU of this machine, checks it, and times it.

One command for a machine with a GPU, nvcc, PyTorch and pybind11; TensorFlow is not needed.
`custom_ops.build_ops` compiles the kernels for this GPU with this machine's nvcc. The phases are:

1.  checks: every op and dtype against float64 and beside PyTorch (`checks.py`).
2.  resources: registers, shared memory, spills and occupancy of each kernel.
3.  sanitizer: compute-sanitizer looks for wrong addresses, races, wrong barriers and values that
    nothing wrote, on small shapes.
4.  jax: the ops as XLA FFI handlers under JAX, where JAX for CUDA is installed.
5.  ptx: a few checks of a module that has PTX alone, which the driver compiles.
6.  times: attention beside each SDPA backend of PyTorch, patch embedding beside its convolution.
7.  ncu: a report of Nsight Compute, where it is installed.

Those before the times run at the same time. A check that fails, and a process that an error of CUDA
ends, are reported, and the rest goes on.
Exit code 0: all is right; 1: something failed; 2: this machine lacks something, or a flag is wrong.

usage: python -m benchmarks.gpu [--only PHASE ...] [--ops OP ...] [--quick] [--variant NAME=FLAGS]
"""

import argparse
import json
import pathlib
import re
import shlex
import sys
import time

from benchmarks.gpu import cases, machine, phases, report
from custom_ops import build_ops
from custom_ops.building.build_plan import BuildError
from tests.checkout import ROOT


def parse(values):
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "--only", nargs="+", choices=phases.NAMES, default=phases.NAMES, metavar="PHASE"
    )
    parser.add_argument("--ops", nargs="+", choices=cases.OPS, default=cases.OPS, metavar="OP")
    parser.add_argument("--quick", action="store_true", help="a few cases of each kind")
    parser.add_argument("--minutes", type=float, default=9.5, help="most minutes of the whole run")
    parser.add_argument("--rounds", type=int, default=20, help="samples of each time")
    parser.add_argument("--module", type=pathlib.Path, help="_vit_cuda to use instead of a new one")
    parser.add_argument(
        "--variant",
        action="append",
        default=[],
        type=variant,
        metavar="NAME=FLAGS",
        help="time the kernels compiled with more flags of nvcc too, such as -DNAME=VALUE; repeat",
    )
    parser.add_argument(
        "--output",
        type=pathlib.Path,
        default=ROOT / "build" / "gpu",
        help="folder for the module, results.json and results.md",
    )
    found = parser.parse_args(values)
    if not 0 < found.minutes < float("inf"):
        parser.error(f"--minutes must be above 0. Received: {found.minutes}.")
    if found.rounds < 2:
        parser.error(f"--rounds must be at least 2. Received: {found.rounds}.")
    names = [name for name, _ in found.variant]
    if len({*names}) < len(names):
        parser.error(f"--variant needs another NAME each time. Received: {', '.join(names)}.")
    if names and found.module:
        parser.error("--variant is for a new build: leave out --module.")
    return found


def variant(text):
    """The name of a variant, and its flags of nvcc."""
    name, _, flags = text.partition("=")
    try:
        words = shlex.split(flags)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None
    if not re.fullmatch(r"[A-Za-z0-9_]+", name) or not words:
        raise argparse.ArgumentTypeError(
            f"must be NAME=FLAGS, with a name of letters, digits and _. Received: {text!r}"
        )
    return name, words


def main(values=None):
    begin = time.monotonic()
    arguments = parse(values)

    def say(line):
        print(f"[{time.monotonic() - begin:4.0f} s] {line}", flush=True)

    try:
        here = machine.describe()
    except machine.MissingError as error:
        print(
            f"error: {error}. This needs Python 3.11, a GPU, nvcc, PyTorch for CUDA, 2.5 or newer, "
            "and pybind11.",
            file=sys.stderr,
        )
        return 2
    say(", ".join(f"{key} {value}" for key, value in here.items()))
    found = {"machine": here, **{name: [] for name in phases.NAMES}, "not_run": []}
    arguments.output.mkdir(parents=True, exist_ok=True)
    folders = {name: arguments.output / "variants" / name for name, _ in arguments.variant}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    flags = {folders[name]: flags for name, flags in arguments.variant}
    try:
        module = arguments.module or build_ops.build_cuda_module(arguments.output, say, flags)
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    built = time.monotonic()
    found["machine"]["build_seconds"] = f"{built - begin:.0f}"
    module = pathlib.Path(module).resolve()
    variants = {name: str(folder.resolve() / module.name) for name, folder in folders.items()}
    run = phases.Run(arguments, str(module), variants, say, found)
    seconds = 60 * arguments.minutes - (built - begin)
    phases.run_all(run, seconds, lambda: write(arguments.output, found))
    print("\n" + report.markdown(found))
    say(f"wrote {arguments.output / 'results.json'} and results.md")
    return exit_code(found, arguments.only)


def exit_code(found, wanted=phases.NAMES):
    """1 if anything failed, nothing ran, or no check ran though checks were wanted; else 0."""
    rows = [row for name in phases.NAMES for row in found[name]]
    lacks = not rows or ("checks" in wanted and not found["checks"])
    return 1 if lacks or any(row.get("problems") for row in rows) else 0


def write(folder, found):
    """Writes the results, also those of a run that was interrupted."""
    (folder / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "results.md").write_text(report.markdown(found))


if __name__ == "__main__":
    sys.exit(main())
