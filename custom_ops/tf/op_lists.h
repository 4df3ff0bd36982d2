// The ops by the kinds of devices that have kernels for them.
#ifndef CUSTOM_OPS_TF_OP_LISTS_H_
#define CUSTOM_OPS_TF_OP_LISTS_H_

#include "custom_ops/tf/attention_bodies.h"
#include "custom_ops/tf/encoder_bodies.h"
#include "custom_ops/tf/patch_bodies.h"

namespace vit {

template <class... Bodies>
struct OpList {
  template <class Body>
  using With = OpList<Bodies..., Body>;
};

// The name of the input with the index kConstantInput, in every op that has one.
constexpr char kConstantInputName[] = "image_shape";

using CudaOps = OpList<Attention, AttentionGrad, AttentionBiasGrad, AttentionTaps, PatchEmbed,
                       PatchEmbedKernelGrad, PatchEmbedImagesGrad, PatchEmbedTablesGrad,
                       ExtractPatches, ExtractPatchesGrad>;

using CpuOps = CudaOps::With<Encoder>;

}  // namespace vit

#endif  // CUSTOM_OPS_TF_OP_LISTS_H_
