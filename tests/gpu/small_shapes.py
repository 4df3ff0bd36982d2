"""Calls of every kernel on small shapes, for compute-sanitizer.

They use the driver of CUDA alone: under the sanitizer PyTorch would take minutes, and its allocator
would hide reads behind the end of a tensor. Results are not checked here.
"""

import ctypes
import importlib.util
import itertools

import numpy as np

_SIZES = {"bfloat16": 2, "float32": 4, "uint8": 1}
# (batch, tokens, heads, head size, whether with biases too): the fewest that reach each kernel.
# Kernels are for heads of up to 64, 80 or 128 elements in 16 bits, and for all others. Gradients of
# up to 64 tokens have one for each 16 of these. On GPUs with warpgroups the kernels of single warps
# run with a bias, or where a head does not have a multiple of 16 bytes.
ATTENTION = (
    (1, 50, 2, 64, True),
    (1, 65, 1, 64, True),
    (1, 65, 1, 80, True),
    (1, 65, 1, 96, True),
    (1, 17, 1, 130, True),
    (2, 17, 3, 20, True),
    (1, 33, 1, 20, False),
    (1, 16, 1, 70, False),
    (1, 17, 1, 70, False),
    (1, 33, 1, 80, False),
    (1, 50, 1, 80, False),
    (1, 100, 1, 64, False),
    (1, 197, 1, 64, False),
    (1, 197, 1, 80, False),
    # These use slots of rings again on 132 multiprocessors: blocks with four lines or five where
    # three fit, and a line of 14 sections (forward) and 15 (gradients) in 9 and 13 slots.
    (1, 65, 530, 8, False),
    (1, 900, 1, 64, False),
    (1, 1, 1, 1, False),
)
# Lines of a grid differ from a sequence in the strides alone.
_AXIAL = ((1, 50, 1, 64, True), (1, 65, 1, 80, False), (2, 17, 2, 20, True))
TAPS = (
    (1, 50, 2, 64),
    (1, 65, 1, 80),
    (1, 197, 1, 64),
    (2, 17, 3, 20),
    (1, 17, 1, 130),
    (1, 1, 1, 1),
)
# The last one has more patches than a block of the gradient of the kernel sums.
PATCHES = (
    ((2, 35, 33, 3), 16, 40),
    ((2, 9, 7, 1), 3, 33),
    ((1, 4, 3, 3), 1, 130),
    ((1, 17, 17, 1), 1, 8),
)
# Copies have a kernel for units of each of 1, 2, 4, 8 and 16 bytes, by what divides their lines.
COPIES = (*(case[:2] for case in PATCHES[:3]), ((1, 16, 16, 1), 8))
# float16 runs the code of bfloat16.
DTYPES = ("bfloat16", "float32")
# Error of the driver.
OUT_OF_MEMORY = 2


