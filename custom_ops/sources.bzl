"""Sources and flags of the compiled ops: the one list for Bazel and for build_ops.py.

Constants only, since build_ops.py reads this file as Python literals. Paths are below custom_ops/,
which also is how files are included: "custom_ops/cc/execution.h".
"""

# The problems and their kernels.
HEADERS = [
    "cc/attention_problem.h",
    "cc/dtype.h",
    "cc/encoder_problem.h",
    "cc/execution.h",
    "cc/guided_schedule.h",
    "cc/patch_embed_problem.h",
    "cc/row_problems.h",
    "cpu/attention/cpu_attention.h",
    "cpu/attention/backward.h",
    "cpu/attention/bias_gradient.h",
    "cpu/attention/forward.h",
    "cpu/attention/attention_kernels.h",
    "cpu/attention/line.h",
    "cpu/attention/logit_gradients.h",
    "cpu/attention/logits.h",
    "cpu/attention/taps.h",
    "cpu/blocking.h",
    "cpu/call_queue.h",
    "cpu/cores.h",
    "cpu/dispatch.h",
    "cpu/element_types.h",
    "cpu/encoder/cpu_encoder.h",
    "cpu/encoder/encoder_buffers.h",
    "cpu/encoder/first_row.h",
    "cpu/encoder/encoder_kernels.h",
    "cpu/encoder/head_rows.h",
    "cpu/encoder/layer_norm.h",
    "cpu/encoder/patch_rows.h",
    "cpu/encoder/amx_attention.h",
    "cpu/gemm/dense.h",
    "cpu/gemm/dense_kernel.h",
    "cpu/gemm/heads.h",
    "cpu/gemm/products.h",
    "cpu/gemm/amx_product.h",
    "cpu/isa.h",
    "cpu/kernel.h",
    "cpu/normalize.h",
    "cpu/pack.h",
    "cpu/patch_embed/forward.h",
    "cpu/patch_embed/images_gradient.h",
    "cpu/patch_embed/kernel_gradient.h",
    "cpu/patch_embed/patch_embed_kernels.h",
    "cpu/patch_embed/pack.h",
    "cpu/patch_embed/panels.h",
    "cpu/patch_embed/cpu_patch_embed.h",
    "cpu/patch_embed/tables_gradient.h",
    "cpu/phases.h",
    "cpu/rows/bias_gelu.h",
    "cpu/rows/groups.h",
    "cpu/rows/residual_norm.h",
    "cpu/rows/row_kernels.h",
    "cpu/rows/update.h",
    "cpu/scratch.h",
    "cpu/simd/activations.h",
    "cpu/simd/conversions.h",
    "cpu/simd/math.h",
    "cpu/simd/vectors.h",
    "cpu/team.h",
    "cpu/tile.h",
]

# The ops for every runtime: read by all but the kernels.
OP_HEADERS = [
    "cc/array.h",
    "cc/attention_op.h",
    "cc/encoder_op.h",
    "cc/extract_patches_op.h",
    "cc/model_op.h",
    "cc/op_lists.h",
    "cc/patch_embed_op.h",
    "cc/row_ops.h",
    "cc/status.h",
]

# Read by OPS, XLA_OPS and CUDA_OPS.
TF_HEADERS = [
    "tf/cpu_kernel.h",
    "tf/device_kernel.h",
    "tf/shape_function.h",
    "tf/tensorflow_types.h",
]

# Compiled once.
KERNELS = [
    "cc/attention_problem.cc",
    "cc/encoder_problem.cc",
    "cc/execution.cc",
    "cpu/attention/cpu_attention.cc",
    "cpu/call_queue.cc",
    "cpu/cores.cc",
    "cpu/encoder/cpu_encoder.cc",
    "cpu/isa.cc",
    "cpu/patch_embed/copy.cc",
    "cpu/patch_embed/cpu_patch_embed.cc",
    "cpu/phases.cc",
    "cpu/rows/cpu_rows.cc",
    "cpu/team.cc",
]

# Compiled once for every instruction set, with -DVIT_ISA=<name>.
ISA_KERNELS = [
    "cpu/attention/attention_kernels.cc",
    "cpu/encoder/encoder_kernels.cc",
    "cpu/patch_embed/patch_embed_kernels.cc",
    "cpu/rows/row_kernels.cc",
]

