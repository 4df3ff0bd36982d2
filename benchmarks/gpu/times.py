"""Times of the kernels beside PyTorch's, by CUDA events, in interleaved rounds on random data.

A sample replays a CUDA graph of many calls, so that it contains no time of Python.

PyTorch gets queries, keys and values as tensors of their own in the layout that it likes best, so
its times contain no packing. A backward time contains the gradients alone.
"""

import functools
import warnings

import torch
from torch.nn import functional
from torch.nn.attention import sdpa_kernel

from benchmarks.gpu import more_times
from benchmarks.gpu.candidate import Candidate
from benchmarks.gpu.cases import BACKENDS
from benchmarks.gpu.tensors import DEVICE

# Milliseconds of one sample: a sample of many calls hides the time to start them.
SAMPLE_MS = 5.0
# Largest difference from PyTorch's result, as a fraction of its largest number.
CLOSE = 3e-2


def measure(case, ours, rounds):
    """Times all implementations of a case.

    Args:
        case: one of `cases.timings`.
        ours: dict from "ours", and "ours NAME" for each variant, to `Kernels`.
        rounds: number of samples of each implementation.

    Returns:
        Dict from the name of an implementation, those of `ours` among them, to the list of its
        times in milliseconds, or to the text of why it does not run.

    Raises:
        AssertionError: if the kernel's results are not PyTorch's.
    """
    # The default stream cannot be captured; gradients run on the stream of their forward pass.
    with torch.cuda.stream(torch.cuda.Stream()):
        return _measure(case, ours, rounds)


def _measure(case, ours, rounds):
    if case.op == "taps":
        make = more_times.taps
    elif case.form:
        make = more_times.attention
    else:
        make = _attention if case.op == "attention" else _patch_embed
    candidates, found = {}, {}
    for name, prepare in make(case, ours).items():
        found[name] = ""  # Keeps the order of the implementations.
        try:
            candidate = _quietly(prepare)
            candidate.run(1)
            torch.cuda.synchronize()
            candidates[name] = candidate
        except Exception as error:
            if name == "ours" or "CUDA error" in str(error):
                raise
            found[name] = _first_line(error)
    _compare(candidates)
    return found | _interleaved(candidates, rounds)


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


def _compare(candidates):
    """Compares our results with those of every other implementation, variants among them."""
    ours = candidates["ours"].results()
    for name, candidate in candidates.items():
        for index, (one, other) in enumerate(zip(ours, candidate.results(), strict=True)):
            difference = (one.float() - other.float()).abs().max().item()
            bound = CLOSE * other.float().abs().max().item()
            assert difference <= bound, (
                f"result {index} differs from {name}'s by {difference:.3g}, more than {bound:.3g}"
            )


def _interleaved(candidates, rounds):
    graphs, repeats = {}, {}
    for name, candidate in candidates.items():
        _sample(functools.partial(candidate.run, 2))
        three = _sample(functools.partial(candidate.run, 3))
        repeats[name] = min(200, max(1, round(SAMPLE_MS * 3 / three)))
        graphs[name] = candidate.captured(repeats[name])
    times = {name: [] for name in candidates}
    names = list(candidates)
    for turn in range(rounds):
        # The first one changes, so that none always follows the same other one.
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            times[name].append(_sample(graphs[name].replay) / repeats[name])
    return times


