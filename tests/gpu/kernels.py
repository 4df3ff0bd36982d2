"""The kernels of `_vit_cuda` as functions of PyTorch tensors on the GPU.

Outputs are filled with NaN, or 0xAA for other numbers, before a kernel writes them, so that an
element that it does not write is found.
"""

import torch

DEVICE = "cuda"

_NAMES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.uint8: "uint8",
    torch.complex128: "complex128",
}


def exact_products():
    """PyTorch multiplies float32 without TF32, and sums 16 bits in float32, as the kernels do."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def poisoned(shape, dtype):
    """An output that has not been written."""
    if dtype == torch.uint8:
        return torch.full(shape, 0xAA, dtype=dtype, device=DEVICE)
    return torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)


class Kernels:
    """The functions of the module, on the current stream of PyTorch.

    Args:
        module: `_vit_cuda`.
    """

    def __init__(self, module):
        self._module = module
        self._scratch = []

    def array(self, tensor):
        """The `Array` of a contiguous tensor; None for None."""
        if tensor is None:
            return None
        assert tensor.device.type == DEVICE and tensor.is_contiguous()
        return self._module.Array(tensor.data_ptr(), list(tensor.shape), _NAMES[tensor.dtype])

    def execution(self):
        """The current stream; its scratch memory is free again from the next call of this on."""
        self._scratch.clear()
        return self._module.Execution(torch.cuda.current_stream().cuda_stream, self._allocate)

    def attention(self, qkv, heads, bias=None, axis=None, scale=None):
        """The `Attention` of these tensors, which the caller keeps."""
        return self._module.Attention(
            self.array(qkv), heads, bias=self.array(bias), axis=axis, scale=scale
        )

    def attention_outputs(self, qkv, heads, axis=None):
        """Unwritten `(out, statistics)`."""
        *outer, width = qkv.shape
        out = poisoned((*outer, width // 3), qkv.dtype)
        if axis is None:
            shape = (outer[0], heads, 2, outer[1])
        else:
            shape = (outer[0], outer[3 - axis], heads, 2, outer[axis])
        return out, poisoned(shape, torch.float32)

    def attend(self, qkv, heads, d_out, bias=None, axis=None, scale=None):
        """Dict of `out`, `d_qkv`, `statistics` and, with a bias, `d_bias`."""
        problem = self.attention(qkv, heads, bias, axis, scale)
        out, statistics = self.attention_outputs(qkv, heads, axis)
        problem.forward(self.execution(), self.array(out), self.array(statistics))
        saved = [self.array(x) for x in (out, statistics, d_out)]
        d_qkv = poisoned(qkv.shape, qkv.dtype)
        problem.gradient(self.execution(), *saved, self.array(d_qkv))
        found = {"out": out, "d_qkv": d_qkv, "statistics": statistics}
        if bias is not None:
            found["d_bias"] = poisoned(bias.shape, bias.dtype)
            problem.bias_gradient(self.execution(), *saved, self.array(found["d_bias"]))
        return found

    def taps(self, qkv, heads, grid, bias=None, scale=None):
        """Dict of all taps."""
        problem = self.attention(qkv, heads, bias, None, scale)
        out, statistics = self.attention_outputs(qkv, heads)
        problem.forward(self.execution(), self.array(out), self.array(statistics))
        batch, tokens, _ = qkv.shape
        found = {
            "class_row": poisoned((batch, heads, tokens), torch.float32),
            "distance": poisoned((batch, heads), torch.float32),
            "entropy": poisoned((batch, heads), torch.float32),
        }
        arrays = {name: self.array(x) for name, x in found.items()}
        problem.taps(self.execution(), self.array(statistics), **arrays, grid=grid)
        return found

    def patch_embed(self, images, tables, d_tokens, scale, offset):
        """Dict of `tokens` and the gradients of all inputs, by their names.

        Args:
            images: `[B, H, W, C]`.
            tables: dict of kernel, bias, prefix and position; the last two may be None.
            d_tokens: `[B, T + N, D]`.
            scale, offset: of the pixels.
        """
        kernel, prefix = tables["kernel"], tables["prefix"]
        count = 0 if prefix is None else len(prefix)
        problem = self._module.PatchEmbed(
            self.array(images), self.array(kernel), scale=scale, offset=offset, prefix=count
        )
        tokens = poisoned(d_tokens.shape, kernel.dtype)
        problem.forward(
            self.execution(),
            self.array(tables["bias"]),
            self.array(tokens),
            prefix=self.array(prefix),
            position=self.array(tables["position"]),
        )
        wanted = {name: x for name, x in tables.items() if x is not None}
        if images.is_floating_point():
            wanted["images"] = images
        found = {name: poisoned(x.shape, x.dtype) for name, x in wanted.items()}
        arrays = {name: self.array(x) for name, x in found.items()}
        problem.gradient(self.execution(), self.array(d_tokens), **arrays)
        return found | {"tokens": tokens}

    def extract_patches(self, images, patch_size):
        batch, height, width, channels = images.shape
        count = (height // patch_size) * (width // patch_size)
        patches = poisoned((batch, count, patch_size**2 * channels), images.dtype)
        arrays = self.array(images), self.array(patches)
        self._module.extract_patches(self.execution(), *arrays, patch_size)
        return patches

    def restore_patches(self, patches, shape, patch_size):
        images = poisoned(shape, patches.dtype)
        arrays = self.array(patches), self.array(images)
        self._module.restore_patches(self.execution(), *arrays, patch_size)
        return images

    def _allocate(self, size):
        # PyTorch uses the memory of a tensor again for later work on the same stream only.
        self._scratch.append(torch.empty(size, dtype=torch.uint8, device=DEVICE))
        return self._scratch[-1].data_ptr()
