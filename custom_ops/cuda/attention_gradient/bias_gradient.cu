// Chooses and starts the kernels of the gradient of the bias.
#include "custom_ops/cuda/attention_gradient/bias_gradient.h"

#include "custom_ops/cuda/cuda_attention.h"

namespace vit {
namespace {

// The scratch memory of a call; null where none is needed.
struct BiasScratch {
  void *delta, *groups;
};

BiasParameters parameters_of(const AttentionGradientProblem& problem, const BiasGeometry& geometry,
                             const BiasScratch& scratch) {
  const auto is_aligned = [&](const void* data) {
    return has_aligned_rows(problem.type, problem.shape.head_size, data);
  };
  BiasParameters p = {};
  p.problem = problem;
  p.scales = gradient_scales(problem, geometry.path);
  p.delta = static_cast<float*>(scratch.delta);
  p.is_qkv_aligned = is_aligned(problem.qkv);
  p.is_out_aligned = is_aligned(problem.out) && is_aligned(problem.d_out);
  p.geometry = geometry;
  p.result = static_cast<float*>(scratch.groups ? scratch.groups : problem.gradient);
  return p;
}

CudaResult add_groups(const BiasParameters& parameters, const CudaExecution& execution) {
  const LaunchShape& shape = parameters.geometry.sums;
  if (shape.blocks == 0) return CudaResult::kOk;
  return launch(bias_gradient_sums, shape, parameters, execution);
}

template <class T>
CudaResult run_scalar(const AttentionGradientProblem& problem, const BiasGeometry& geometry,
                      const BiasScratch& scratch, const CudaExecution& execution) {
  const BiasParameters parameters = parameters_of(problem, geometry, scratch);
  CudaResult result = CudaResult::kOk;
  if (geometry.delta.blocks) {
    result = launch<GradientParameters>(delta_scalar<T>, geometry.delta, parameters, execution);
  }
  if (result != CudaResult::kOk) return result;
  result = launch(bias_gradient_scalar<T>, geometry.logits, parameters, execution);
  return result == CudaResult::kOk ? add_groups(parameters, execution) : result;
}

template <class T, int kHead>
CudaResult run_tensor(const AttentionGradientProblem& problem, const BiasGeometry& geometry,
                      const BiasScratch& scratch, const CudaExecution& execution) {
  const BiasParameters parameters = parameters_of(problem, geometry, scratch);
  const CudaResult result =
      launch(bias_gradient_tensor<T, kHead>, geometry.logits, parameters, execution);
  return result == CudaResult::kOk ? add_groups(parameters, execution) : result;
}

template <class T>
CudaResult run_16_bit(const AttentionGradientProblem& problem, const BiasGeometry& geometry,
                      const BiasScratch& scratch, const CudaExecution& execution) {
  if (geometry.path == AttentionPath::kScalar) {
    return run_scalar<T>(problem, geometry, scratch, execution);
  }
  switch (padded_head_size(problem.shape.head_size)) {
    case 64:
      return run_tensor<T, 64>(problem, geometry, scratch, execution);
    case 80:
      return run_tensor<T, 80>(problem, geometry, scratch, execution);
    default:
      return run_tensor<T, 128>(problem, geometry, scratch, execution);
  }
}

}  // namespace

CudaResult attention_bias_gradient(const AttentionGradientProblem& problem,
                                   const CudaExecution& execution) {
  int64_t most_shared;
  const CudaResult result = attention_limits(problem, &most_shared);
  if (result != CudaResult::kOk) return result;
  const BiasGeometry geometry =
      bias_geometry(problem.type, problem.shape, problem.bias, most_shared);
  if (geometry.logits.blocks == 0) return CudaResult::kOk;
  if (!is_launchable(geometry, most_shared)) return CudaResult::kTooLarge;
  BiasScratch scratch = {};
  if (geometry.delta_bytes) {
    scratch.delta = execution.allocate(execution.allocator, geometry.delta_bytes);
    if (!scratch.delta) return CudaResult::kOutOfMemory;
  }
  if (geometry.group_bytes) {
    scratch.groups = execution.allocate(execution.allocator, geometry.group_bytes);
    if (!scratch.groups) return CudaResult::kOutOfMemory;
  }
  switch (problem.type) {
    case DType::kBfloat16:
      return run_16_bit<Bfloat16>(problem, geometry, scratch, execution);
    case DType::kFloat16:
      return run_16_bit<Float16>(problem, geometry, scratch, execution);
    default:
      return run_scalar<float>(problem, geometry, scratch, execution);
  }
}

}  // namespace vit
