"""The ops in plain PyTorch, with the gradients of autograd, as the reference of errors.

The steps follow `custom_ops.reference`: products in the dtype of the inputs, softmax in
float32, or float64 for float64.
"""

import math

import torch


def attend(qkv, heads, d_out, bias=None, axis=None, scale=None):
    """Dict of `out`, `d_qkv` and, with a bias, `d_bias`; arguments as in `Kernels.attend`."""
    sources = [x.detach().requires_grad_() for x in (qkv, bias) if x is not None]
    out = _attention(sources[0], heads, sources[1] if len(sources) > 1 else None, axis, scale)
    gradients = torch.autograd.grad(out, sources, d_out)
    return dict(zip(("out", "d_qkv", "d_bias"), (out.detach(), *gradients), strict=False))


def _attention(qkv, heads, bias, axis, scale):
    # [B, lines, N, 3 D], a view.
    lines = {None: lambda: qkv[:, None], 1: lambda: qkv.transpose(1, 2), 2: lambda: qkv}[axis]()
    size = qkv.shape[-1] // 3 // heads
    packed = lines.unflatten(-1, (3, heads, size)).permute(3, 0, 1, 4, 2, 5)
    query, key, value = packed.unbind(0)
    scale = 1 / math.sqrt(size) if scale is None else scale
    logits = ((query * scale) @ key.transpose(-1, -2)).to(
        torch.float64 if qkv.dtype == torch.float64 else torch.float32
    )
    empty = torch.zeros([], dtype=torch.bool, device=qkv.device)
    if bias is not None:
        if axis is None and bias.dim() == 4:
            bias = bias[:, None]
        empty = (bias.reshape(bias.shape or (1,)) == -math.inf).all(-1, keepdim=True)
        logits = logits + torch.where(empty, 0.0, bias)
    weights = torch.softmax(logits, -1).to(qkv.dtype)
    out = torch.where(empty, torch.zeros([], dtype=qkv.dtype, device=qkv.device), weights @ value)
    out = out.transpose(2, 3).flatten(-2)
    return {None: lambda: out[:, 0], 1: lambda: out.transpose(1, 2), 2: lambda: out}[axis]()


def patch_embed(images, tables, d_tokens, scale, offset):
    """As `Kernels.patch_embed`, with a convolution."""
    names = [name for name, x in tables.items() if x is not None]
    sources = {name: tables[name].detach().requires_grad_() for name in names}
    if images.is_floating_point():
        sources["images"] = images = images.detach().requires_grad_()
    kernel = sources["kernel"]
    wide = torch.float64 if torch.float64 in (kernel.dtype, images.dtype) else torch.float32
    pixels = (images.to(wide) * scale + offset).to(kernel.dtype)
    tokens = torch.nn.functional.conv2d(
        pixels.permute(0, 3, 1, 2).contiguous(),
        kernel.permute(3, 2, 0, 1).contiguous(),
        stride=kernel.shape[0],
    )
    tokens = tokens.flatten(2).transpose(1, 2) + sources["bias"]
    if "prefix" in sources:
        prefix = sources["prefix"].expand(len(tokens), -1, -1)
        tokens = torch.cat([prefix, tokens], 1)
    if "position" in sources:
        tokens = tokens + sources["position"]
    gradients = torch.autograd.grad(tokens, list(sources.values()), d_tokens)
    return dict(zip(sources, gradients, strict=True)) | {"tokens": tokens.detach()}
