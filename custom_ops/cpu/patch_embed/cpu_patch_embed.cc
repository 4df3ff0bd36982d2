#include "custom_ops/cpu/patch_embed/cpu_patch_embed.h"

#include "custom_ops/cpu/dispatch.h"
#include "custom_ops/cpu/patch_embed/patch_embed_kernels.h"

namespace vit {

namespace {

PatchEmbedKernels kernels_of(const PatchEmbedProblem& problem) {
  const bool has_pairs = problem.type == DType::kBfloat16;
  return table_of_current_isa<PatchEmbedKernels>(has_pairs ? Isa::kAvx512Bf16 : Isa::kAvx512,
                                                 problem.type);
}

}  // namespace

Result patch_embed_forward(const PatchEmbedForwardProblem& given, const Execution& execution) {
  PatchEmbedForwardProblem problem = given;
  problem.threads = execution.parallel_for.threads;
  const PatchEmbedKernels kernels = kernels_of(problem);
  const Result result = run_kernel(kernels.forward, problem, execution);
  if (result != Result::kOk) return result;
  return run_kernel(kernels.prefix, problem, execution);
}

Result patch_embed_backward(const PatchEmbedGradientProblem& given, const Execution& execution) {
  PatchEmbedGradientProblem problem = given;
  problem.threads = execution.parallel_for.threads;
  const PatchEmbedKernels kernels = kernels_of(problem);
  Result result = Result::kOk;
  if (problem.d_kernel) result = run_kernel(kernels.kernel_gradient, problem, execution);
  if (problem.d_images && result == Result::kOk) {
    result = run_kernel(kernels.images_gradient, problem, execution);
    clear_unread_pixels(problem.shape, size_of(problem.image_type), problem.d_images);
  }
  if ((problem.d_bias || problem.d_prefix || problem.d_position) && result == Result::kOk) {
    result = run_kernel(kernels.tables_gradient, problem, execution);
  }
  return result;
}

}  // namespace vit