# The stamp and the instruction sets of a library, in each library for TensorFlow.
INFO = ["tf/library_info.cc"]

# The TensorFlow ops; in _vit_ops.so only.
OPS = [
    "tf/attention_ops.cc",
    "tf/encoder_ops.cc",
    "tf/extract_patches_ops.cc",
    "tf/model_ops.cc",
    "tf/patch_ops.cc",
    "tf/row_ops.cc",
]

# The ops for XLA, in _vit_ops_xla.so only, which is optional: it is left out where the headers of
# XLA, which change between versions of TensorFlow, are missing or do not fit.
XLA_OPS = [
    "xla/compile.cc",
    "xla/handlers.cc",
]

# Read by XLA_OPS and CUDA_XLA_OPS only.
XLA_HEADERS = ["xla/handlers.h"]

# The kernels for NVIDIA GPUs, in all libraries and the module _vit_cuda, where there is a CUDA
# compiler. nvcc compiles these files.
CUDA = [
    "cuda/attention/forward.cu",
    "cuda/attention/taps.cu",
    "cuda/attention_gradient/backward.cu",
    "cuda/attention_gradient/bias_gradient.cu",
    "cuda/cuda_execution.cu",
    "cuda/patch_embed/copy.cu",
    "cuda/patch_embed/forward.cu",
    "cuda/patch_embed/gradients.cu",
]

# What decides on the host how the kernels run: plain C++, which tests use without CUDA.
CUDA_HOST = [
    "cuda/attention/attention_geometry.cc",
    "cuda/attention/stream_geometry.cc",
    "cuda/attention_gradient/backward_geometry.cc",
    "cuda/patch_embed/patch_embed_geometry.cc",
]

# The launchers, read by all lists of CUDA. CUDA and CUDA_HOST read of HEADERS only those of cc/.
CUDA_HEADERS = [
    "cuda/cuda_attention.h",
    "cuda/cuda_execution.h",
    "cuda/cuda_patch_embed.h",
]

# Read by CUDA and CUDA_HOST only.
CUDA_KERNEL_HEADERS = [
    "cuda/attention/forward_scalar.h",
    "cuda/attention/forward_tensor.h",
    "cuda/attention/forward_warpgroup.h",
    "cuda/attention/attention_geometry.h",
    "cuda/attention/line.h",
    "cuda/attention/line_stream.h",
    "cuda/attention/scalar_logits.h",
    "cuda/attention/stream_geometry.h",
    "cuda/attention/taps.h",
    "cuda/attention/tensor_logits.h",
    "cuda/attention_gradient/backward_geometry.h",
    "cuda/attention_gradient/backward_rows.h",
    "cuda/attention_gradient/backward_scalar.h",
    "cuda/attention_gradient/backward_tensor.h",
    "cuda/attention_gradient/backward_warpgroup.h",
    "cuda/attention_gradient/bias_gradient.h",
    "cuda/attention_gradient/logit_gradients.h",
    "cuda/device.h",
    "cuda/launch.h",
    "cuda/patch_embed/octets.h",
    "cuda/patch_embed/patch_embed_geometry.h",
    "cuda/patch_embed/gradients.h",
    "cuda/patch_embed/images_gradient.h",
    "cuda/patch_embed/kernel_gradient.h",
    "cuda/patch_embed/pixel_stage.h",
    "cuda/patch_embed/places.h",
    "cuda/patch_embed/tables_gradient.h",
    "cuda/patch_embed/tensor_product.h",
    "cuda/scalar_tiles.h",
    "cuda/tensor_tiles.h",
    "cuda/shared_barrier.h",
    "cuda/warpgroup_products.h",
    "cuda/warpgroup_tiles.h",
]

# The TensorFlow ops for GPUs.
CUDA_OPS = ["tf/gpu_ops.cc"]

# The handlers of XLA for GPUs.
CUDA_XLA_OPS = ["xla/cuda_handlers.cc"]

# Read by CUDA_OPS, CUDA_XLA_OPS and CUDA_MODULE only.
CUDA_OP_HEADERS = ["cuda/cuda_status.h"]

