"""The peak rates of the processor, measured by peak.cc."""

import hashlib
import json
import pathlib

from tests.benchmarks.peers.files import BUILD, run


def peak_rates(threads, cpus, seconds=0.1):
    """Operations per second by unit of `systems.UNITS`; compiles the program first if needed.

    Args:
        threads: number of threads; their rates are added up.
        cpus: CPUs that they may use.
        seconds: time for each unit.
    """
    source = pathlib.Path(__file__).with_name("peak.cc")
    program = BUILD / f"peak-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not program.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        run("g++", "-std=c++17", "-O3", "-pthread", str(source), "-o", str(program))
    names = ",".join(map(str, cpus))
    return json.loads(run("taskset", "-c", names, str(program), str(threads), str(seconds)))


def fastest(measured):
    """Of several results of `peak_rates`, the highest rate of each unit."""
    return {unit: max(rates[unit] for rates in measured) for unit in measured[0]}
