// The ops by the kinds of devices that have kernels for them.
#ifndef CUSTOM_OPS_TF_OP_LISTS_H_
#define CUSTOM_OPS_TF_OP_LISTS_H_

#include <type_traits>

#include "absl/types/span.h"
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

template <class Body, class... Bodies>
constexpr bool is_in(OpList<Bodies...>) {
  return (std::is_same_v<Body, Bodies> || ...);
}

// Leaves out the types of an op that no kernel for GPUs computes with: float64. `builder` is that
// of a kernel, of TensorFlow or of XLA.
template <class Body, class Builder>
void restrict_types_on_gpus(Builder& builder) {
  using tensorflow::DataType;
  static constexpr DataType kTypes[] = {tensorflow::DT_UINT8, tensorflow::DT_BFLOAT16,
                                        tensorflow::DT_HALF, tensorflow::DT_FLOAT};
  const absl::Span<const DataType> images(kTypes), floats = images.subspan(1);
  if (is_in<Body>(OpList<ExtractPatches, ExtractPatchesGrad>())) return;  // they copy bytes
  builder.TypeConstraint("T", floats);
  if (is_in<Body>(OpList<PatchEmbed, PatchEmbedKernelGrad>())) builder.TypeConstraint("I", images);
  if (is_in<Body>(OpList<PatchEmbedImagesGrad>())) builder.TypeConstraint("I", floats);
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_OP_LISTS_H_
