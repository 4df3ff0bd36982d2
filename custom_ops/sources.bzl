"""What the compiled ops are made of: the one list for Bazel and for build_ops.py.

Constants only, since build_ops.py reads this file as Python literals. Paths are below custom_ops/,
which also is how files are included: "custom_ops/cc/kernel.h".
"""

HEADERS = [
    "cc/attention.h",
    "cc/attention_backward.h",
    "cc/attention_blocks.h",
    "cc/attention_forward.h",
    "cc/attention_isa.h",
    "cc/attention_taps.h",
    "cc/kernel.h",
    "cc/patch_embed.h",
    "cc/patch_embed_backward.h",
    "cc/patch_embed_blocks.h",
    "cc/patch_embed_forward.h",
    "cc/patch_embed_isa.h",
    "cc/patch_embed_kernel_gradient.h",
    "cc/shares.h",
    "cc/simd.h",
    "cc/tile.h",
]

# Read by OPS only.
OP_HEADERS = [
    "tf/attention_checks.h",
    "tf/glue.h",
    "tf/patch_checks.h",
    "tf/registration.h",
]

# Compiled once.
KERNELS = [
    "cc/attention.cc",
    "cc/isa.cc",
    "cc/patch_embed.cc",
]

# Compiled once for every instruction set, with -DVIT_ISA=<name>.
ISA_KERNELS = [
    "cc/attention_isa.cc",
    "cc/patch_embed_isa.cc",
]

# TensorFlow's side of it; in _vit_ops.so only.
OPS = [
    "tf/attention_ops.cc",
    "tf/extract_patches_ops.cc",
    "tf/library_info.cc",
    "tf/patch_ops.cc",
]

# The Python module _vit_kernels, which needs pybind11 and no TensorFlow.
MODULE = ["python/kernels_module.cc"]

# Read by MODULE only.
MODULE_HEADERS = ["python/arrays.h"]

# Tests of the kernels, each a program: tests/cc/<name>.cc.
TESTS = [
    "attention_test",
    "isa_test",
    "patch_embed_test",
    "shares_test",
    "simd_test",
]

# Parts of them, in tests/cc, that are compiled as ISA_KERNELS are.
ISA_TESTS = [
    "simd_isa.cc",
]

# Flags of the instruction sets of x86-64. On other processors there is "baseline" alone.
ISA_COPTS = {
    "baseline": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mprefer-vector-width=512",
    ],
    "avx512_bf16": [
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512bf16",
        "-mprefer-vector-width=512",
    ],
}

KERNEL_COPTS = [
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    # With -std=c++17 GCC would not make an FMA of a product and a sum.
    "-ffp-contract=fast",
    "-fno-math-errno",
    # Bazel's own flags, which come first, say the opposite.
    "-fomit-frame-pointer",
    "-fno-stack-protector",
    "-Wall",
    "-Wextra",
    # GCC 12 means its own headers: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105593
    "-Wno-maybe-uninitialized",
]

# TensorFlow's own flags, the language standard among them, come after these.
OP_COPTS = [
    "-O2",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wall",
]

MODULE_COPTS = [
    "-std=c++17",
    "-O2",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    "-fexceptions",
    "-Wall",
]

TEST_COPTS = [
    "-std=c++17",
    "-O1",
    "-Wall",
    "-Wextra",
]

# Nothing of a static library that the compiler adds may be exported.
LINKOPTS = [
    "-Wl,--exclude-libs,ALL",
]

# Nothing may be missing. What a Python module needs of the interpreter is never there.
OP_LINKOPTS = [
    "-Wl,-z,defs",
]