def _sample(work):
    """Milliseconds of the GPU for what `work` starts."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def _attention(case, ours):
    """Functions that prepare each implementation of attention, by name."""
    dtype = getattr(torch, case.dtype)
    shape = case.batch, case.tokens, case.heads, case.size
    parts = [torch.randn(shape, dtype=dtype, device=DEVICE) for _ in range(3)]
    d_out = torch.randn(shape, dtype=dtype, device=DEVICE)
    backward = case.direction == "backward"

    def kernel(kernels):
        qkv = torch.stack(parts, 2).flatten(2)
        flat = d_out.flatten(2)
        problem = kernels.attention(qkv, case.heads)
        out, statistics = kernels.attention_outputs(qkv, case.heads)
        d_qkv = torch.empty_like(qkv)
        saved = [kernels.array(x) for x in (out, statistics)]
        problem.forward(kernels.execution(), *saved)
        arrays = [*saved, kernels.array(flat), kernels.array(d_qkv)]

        def call():
            # Keeps the tensors, of which the arrays hold the addresses only.
            _ = qkv, out, statistics, flat, d_qkv
            if backward:
                problem.gradient(kernels.execution(), *arrays)
            else:
                problem.forward(kernels.execution(), *saved)

        def results():
            call()
            return [d_qkv if backward else out]

        return Candidate(call, results)

    def backend(name):
        context = functools.partial(sdpa_kernel, more_times.BACKENDS[name])
        query, key, value = (x.transpose(1, 2).requires_grad_(backward) for x in parts)
        cotangent = d_out.transpose(1, 2)

        def forward():
            return functional.scaled_dot_product_attention(query, key, value)

        with context():
            out = forward()

        def gradients():
            return torch.autograd.grad(out, (query, key, value), cotangent, retain_graph=True)

        def results():
            with context():
                if not backward:
                    return [forward().transpose(1, 2).flatten(2)]
                found = [gradient.transpose(1, 2) for gradient in gradients()]
                return [torch.stack(found, 2).flatten(2)]

        return Candidate(gradients if backward else forward, results, context)

    found = {name: functools.partial(kernel, kernels) for name, kernels in ours.items()}
    return found | {name: functools.partial(backend, name) for name in BACKENDS}


def _patch_embed(case, ours):
    """The same for the patch embedding of images of 224 x 224 pixels with patches of 16 x 16."""
    dtype = getattr(torch, case.dtype)
    width = case.heads * case.size
    images = torch.randn((case.batch, 224, 224, 3), dtype=dtype, device=DEVICE)
    weights = 0.02 * torch.randn((16, 16, 3, width), dtype=dtype, device=DEVICE)
    bias = torch.randn(width, dtype=dtype, device=DEVICE)
    d_tokens = torch.randn((case.batch, case.tokens, width), dtype=dtype, device=DEVICE)
    backward = case.direction == "backward"

    def kernel(kernels):
        problem = kernels.patch_embed_problem(images, weights)
        tokens, d_kernel, d_bias = (torch.empty_like(x) for x in (d_tokens, weights, bias))
        arrays = [kernels.array(x) for x in (bias, tokens, d_tokens, d_kernel, d_bias)]

        def call():
            _ = tokens, d_kernel, d_bias
            if backward:
                problem.gradient(kernels.execution(), arrays[2], kernel=arrays[3], bias=arrays[4])
            else:
                problem.forward(kernels.execution(), arrays[0], arrays[1])

        def results():
            call()
            return [d_kernel, d_bias] if backward else [tokens]

        return Candidate(call, results)

    def convolution(layout):
        pixels = images.permute(0, 3, 1, 2).contiguous(memory_format=layout)
        filters = weights.permute(3, 2, 0, 1).contiguous(memory_format=layout)
        filters, offset = filters.requires_grad_(backward), bias.clone().requires_grad_(backward)
        cotangent = d_tokens.reshape(case.batch, 14, 14, width).permute(0, 3, 1, 2)
        cotangent = cotangent.contiguous(memory_format=layout)

        def forward():
            return functional.conv2d(pixels, filters, offset, stride=16)

        out = forward()

        def gradients():
            return torch.autograd.grad(out, (filters, offset), cotangent, retain_graph=True)

        def results():
            if not backward:
                return [forward().flatten(2).transpose(1, 2)]
            d_filters, d_offset = gradients()
            return [d_filters.permute(2, 3, 1, 0), d_offset]

        return Candidate(gradients if backward else forward, results)

    layouts = {"conv2d": torch.contiguous_format, "conv2d channels_last": torch.channels_last}
    found = {name: functools.partial(kernel, kernels) for name, kernels in ours.items()}
    return found | {
        name: functools.partial(convolution, layout) for name, layout in layouts.items()
    }
