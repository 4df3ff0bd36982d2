// What the kernels of the gradients share.
#ifndef CUSTOM_OPS_CUDA_PATCH_EMBED_GRADIENTS_H_
#define CUSTOM_OPS_CUDA_PATCH_EMBED_GRADIENTS_H_

#include "custom_ops/cuda/cuda_patch_embed.h"
#include "custom_ops/cuda/patch_embed/places.h"

namespace vit {

struct PatchGradientParameters {
  PatchEmbedGradientProblem problem;
  PatchGrid grid;
  ProductPlan plan;
  TablesPlan tables;
  Pixels pixels;            // read for d_kernel
  bool has_aligned_pixels;  // of d_images
  bool has_aligned_kernel, has_aligned_tokens;
  bool has_aligned_sums;  // of the workspace, or of d_kernel without one
  void* workspace;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_PATCH_EMBED_GRADIENTS_H_
