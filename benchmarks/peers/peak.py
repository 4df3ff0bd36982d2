"""The peak rates of the processor, measured by peak.cc."""

import functools
import hashlib
import json
import pathlib

from benchmarks.peers.files import BUILD, run
from custom_ops.building import build_plan


def peak_rates(threads, cpus, seconds=0.1):
    """Operations per second by unit of `systems.UNITS`; compiles the program first if needed.

    Args:
        threads: number of threads; their rates are added up.
        cpus: CPUs that they may use.
        seconds: time for each unit.
    """
    names = ",".join(map(str, cpus))
    return json.loads(run("taskset", "-c", names, str(_program()), str(threads), str(seconds)))


@functools.cache
def _program():
    source, compiler = pathlib.Path(__file__).with_name("peak.cc"), build_plan.find_compiler()
    key = hashlib.sha256(source.read_bytes() + repr(compiler).encode()).hexdigest()[:12]
    program = BUILD / f"peak-{key}"
    if not program.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        flags = ("-std=c++17", "-O3", "-pthread")
        run(*compiler.command, *flags, str(source), "-o", str(program))
    return program


def fastest(measured):
    """The highest rate of each unit in several results of `peak_rates`."""
    return {unit: max(rates[unit] for rates in measured) for unit in measured[0]}