def load_module(path, variant=""):
    """The module `_vit_cuda` from a file; each variant that a process loads has another name."""
    # pybind11 returns what it has loaded by the same name, whatever the file.
    name = f"{variant}._vit_cuda" if variant else "_vit_cuda"
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class Driver:
    """Memory of the first GPU, by the driver's own functions. It is freed when the process ends."""

    def __init__(self):
        self._cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), 0)
        # The runtime that the module contains uses the same context.
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)
        self._random = np.random.default_rng(0)

    def allocate(self, size):
        """The address of memory of exactly this many bytes."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        return address.value

    def random(self, count, dtype):
        """The address of random numbers."""
        if dtype == "uint8":
            data = self._random.integers(0, 256, count, np.uint8)
        elif dtype == "bfloat16":
            # The upper half of a float32.
            wide = self._random.normal(size=count).astype(np.float32)
            data = (wide.view(np.uint32) >> 16).astype(np.uint16)
        else:
            data = self._random.normal(size=count).astype(dtype)
        address = self.allocate(data.nbytes)
        pointer = ctypes.c_void_p(data.ctypes.data)
        self._call(
            "cuMemcpyHtoD_v2", ctypes.c_uint64(address), pointer, ctypes.c_size_t(data.nbytes)
        )
        return address

    def synchronize(self):
        self._call("cuCtxSynchronize")

    def _call(self, name, *arguments):
        code = getattr(self._cuda, name)(*arguments)
        if code == OUT_OF_MEMORY:
            raise MemoryError(f"{name} failed")
        if code:
            raise RuntimeError(f"{name} failed: CUDA error {code}")


class Calls:
    """Calls the functions of the module and counts the calls."""

    def __init__(self, module):
        self.count = 0
        self._module, self._driver = module, Driver()
        self._execution = module.Execution(0, self._driver.allocate)

    def attention(self, dtype, axis=None):
        for batch, tokens, heads, size, biased in ATTENTION if axis is None else _AXIAL:
            outer = {None: (batch, tokens), 1: (batch, tokens, 3), 2: (batch, 3, tokens)}[axis]
            lines = () if axis is None else (3,)
            qkv = self._given((*outer, 3 * heads * size), dtype)
            out, d_out = (self._given((*outer, heads * size), dtype) for _ in range(2))
            statistics = self._output((batch, *lines, heads, 2, tokens), "float32")
            biases = (heads, tokens, tokens), (batch, *[1] * len(lines), 1, tokens, 1)
            for shape in (None, *(biases if biased else ())):
                bias = shape and self._given(shape, "float32")
                problem = self._module.Attention(qkv, heads, bias=bias, axis=axis)
                self._run(problem.forward, out, statistics)
                d_qkv = self._output((*outer, 3 * heads * size), dtype)
                self._run(problem.gradient, out, statistics, d_out, d_qkv)
                if bias:
                    d_bias = self._output(shape, "float32")
                    self._run(problem.bias_gradient, out, statistics, d_out, d_bias)

    def axial(self, dtype):
        self.attention(dtype, 1)
        self.attention(dtype, 2)

    def taps(self, dtype):
        for batch, tokens, heads, size in TAPS:
            qkv = self._given((batch, tokens, 3 * heads * size), dtype)
            out = self._output((batch, tokens, heads * size), dtype)
            statistics = self._output((batch, heads, 2, tokens), "float32")
            problem = self._module.Attention(qkv, heads)
            self._run(problem.forward, out, statistics)
            found = {
                name: self._output((batch, heads), "float32") for name in ("distance", "entropy")
            }
            found["class_row"] = self._output((batch, heads, tokens), "float32")
            self._run(problem.taps, statistics, grid=(1, tokens), **found)

    def patch_embed(self, dtype):
        for shape, patch_size, width in PATCHES:
            count = (shape[1] // patch_size) * (shape[2] // patch_size) + 1
            kernel = self._given((patch_size, patch_size, shape[3], width), dtype)
            shapes = {"bias": (width,), "prefix": (1, width), "position": (count, width)}
            tables = {name: self._given(size, dtype) for name, size in shapes.items()}
            shapes |= {"kernel": kernel.shape, "images": shape}
            tokens = self._given((shape[0], count, width), dtype)
            for image_dtype in (dtype, "uint8"):
                images = self._given(shape, image_dtype)
                problem = self._module.PatchEmbed(images, kernel, scale=0.1, prefix=1)
                bias, others = tables["bias"], dict(tables)
                del others["bias"]
                self._run(problem.forward, bias, tokens, **others)
                found = {
                    name: self._output(size, dtype)
                    for name, size in shapes.items()
                    if name != "images" or image_dtype != "uint8"
                }
                self._run(problem.gradient, tokens, **found)

    def extract_patches(self, dtype):
        for (shape, patch_size), copied in itertools.product(COPIES, (dtype, "uint8")):
            count = (shape[1] // patch_size) * (shape[2] // patch_size)
            images = self._given(shape, copied)
            patches = self._output((shape[0], count, patch_size**2 * shape[3]), copied)
            self._run(self._module.extract_patches, images, patches, patch_size)
            self._run(self._module.restore_patches, patches, images, patch_size)

    def _run(self, function, *arguments, **others):
        function(self._execution, *arguments, **others)
        self._driver.synchronize()
        self.count += 1

    def _given(self, shape, dtype):
        address = self._driver.random(int(np.prod(shape)), dtype)
        return self._module.Array(address, list(shape), dtype)

    def _output(self, shape, dtype):
        address = self._driver.allocate(int(np.prod(shape)) * _SIZES[dtype])
        return self._module.Array(address, list(shape), dtype)
