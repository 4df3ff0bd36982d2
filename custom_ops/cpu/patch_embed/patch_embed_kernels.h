// The kernels of the patch embedding of one instruction set.
#ifndef CUSTOM_OPS_CPU_PATCH_EMBED_PATCH_EMBED_KERNELS_H_
#define CUSTOM_OPS_CPU_PATCH_EMBED_PATCH_EMBED_KERNELS_H_

#include "custom_ops/cc/patch_embed_problem.h"
#include "custom_ops/cpu/isa.h"
#include "custom_ops/cpu/kernel.h"

namespace vit {

struct PatchEmbedKernels {
  Kernel<PatchEmbedForwardProblem> forward, prefix;
  Kernel<PatchEmbedGradientProblem> images_gradient, kernel_gradient, tables_gradient;

  // `type` is the type of the problem, not of its images.
  static constexpr Isa kMost = Isa::kAvx512Bf16;
  template <Isa isa>
  static PatchEmbedKernels of(DType type);
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PATCH_EMBED_PATCH_EMBED_KERNELS_H_
