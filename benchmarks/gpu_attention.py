"""Times of the attention kernels for GPUs beside PyTorch's `scaled_dot_product_attention`.

`python -m benchmarks.gpu_run` builds the module of the kernels and calls `time_cells`. The results
of all implementations of a cell are compared, then timed in interleaved rounds on random data: a
sample replays a CUDA graph of many calls, so that it contains no time of Python.

PyTorch gets queries, keys and values as tensors of their own in the layout that it likes best, so
its times contain no packing. A backward time contains the gradients alone, with a bias that of the
bias too. "plain" is the softmax of a product. TF32 is off.
"""

import contextlib
import dataclasses
import functools
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

# The heads of ViT-B and ViT-H, by their size; what serves one image, a few, and a training step.
HEADS = {64: 12, 80: 16}
BATCHES = (64, 8, 1)
# Milliseconds of one sample: a sample of many calls hides the time to start them.
SAMPLE_MS = 5.0
# Largest difference from PyTorch's result, as a fraction of its largest number.
CLOSE = 3e-2


@dataclasses.dataclass(frozen=True)
class Cell:
    """A row of the table of times.

    Attributes:
        dtype: "bfloat16" or "float16".
        direction: "forward" or "backward".
        batch: images in a batch.
        tokens, heads, size: of attention.
        lines: for axial attention the lines, of `tokens` each, that are attended along.
        form: "bias" for attention with a bias `[H, N, N]`; "axis=1" or "axis=2"; else "".
    """

    dtype: str
    direction: str
    batch: int
    tokens: int
    heads: int
    size: int
    lines: int = 1
    form: str = ""

    @property
    def name(self):
        op = "axial" if self.axis else "attention"
        what = f"{op} {self.direction} {self.dtype} B={self.batch} N={self.tokens} d={self.size}"
        return f"{what}{f' lines={self.lines}' if self.axis else ''} {self.form}".rstrip()

    @property
    def axis(self):
        return int(self.form[-1]) if self.form.startswith("axis=") else None

    @property
    def operations(self):
        """Multiplications and additions: 4 B H N^2 d forward, 2.5 times that backward."""
        forward = 4 * self.batch * self.lines * self.tokens**2 * self.heads * self.size
        return forward * (2.5 if self.direction == "backward" else 1)


