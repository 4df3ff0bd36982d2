"""The instruction sets of the kernels that this machine runs, and the ones without a test here."""

import ctypes
import functools
import pathlib
import re

from custom_ops.building import build_plan

# Linux's names of the parts of each set, from the lowest set up.
_FLAGS = {
    "baseline": set(),
    "avx2": {"avx2", "fma", "f16c"},
    "avx512": {"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl"},
    "avx512_bf16": {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"},
    "amx": {"avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "amx_tile", "amx_bf16"},
}


@functools.cache
def here():
    """Names of the sets that the compiler knows and the processor runs, from the lowest one up."""
    built = build_plan.isas(build_plan.find_compiler())
    flags = _flags_of_processor()
    found = [isa for isa in _FLAGS if isa in built and _FLAGS[isa] <= flags]
    return [isa for isa in found if isa != "amx" or _may_use_tiles()]


def best():
    """The best set of this machine that has all kernels, and the sets above it."""
    # Those above "avx512" have kernels for bfloat16 only; for other types they stand for it.
    return here()[list(_FLAGS).index("avx512") :] or here()[-1:]


def ends():
    """The lowest set and the best ones."""
    return list(dict.fromkeys(["baseline", *best()]))


def not_run():
    """Names of the sets whose kernels no test runs on this machine; all without a compiler."""
    try:
        return [isa for isa in _FLAGS if isa not in here()]
    except build_plan.BuildError:
        return list(_FLAGS)


def _flags_of_processor():
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    found = re.search(r"^flags\s*:(.*)", text, re.MULTILINE)
    return set(found[1].split()) if found else set()


def _may_use_tiles():
    """Whether Linux grants this process the registers of amx; see custom_ops/cpu/isa.cc."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0
