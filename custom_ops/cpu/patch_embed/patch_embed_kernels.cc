// Compiled once for every instruction set, with -DVIT_ISA=<name>: see simd/vectors.h.
#include "custom_ops/cpu/patch_embed/patch_embed_kernels.h"

#include "custom_ops/cpu/element_types.h"
#include "custom_ops/cpu/patch_embed/forward.h"
#include "custom_ops/cpu/patch_embed/images_gradient.h"
#include "custom_ops/cpu/patch_embed/kernel_gradient.h"
#include "custom_ops/cpu/patch_embed/tables_gradient.h"

namespace vit {
namespace VIT_ISA {

namespace {

template <class S>
struct Kernels {
  static PatchEmbedKernels table() {
    using Forward = Kernel<PatchEmbedForwardProblem>;
    using Gradient = Kernel<PatchEmbedGradientProblem>;
    return {Forward::of<PatchEmbedForward<S>>(), Forward::of<PatchEmbedPrefix<S>>(),
            Gradient::of<PatchEmbedImagesGradient<S>>(),
            Gradient::of<PatchEmbedKernelGradient<S>>(),
            Gradient::of<PatchEmbedTablesGradient<S>>()};
  }
};

}  // namespace

}  // namespace VIT_ISA

template <Isa isa>
PatchEmbedKernels PatchEmbedKernels::of(DType type) {
  return VIT_ISA::table_of_type<VIT_ISA::Kernels>(type);
}
#if !defined(__AMX_BF16__)  // no kernels with tiles
template PatchEmbedKernels PatchEmbedKernels::of<VIT_ISA::kIsa>(DType type);
#endif

}  // namespace vit
