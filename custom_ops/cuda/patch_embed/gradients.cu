// The gradients of the patch embedding: cc/patch_embed_problem.h defines the problem.
#include "custom_ops/cuda/patch_embed/images_gradient.h"
#include "custom_ops/cuda/patch_embed/kernel_gradient.h"
#include "custom_ops/cuda/patch_embed/tables_gradient.h"

namespace vit {

namespace {

template <class T>
CudaResult run(const PatchGradientParameters& p, const CudaExecution& execution) {
  const PatchEmbedGradientProblem& problem = p.problem;
  CudaResult result = CudaResult::kOk;
  if (problem.d_kernel) result = kernel_gradient<T>(p, execution);
  if (problem.d_images && result == CudaResult::kOk) result = images_gradient<T>(p, execution);
  if ((problem.d_bias || problem.d_prefix || problem.d_position) && result == CudaResult::kOk) {
    result = tables_gradient<T>(p, execution);
  }
  return result;
}

}  // namespace

CudaResult patch_embed_backward(const PatchEmbedGradientProblem& problem,
                                const CudaExecution& execution) {
  if (has_float64(problem)) return CudaResult::kNoKernel;
  PatchGradientParameters p = {};
  p.problem = problem;
  p.grid = grid_of(problem.shape);
  const bool has_aligned = has_aligned_rows(problem.shape.features, problem.type);
  p.has_aligned_kernel = has_aligned && begins_aligned(problem.kernel);
  p.has_aligned_tokens = has_aligned && begins_aligned(problem.d_tokens);
  switch (problem.type) {
    case DType::kBfloat16:
      return run<Bfloat16>(p, execution);
    case DType::kFloat16:
      return run<Float16>(p, execution);
    default:
      return run<float>(p, execution);
  }
}

}  // namespace vit
