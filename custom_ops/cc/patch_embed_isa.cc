// Compiled once for every instruction set, with -DVIT_ISA=<name>: see simd.h.
#include "custom_ops/cc/patch_embed_isa.h"

#include "custom_ops/cc/patch_embed_backward.h"
#include "custom_ops/cc/patch_embed_forward.h"
#include "custom_ops/cc/patch_embed_kernel_gradient.h"

namespace vit {
namespace VIT_ISA {

namespace {

template <class Kernel>
PatchWork work() {
  return {Kernel::units, Kernel::scratch_bytes, Kernel::run};
}

template <class S>
PatchKernels kernels() {
  return {work<EmbedForward<S>>(), work<EmbedPrefix<S>>(), work<KernelGradient<S>>(),
          work<ImageGradient<S>>(), work<TableGradients<S>>()};
}

}  // namespace

PatchKernels patch_kernels(DType type) {
  switch (type) {
    case DType::kFloat64:
      return kernels<double>();
    case DType::kBfloat16:
      return kernels<Bfloat16>();
    case DType::kFloat16:
      return kernels<Float16>();
    default:
      return kernels<float>();
  }
}

}  // namespace VIT_ISA
}  // namespace vit
