// The ops by the kinds of devices that have kernels for them.
#ifndef CUSTOM_OPS_CC_OP_LISTS_H_
#define CUSTOM_OPS_CC_OP_LISTS_H_

#include <type_traits>

#include "custom_ops/cc/attention_op.h"
#include "custom_ops/cc/extract_patches_op.h"
#include "custom_ops/cc/model_op.h"
#include "custom_ops/cc/patch_embed_op.h"
#include "custom_ops/cc/row_ops.h"

namespace vit {

template <class... Bodies>
struct OpList {
  template <class... Others>
  using With = OpList<Bodies..., Others...>;
};

using CudaOps = OpList<Attention, AttentionGrad, AttentionBiasGrad, AttentionTaps, PatchEmbed,
                       PatchEmbedKernelGrad, PatchEmbedImagesGrad, PatchEmbedTablesGrad,
                       ExtractPatches, ExtractPatchesGrad>;

using CpuOps = CudaOps::With<Encoder, RotaryEncoder, Model, RotaryModel, BiasGelu, BiasGeluGrad,
                             ResidualNorm, ResidualNormGrad, SgdUpdate, AdamwUpdate>;

// The name of the input with the index kConstantInput, in every op that has one.
constexpr char kConstantInputName[] = "image_shape";

// The attribute with the value of that input, for runtimes that do not pass its memory.
constexpr char kConstant[] = "constant";

template <class Body, class... Bodies>
constexpr bool is_in(OpList<Bodies...>) {
  return (std::is_same_v<Body, Bodies> || ...);
}

}  // namespace vit

#endif  // CUSTOM_OPS_CC_OP_LISTS_H_
