"""The processor that a measurement runs on."""

import os
import pathlib
import platform
import re


def machine(isa):
    """Lines about the processor and the limits of this run."""
    text = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = set(re.findall(r"avx2|avx512f|avx512_vnni|avx512_bf16|amx_bf16|amx_int8", text))
    limit = f"limited to {isa}" if isa else "not limited (--isa)"
    yield f"{model.group(1) if model else platform.machine()}: {', '.join(sorted(flags))}; {limit}"
    yield f"load before the start: {os.getloadavg()[0]:.1f} of {os.cpu_count()} CPUs"
    yield "TensorFlow uses oneDNN (TF_ENABLE_ONEDNN_OPTS=1), but in systems named no-onednn"
    if isa:
        yield "ONNX Runtime has no such limit: its float32 kernels use up to AVX-512."


def choose_cpus(threads):
    """CPUs for this number of threads, each of another core while there are cores left."""
    siblings = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        path = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list")
        siblings[cpu] = [path.read_text()] if path.exists() else [cpu]
    return one_cpu_per_core(siblings, threads)


def one_cpu_per_core(siblings, threads):
    """The first CPUs, each of another core while there are cores left.

    Args:
        siblings: CPU -> CPUs of its core, in the order of use.
        threads: number of CPUs.

    Raises:
        ValueError: if there are fewer CPUs.
    """
    if threads > len(siblings):
        raise ValueError(f"--threads {threads}: this process may use {len(siblings)} CPUs only.")
    first, others, seen = [], [], set()
    for cpu, core in siblings.items():
        (others if seen & set(core) else first).append(cpu)
        seen |= set(core)
    return sorted((first + others)[:threads])