def cells(quick=False):
    """All cells; the most usual sizes first."""
    dtypes, sizes, counts = ("bfloat16", "float16"), (64, 80), (197, 577, 50, 257)
    if quick:
        dtypes, sizes, counts = dtypes[:1], sizes[:1], counts[:1]
    plain = itertools.product(dtypes, BATCHES, sizes, counts)
    found = [(d, batch, tokens, HEADS[size], size) for d, batch, size, tokens in plain]
    found.append(("bfloat16", 8, 197, 12, 64, 1, "bias"))
    # Rows and columns of the patches of ViT-B/16, and of the first stage of an axial ResNet.
    for lines, heads, size in ((14, 12, 64), (56, 8, 16))[: 1 if quick else None]:
        found += [("bfloat16", 8, lines, heads, size, lines, f"axis={axis}") for axis in (1, 2)]
    directions = ("forward", "backward")
    return [Cell(dtype, x, *rest) for dtype, *rest in found for x in directions]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One implementation: `call` starts the work, inside of `context()`; `results` are its own."""

    call: Callable[[], Any]
    results: Callable[[], list]
    context: Callable[[], Any] = contextlib.nullcontext

    def run(self, repeats):
        with self.context():
            for _ in range(repeats):
                self.call()

    def captured(self, repeats):
        """A CUDA graph of `repeats` calls."""
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            self.run(repeats)
        return graph


def candidates(cell, ours):
    """Functions that prepare each implementation of a cell, by name."""
    import torch
    from torch.nn.attention import SDPBackend

    backends = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
    }
    if cell.form:
        backends["plain"] = SDPBackend.MATH
    options = {"dtype": getattr(torch, cell.dtype), "device": "cuda"}
    shape = cell.batch, cell.lines, cell.tokens, cell.heads, cell.size
    parts = [torch.randn(shape, **options) for _ in range(3)]
    d_out = torch.randn(shape, **options)
    bias = None
    if cell.form == "bias":
        bias = torch.randn(cell.heads, cell.tokens, cell.tokens, **options)
    inputs = parts, d_out, bias
    found = {x: functools.partial(_kernel, cell, kernels, *inputs) for x, kernels in ours.items()}
    return found | {x: functools.partial(_sdpa, cell, y, *inputs) for x, y in backends.items()}


def _kernel(cell, kernels, parts, d_out, bias):
    import torch

    axis = cell.axis

    def ordered(x):
        """`[B, lines, N, ...]` in the order of the op, and back."""
        return (x[:, 0] if axis is None else x.transpose(1, 2) if axis == 1 else x).contiguous()

    qkv, flat = ordered(torch.stack(parts, 3).flatten(3)), ordered(d_out.flatten(3))
    wide = None if bias is None else bias.float()
    problem = kernels.attention(qkv, cell.heads, wide, axis)
    out, statistics = kernels.attention_outputs(qkv, cell.heads, axis)
    d_qkv, d_bias = torch.empty_like(qkv), None if wide is None else torch.empty_like(wide)
    saved = [kernels.array(x) for x in (out, statistics)]
    problem.forward(kernels.execution(), *saved)
    inputs = [*saved, kernels.array(flat)]
    outputs = [kernels.array(x) for x in (d_qkv, d_bias)]

    def call():
        # Keeps the tensors, of which the arrays hold the addresses only.
        _ = qkv, wide, out, statistics, flat, d_qkv, d_bias
        if cell.direction == "forward":
            return problem.forward(kernels.execution(), *saved)
        problem.gradient(kernels.execution(), *inputs, outputs[0])
        if wide is not None:
            problem.bias_gradient(kernels.execution(), *inputs, outputs[1])

    def results():
        call()
        first = out if cell.direction == "forward" else d_qkv
        found = [first[:, None] if axis is None else ordered(first)]
        return found + [d_bias] * (cell.direction == "backward" and wide is not None)

    return Candidate(call, results)


def _sdpa(cell, backend, parts, d_out, bias):
    import torch
    from torch.nn import functional
    from torch.nn.attention import sdpa_kernel

    context = functools.partial(sdpa_kernel, backend)
    backward = cell.direction == "backward"
    query, key, value, cotangent = (x.flatten(0, 1).transpose(1, 2) for x in (*parts, d_out))
    sources = [x.detach().requires_grad_(backward) for x in (query, key, value)]
    mask = None
    if bias is not None:
        mask = bias[None].detach().requires_grad_(backward)
        sources.append(mask)

    def forward():
        return functional.scaled_dot_product_attention(*sources[:3], attn_mask=mask)

    with context():
        out = forward()

    def gradients():
        return torch.autograd.grad(out, sources, cotangent, retain_graph=True)

    def results():
        with context():
            if not backward:
                tokens = forward().transpose(1, 2).flatten(2)
                return [tokens.unflatten(0, (cell.batch, cell.lines))]
            *packed, last = gradients() if mask is not None else (*gradients(), None)
        d_qkv = torch.stack([x.transpose(1, 2) for x in packed], 2).flatten(2)
        found = [d_qkv.unflatten(0, (cell.batch, cell.lines))]
        return found if last is None else [*found, last[0]]

    return Candidate(gradients if backward else forward, results, context)


def measure(cell, ours, rounds):
    """Times all implementations of a cell.

    Args:
        cell: one of `cells`.
        ours: dict from "ours", and "ours NAME" for each variant, to `Kernels`.
        rounds: number of samples of each implementation.

    Returns:
        Dict from the name of an implementation, `ours` among them, to the list of its
        times in milliseconds, or to the text of why it does not run.

    Raises:
        AssertionError: if the kernel's results are not PyTorch's.
    """
    import torch

    # The default stream cannot be captured; gradients run on the stream of their forward pass.
    with torch.cuda.stream(torch.cuda.Stream()):
        ready, found = {}, {}
        for name, prepare in candidates(cell, ours).items():
            found[name] = ""  # Keeps the order of the implementations.
            try:
                candidate = _quietly(prepare)
                candidate.run(1)
                torch.cuda.synchronize()
                ready[name] = candidate
            except Exception as error:
                if name == "ours" or "CUDA error" in str(error):
                    raise
                found[name] = _first_line(error)
        _compare(ready)
        return found | _interleaved(ready, rounds)


def _quietly(prepare):
    """Calls a function; if it raises, with the reasons that PyTorch gave as warnings."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            return prepare()
        except Exception as error:
            reasons = [str(warning.message).splitlines()[0] for warning in given]
            reasons = [*dict.fromkeys(reasons), _first_line(error)]
            raise RuntimeError("; ".join(reasons)) from error


