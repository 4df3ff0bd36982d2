// The patch embedding on a GPU: cc/patch_embed_problem.h defines the problems, whose pointers are
// memory of the GPU.
#ifndef CUSTOM_OPS_CUDA_CUDA_PATCH_EMBED_H_
#define CUSTOM_OPS_CUDA_CUDA_PATCH_EMBED_H_

#include "custom_ops/cc/patch_embed_problem.h"
#include "custom_ops/cuda/cuda_execution.h"

namespace vit {

CudaResult patch_embed_forward(const PatchEmbedForwardProblem& problem,
                               const CudaExecution& execution);

CudaResult patch_embed_backward(const PatchEmbedGradientProblem& problem,
                                const CudaExecution& execution);

// Copies images to patches.
CudaResult extract_patches(const PatchCopyProblem& problem, const CudaExecution& execution);

// Copies patches to images.
CudaResult restore_patches(const PatchCopyProblem& problem, const CudaExecution& execution);

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_CUDA_PATCH_EMBED_H_
