// The ops that XLA can compile. compile.cc and the handlers register each of them, under its name.
#ifndef CUSTOM_OPS_XLA_OPS_H_
#define CUSTOM_OPS_XLA_OPS_H_

#include "custom_ops/tf/attention_bodies.h"
#include "custom_ops/tf/encoder_bodies.h"
#include "custom_ops/tf/patch_bodies.h"

namespace vit {

template <class... Bodies>
struct OpList {};

using XlaOps = OpList<Attention, AttentionGrad, AttentionBiasGrad, AttentionTaps, Encoder,
                      PatchEmbed, PatchEmbedKernelGrad, PatchEmbedImagesGrad, PatchEmbedTablesGrad,
                      ExtractPatches, ExtractPatchesGrad>;

// The attribute of a call that holds the value of the constant input, if the op has one.
constexpr char kConstant[] = "constant";

}  // namespace vit

#endif  // CUSTOM_OPS_XLA_OPS_H_
