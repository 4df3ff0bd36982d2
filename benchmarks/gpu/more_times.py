"""Implementations that are timed of attention with a bias, axial attention, and taps.

PyTorch gets queries, keys and values as `times.py` says. "plain" is the softmax of a product.
"""

import functools
import math

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.candidate import Candidate
from benchmarks.gpu.tensors import DEVICE

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "plain": SDPBackend.MATH,
}


def attention(case, ours):
    """Functions that prepare each implementation, by name: with a bias, or along an axis.

    A backward time with a bias contains the gradient of the bias.
    """
    dtype = getattr(torch, case.dtype)
    shape = case.batch, case.lines, case.tokens, case.heads, case.size
    parts = [torch.randn(shape, dtype=dtype, device=DEVICE) for _ in range(3)]
    d_out = torch.randn(shape, dtype=dtype, device=DEVICE)
    bias = None
    if case.form == "bias":
        bias = torch.randn(case.heads, case.tokens, case.tokens, dtype=dtype, device=DEVICE)
    inputs = parts, d_out, bias
    found = {
        name: functools.partial(_kernel, case, kernels, *inputs) for name, kernels in ours.items()
    }
    return found | {name: functools.partial(_sdpa, case, name, *inputs) for name in BACKENDS}


def _kernel(case, kernels, parts, d_out, bias):
    axis = None if case.op == "attention" else int(case.form[-1])

    def ordered(x):
        """`[B, lines, N, ...]` in the order of the op, and back."""
        return (x[:, 0] if axis is None else x.transpose(1, 2) if axis == 1 else x).contiguous()

    qkv, flat = ordered(torch.stack(parts, 3).flatten(3)), ordered(d_out.flatten(3))
    wide = None if bias is None else bias.float()
    problem = kernels.attention(qkv, case.heads, wide, axis)
    out, statistics = kernels.attention_outputs(qkv, case.heads, axis)
    d_qkv, d_bias = torch.empty_like(qkv), None if wide is None else torch.empty_like(wide)
    saved = [kernels.array(x) for x in (out, statistics)]
    problem.forward(kernels.execution(), *saved)
    inputs = [*saved, kernels.array(flat)]
    outputs = [kernels.array(x) for x in (d_qkv, d_bias)]

    def call():
        # Keeps the tensors, of which the arrays hold the addresses only.
        _ = qkv, wide, out, statistics, flat, d_qkv, d_bias
        if case.direction == "forward":
            return problem.forward(kernels.execution(), *saved)
        problem.gradient(kernels.execution(), *inputs, outputs[0])
        if wide is not None:
            problem.bias_gradient(kernels.execution(), *inputs, outputs[1])

    def results():
        call()
        first = out if case.direction == "forward" else d_qkv
        found = [first[:, None] if axis is None else ordered(first)]
        return found + [d_bias] * (case.direction == "backward" and wide is not None)

    return Candidate(call, results)


def _sdpa(case, name, parts, d_out, bias):
    context = functools.partial(sdpa_kernel, BACKENDS[name])
    backward = case.direction == "backward"
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
                return [tokens.unflatten(0, (case.batch, case.lines))]
            *packed, last = gradients() if mask is not None else (*gradients(), None)
        d_qkv = torch.stack([x.transpose(1, 2) for x in packed], 2).flatten(2)
        found = [d_qkv.unflatten(0, (case.batch, case.lines))]
        return found if last is None else [*found, last[0]]

    return Candidate(gradients if backward else forward, results, context)


def taps(case, ours):
    """The same for all taps of the attention weights; the grid is square, after one class token."""
    dtype = getattr(torch, case.dtype)
    side = math.isqrt(case.tokens)
    shape = case.batch, case.tokens, 3, case.heads, case.size
    qkv = torch.randn(shape, dtype=dtype, device=DEVICE)

    def kernel(kernels):
        packed = qkv.flatten(2)
        problem = kernels.attention(packed, case.heads)
        out, statistics = kernels.attention_outputs(packed, case.heads)
        problem.forward(kernels.execution(), kernels.array(out), kernels.array(statistics))
        saved = kernels.array(statistics)
        shapes = {"class_row": (case.batch, case.heads, case.tokens)}
        shapes |= dict.fromkeys(("distance", "entropy"), (case.batch, case.heads))
        found = {name: torch.empty(x, device=DEVICE) for name, x in shapes.items()}
        arrays = {name: kernels.array(x) for name, x in found.items()}

        def call():
            _ = packed, statistics, found
            problem.taps(kernels.execution(), saved, **arrays, grid=(side, side))

        def results():
            call()
            return list(found.values())

        return Candidate(call, results)

    def plain():
        query, key = (qkv[:, :, i].transpose(1, 2).contiguous() for i in range(2))
        places = torch.cartesian_prod(*[torch.arange(side, device=DEVICE)] * 2).float()
        apart = torch.cdist(places, places)
        first = case.tokens - side**2

        def call():
            logits = (query / case.size**0.5) @ key.transpose(2, 3)
            weights = torch.softmax(logits.float(), -1)
            distance = (weights[:, :, first:, first:] * apart).sum((2, 3)) / side**2
            return [weights[:, :, 0], distance, torch.special.entr(weights).sum(-1).mean(-1)]

        return Candidate(call, call)

    found = {name: functools.partial(kernel, kernels) for name, kernels in ours.items()}
    return found | {"plain": plain}