def _first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def _compare(ready):
    """Compares our results with every other implementation's, variants among them."""
    ours = ready["ours"].results()
    for name, candidate in ready.items():
        for index, (one, other) in enumerate(zip(ours, candidate.results(), strict=True)):
            difference = (one.float() - other.float()).abs().max().item()
            bound = CLOSE * other.float().abs().max().item()
            assert difference <= bound, (
                f"result {index} differs from {name}'s by {difference:.3g}, more than {bound:.3g}"
            )


def _interleaved(ready, rounds):
    graphs, repeats = {}, {}
    for name, candidate in ready.items():
        _sample(functools.partial(candidate.run, 2))
        three = _sample(functools.partial(candidate.run, 3))
        repeats[name] = min(200, max(1, round(SAMPLE_MS * 3 / three)))
        graphs[name] = candidate.captured(repeats[name])
    times = {name: [] for name in ready}
    names = list(ready)
    for turn in range(rounds):
        # The first one changes, so that none always follows the same other one.
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(_sample(graphs[name].replay) / repeats[name])
    return times


def _sample(work):
    """Milliseconds of the GPU for what `work` starts."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def summary(cell, times):
    """A row of the results, from the result of `measure`.

    Returns:
        Dict of the cell's name and fields; `systems`: name -> dict of `best_ms`, `median_ms`,
        `spread` (the middle half of the times as a fraction of the median) and `tflops` of the best
        time, or of `refused`; `peer`: the fastest system but ours and its variants; `best_ratio`,
        `median_ratio`: the least time of the others over ours, None without one.
    """
    systems = {}
    for name, found in times.items():
        if isinstance(found, str):
            systems[name] = {"refused": found}
            continue
        low, median, high = statistics.quantiles(found, n=4, method="inclusive")
        systems[name] = {
            "best_ms": min(found),
            "median_ms": median,
            "spread": (high - low) / median,
        }
        systems[name]["tflops"] = cell.operations / min(found) / 1e9
    peers = {n: x for n, x in systems.items() if n.split()[0] != "ours" and "best_ms" in x}
    peer = min(peers, key=lambda name: peers[name]["best_ms"], default=None)
    row = {"name": cell.name, **dataclasses.asdict(cell), "systems": systems, "peer": peer}
    for key in ("best", "median"):
        least = min((x[f"{key}_ms"] for x in peers.values()), default=None)
        row[f"{key}_ratio"] = least and least / systems["ours"][f"{key}_ms"]
    return row


def line(row):
    """A row as text: best time in ms (median, spread) of each implementation, and best ratio."""
    texts = [
        f"{name} refuses: {x['refused']}"
        if "refused" in x
        else f"{name} {x['best_ms']:.4f} ({x['median_ms']:.4f}, {x['spread']:.1%})"
        for name, x in row["systems"].items()
    ]
    ratio = "" if row["best_ratio"] is None else f"; {row['best_ratio']:.2f} of {row['peer']}"
    return f"{row['name']}: {', '.join(texts)}{ratio}"


def time_cells(wanted, modules, rounds, deadline, note):
    """Times cells until the deadline.

    Args:
        wanted: list of `Cell`.
        modules: dict from "ours", and "ours NAME" for each variant, to the path of a module.
        rounds: number of samples of each implementation.
        deadline: value of `time.monotonic` from which on no cell begins.
        note: called with each row of `summary`; or with `name` and `problems`, or `name` and the
            reason, `skipped`.
    """
    import torch

    from tests.gpu.kernels import Kernels, exact_products
    from tests.gpu.small_shapes import load_module

    exact_products()
    ours = {
        name: Kernels(load_module(path, name.partition(" ")[2])) for name, path in modules.items()
    }
    for index, cell in enumerate(wanted):
        if time.monotonic() > deadline:
            return note({"name": f"{len(wanted) - index} cells", "skipped": "no time left"})
        try:
            note(summary(cell, measure(cell, ours, rounds)))
            torch.cuda.empty_cache()
        except torch.cuda.OutOfMemoryError as error:
            note({"name": cell.name, "skipped": _first_line(error)})
        except Exception as error:
            note({"name": cell.name, "problems": [f"{type(error).__name__}: {_first_line(error)}"]})
            if "CUDA error" in str(error):
                reason = "an error of CUDA came before"
                return note({"name": f"{len(wanted) - index - 1} cells", "skipped": reason})
