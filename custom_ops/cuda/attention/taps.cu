// Chooses and starts the kernels of the taps.
#include "custom_ops/cuda/attention/taps.h"

#include "custom_ops/cuda/cuda_attention.h"

namespace vit {
namespace {

template <class T>
CudaResult start(const TapsGeometry& geometry, const TapsParameters& parameters,
                 const CudaExecution& execution) {
  if constexpr (sizeof(T) == 2) {
    if (geometry.path == AttentionPath::kTensor) {
      return launch(attention_taps_tensor<T>, geometry.launch, parameters, execution);
    }
  }
  return launch(attention_taps_scalar<T>, geometry.launch, parameters, execution);
}

template <class T>
CudaResult run(const AttentionTapsProblem& problem, const TapsGeometry& geometry,
               const CudaExecution& execution) {
  TapsParameters parameters = {
      problem, kernel_scales(problem, geometry.path), static_cast<uint32_t>(geometry.query_tiles),
      has_aligned_rows(problem.type, problem.shape.head_size, problem.qkv), nullptr};
  if (geometry.sum_bytes > 0) {
    parameters.sums =
        static_cast<float*>(execution.allocate(execution.allocator, geometry.sum_bytes));
    if (!parameters.sums) return CudaResult::kOutOfMemory;
  }
  CudaResult result = CudaResult::kOk;
  if (geometry.launch.blocks > 0) {
    result = start<T>(geometry, parameters, execution);
  }
  if (result != CudaResult::kOk || geometry.sums.blocks == 0) return result;
  return launch(attention_taps_sums, geometry.sums, parameters, execution);
}

}  // namespace

CudaResult attention_taps(const AttentionTapsProblem& problem, const CudaExecution& execution) {
  int64_t most_shared;
  const CudaResult result = attention_limits(problem, &most_shared);
  if (result != CudaResult::kOk) return result;
  const bool is_wanted = problem.class_row || problem.distance || problem.entropy;
  if (!is_wanted || lines_of(problem.shape) == 0) return CudaResult::kOk;
  const TapsGeometry geometry = taps_geometry(problem, most_shared);
  if (geometry.launch.blocks > 0 && !is_launchable(geometry.launch, most_shared)) {
    return CudaResult::kTooLarge;
  }
  switch (problem.type) {
    case DType::kBfloat16:
      return run<Bfloat16>(problem, geometry, execution);
    case DType::kFloat16:
      return run<Float16>(problem, geometry, execution);
    default:
      return run<float>(problem, geometry, execution);
  }
}

}  // namespace vit
