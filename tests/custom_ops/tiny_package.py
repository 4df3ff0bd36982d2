"""A package of a few tiny sources, which the tests of the build compile in place of the ops."""

from custom_ops import build_ops, library_file

LISTS = """
ISA_MACROS = {"baseline": "__cplusplus"}
HEADERS = ["cc/a.h"]
OP_HEADERS = ["cc/o.h"]
TF_HEADERS = ["tf/t.h"]
KERNELS = ["cc/k.cc"]
ISA_KERNELS = ["cc/i.cc"]
INFO = ["tf/info.cc"]
OPS = ["tf/op.cc"]
XLA_OPS = ["xla/x.cc"]
XLA_HEADERS = ["xla/x.h"]
CUDA = ["cuda/c.cu"]
CUDA_HOST = ["cuda/h.cc"]
CUDA_HEADERS = ["cuda/c.h"]
CUDA_KERNEL_HEADERS = ["cuda/k.h"]
CUDA_OPS = ["tf/gpu.cc"]
CUDA_XLA_OPS = ["xla/gpu.cc"]
CUDA_OP_HEADERS = []
CUDA_MODULE = ["python/c.cc"]
CUDA_MODULE_HEADERS = []
CUDA_ARCHS = ["80", "86", "90a"]
CUDA_PTX = "80"
CUDA_COPTS = ["-O0", "-fPIC"]
CUDA_LINKOPTS = ["-lm"]
MODULE = ["python/m.cc"]
TESTS = []
ISA_COPTS = {"baseline": []}
KERNEL_COPTS = ["-O0", "-fPIC"]
OP_COPTS = ["-O0", "-fPIC"]
MODULE_COPTS = ["-O0", "-fPIC"]
MODULE_HEADERS = ["python/m.h"]
LINKOPTS = []
EXPORTS = "exports.lds"
OP_LINKOPTS = ["-Wl,-z,defs"]
"""

FILES = {
    "sources.bzl": LISTS,
    "exports.lds": "{ global: s; local: *; };",
    "cc/a.h": "int isa();",
    "cc/k.cc": '#include "custom_ops/cc/a.h"\nint kernel() { return isa(); }',
    "cc/i.cc": '#include "custom_ops/cc/a.h"\nint isa() { return 1; }',
    "cc/o.h": "",
    "tf/t.h": '#include "custom_ops/cc/o.h"\n',
    "tf/op.cc": '#include "custom_ops/tf/t.h"\nint kernel(); int op() { return kernel(); }',
    "tf/info.cc": '#include "custom_ops/build_stamp.h"\n'
    'extern "C" const char s[] = "VIT_OPS_BUILD_INFO:{\\"tensorflow\\": \\""'
    ' VIT_OPS_TENSORFLOW "\\", \\"compiler\\": \\"c\\", \\"isas\\": \\"" VIT_OPS_ISAS'
    ' "\\", \\"cuda_archs\\": \\"" VIT_OPS_CUDA_ARCHS'
    ' "\\", \\"sources\\": \\"" VIT_OPS_SOURCES "\\"}";',
    "xla/x.h": "",
    "xla/x.cc": "int kernel(); int x() { return kernel(); }",
    "python/m.h": "",
    "python/m.cc": "int kernel(); int m() { return kernel(); }",
    "cuda/c.h": "int host();",
    "cuda/k.h": "",
    "cuda/c.cu": '#include "custom_ops/cuda/c.h"\nint gpu() { return host(); }',
    "cuda/h.cc": '#include "custom_ops/cuda/c.h"\nint host() { return 1; }',
    "tf/gpu.cc": "int gpu(); int gpu_op() { return gpu(); }",
    "xla/gpu.cc": "int gpu(); int gpu_handler() { return gpu(); }",
    "python/c.cc": "int gpu(); int c() { return gpu(); }",
    "../setup.py": "",
}


def write(folder):
    """Writes the package to a folder of a checkout; returns what `probe` answers for it."""
    for file, text in FILES.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)
    return {
        "python_include": "/python",
        "suffix": ".abi.so",
        "pybind11_include": "/pybind11",
        "pybind11_version": "3.0",
        "tensorflow": {"version": "2.20.0", "compile": ["-DX"], "link": ["-lm"], "xla": None},
    }


def build(folder):
    """Builds it; returns the names of the units that were compiled, sorted, and what is said."""
    lines = []
    build_ops.build(folder / library_file.NAME, folder, lines.append)
    return sorted(line.split()[3] for line in lines if "] compile " in line), lines


# The units that need no CUDA.
ALL = ["cc_i-baseline", "cc_k", "python_m", "tf_info", "tf_op"]
