"""Nsight Compute over the launches of attention: how long each kernel takes, and what limits it."""

import re
import subprocess
import sys
import time

from benchmarks.gpu import processes

# Percent of the cycles in which the tensor cores work.
_TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
# Lines of the report of a kernel -> keys of a row.
_METRICS = {
    r"Registers Per Thread +register/thread": "registers",
    r"Achieved Occupancy +%": "occupancy_percent",
    r"Compute \(SM\) Throughput +%": "compute_percent",
    r"DRAM Throughput +%": "memory_percent",
    rf"{re.escape(_TENSOR)} +%": "tensor_percent",
}


# Of the messages of ncu: what it cannot do on this machine, whatever the kernels are.
_REFUSALS = re.compile(r"ERR_NVGPUCTRPERM|not supported|not compatible")


def run(program, module, output, deadline):
    """Profiles attention, forward and backward, in bfloat16.

    Args:
        program: ncu.
        module: path of `_vit_cuda`.
        output: file for the whole report.
        deadline: value of `time.monotonic` at which it is ended.

    Returns:
        List of rows, `parse`, with `problems`; or one with the reason, `skipped`, where ncu may not
        profile on this machine.
    """
    command = [program, "--clock-control", "none", "--set", "full", "-k"]
    command += ["regex:attention|gradients", "--launch-count", "8"]
    script = [sys.executable, "-m", "benchmarks.gpu.sanitized", str(module)]
    script += ["large_attention", "bfloat16"]
    # Not every version knows the metric of the tensor cores.
    begin = time.monotonic()
    for metrics in (["--metrics", _TENSOR], []):
        try:
            left = deadline - time.monotonic()
            code, text = processes.output_of([*command, *metrics, *script], left)
        except subprocess.TimeoutExpired:
            return [_failed(f"did not end within {time.monotonic() - begin:.0f} s")]
        output.write_text(text)
        rows = parse(text)
        if rows and code == 0:
            return rows
    errors = re.findall(r"==ERROR== (.*)", text)
    for error in filter(_REFUSALS.search, errors):
        return [{"name": "of attention", "problems": [], "skipped": error}]
    return [_failed("; ".join(errors[:3]) or f"exit code {code}")]


def parse(text):
    """A row for each launch in a report of ncu.

    Returns:
        List of dicts: `name`, `blocks`, `threads`, `problems`, and where the report has them
        `microseconds` and the values of `_METRICS`.
    """
    launch = r"^  (\S.*?)\((?:\w|::|\s|\*|,)*\) \((\d+), \d+, \d+\)x\((\d+), \d+, \d+\), Context"
    parts = re.split(launch, text, flags=re.MULTILINE)
    rows = []
    for name, blocks, threads, body in zip(*(parts[i::4] for i in range(1, 5)), strict=True):
        row = {"name": name.removeprefix("void "), "blocks": int(blocks), "threads": int(threads)}
        for pattern, key in _METRICS.items():
            found = re.search(rf"^ +{pattern} +([\d.,]+)", body, re.MULTILINE)
            row |= {key: float(found[1].replace(",", ""))} if found else {}
        found = re.search(r"^ +Duration +(ns|us|ms) +([\d.,]+)", body, re.MULTILINE)
        if found:
            scale = {"ns": 1e-3, "us": 1.0, "ms": 1e3}[found[1]]
            row["microseconds"] = float(found[2].replace(",", "")) * scale
        rows.append(row | {"problems": []})
    return rows


def _failed(problem):
    return {"name": "ncu", "problems": [problem]}