# The Python module _vit_kernels, which needs pybind11 and no TensorFlow.
MODULE = ["python/kernels_module.cc"]

# Read by MODULE and, where no NumPy is involved, by CUDA_MODULE.
MODULE_HEADERS = [
    "python/checked_call.h",
    "python/numpy_arrays.h",
    "python/numpy_ops.h",
    "python/own_threads.h",
]

# The Python module _vit_cuda, which needs pybind11, no TensorFlow and no header of CUDA.
CUDA_MODULE = ["python/cuda_module.cc"]

# Read by CUDA_MODULE only.
CUDA_MODULE_HEADERS = [
    "python/device_arrays.h",
    "python/device_ops.h",
]

# Tests of the kernels, each a program: tests/cc/<name>.cc.
TESTS = [
    "attention_execution_test",
    "attention_test",
    "attention_values_test",
    "call_queue_test",
    "cores_test",
    "encoder_execution_test",
    "encoder_test",
    "guided_schedule_test",
    "isa_test",
    "patch_embed_test",
    "phases_test",
    "row_test",
    "simd_test",
    "team_test",
]

# Tests of the kernels for GPUs, which run them on the CPU: with tests/cc/gpu_emulation.cc and the
# sources of CUDA, compiled as C++. Bazel does not build them.
CUDA_TESTS = [
    "cuda_attention_launch_test",
    "cuda_attention_test",
    "cuda_patch_embed_test",
    "gpu_emulation_test",
]

# Parts of TESTS, in tests/cc, that are compiled as ISA_KERNELS are.
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
    "amx": [
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512bf16",
        "-mamx-tile",
        "-mamx-bf16",
        "-mprefer-vector-width=512",
    ],
}

# A macro that a compiler defines if it compiles for the set: other compilers refuse the flags, or
# only warn.
ISA_MACROS = {
    "baseline": "__cplusplus",
    "avx2": "__AVX2__",
    "avx512": "__AVX512F__",
    "avx512_bf16": "__AVX512BF16__",
    "amx": "__AMX_BF16__",
}

KERNEL_COPTS = [
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "-fPIC",
    "-fvisibility=hidden",
    # With -std=c++17 GCC does not fuse a product and a sum into an FMA without this flag.
    "-ffp-contract=fast",
    "-fno-math-errno",
    # These undo Bazel's own flags, which come first.
    "-fomit-frame-pointer",
    "-fno-stack-protector",
    "-Wall",
    "-Wextra",
    # GCC 12 warns about its own headers: https://gcc.gnu.org/bugzilla/show_bug.cgi?id=105593
    "-Wno-maybe-uninitialized",
]

# TensorFlow's own flags, which include the language standard, come after these.
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

# Compute capabilities of the GPUs that the kernels can be compiled for. Those with an "a" have
# instructions that only this one capability has.
CUDA_ARCHS = [
    "80",
    "86",
    "89",
    "90a",
    "100",
    "120",
]

# Every build also holds the code for this virtual architecture (PTX), which the driver compiles for
# GPUs of this capability or a higher one that the build has no code for.
CUDA_PTX = "80"

# Of nvcc. ptxas reports the registers, memory and spills of each kernel.
CUDA_COPTS = [
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "-Xcompiler=-fPIC,-fvisibility=hidden,-Wall",
    "-Xptxas=-v",
]

# In addition to those of the libraries. The CUDA runtime is linked in, so that a library needs no
# library of CUDA and loads where there is none.
CUDA_LINKOPTS = [
    "-lcudart_static",
    "-ldl",
    "-lpthread",
    "-lrt",
]

TEST_COPTS = [
    "-std=c++17",
    "-O1",
    "-Wall",
    "-Wextra",
]

# Local symbols are left out, and all others are found when a library loads, not in a later call.
LINKOPTS = [
    "-Wl,--strip-all",
    "-Wl,-z,now",
]

# A version script for the linker, which both builds pass before LINKOPTS.
EXPORTS = "exports.lds"

# Undefined symbols are errors. A Python module is linked without this flag, because the interpreter
# defines its symbols at run time.
OP_LINKOPTS = [
    "-Wl,-z,defs",
]
