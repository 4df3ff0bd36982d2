// Chooses and starts the kernel of attention forward.
#include "custom_ops/cuda/cuda_attention.h"

#include "custom_ops/cuda/attention/forward_scalar.h"
#include "custom_ops/cuda/attention/forward_tensor.h"

namespace vit {
namespace {

template <class T, int kSize>
CudaResult start_tensor(const ForwardGeometry& geometry, const ForwardTensorParameters& parameters,
                        const CudaExecution& execution) {
  return parameters.problem.bias.data ? launch(attention_forward_tensor<T, kSize, true>,
                                               geometry.launch, parameters, execution)
                                      : launch(attention_forward_tensor<T, kSize, false>,
                                               geometry.launch, parameters, execution);
}

template <class T>
CudaResult run_tensor(const AttentionForwardProblem& problem, const ForwardGeometry& geometry,
                      const CudaExecution& execution) {
  const int64_t size = problem.shape.head_size;
  const int64_t width = problem.shape.heads * size;
  const ForwardTensorParameters parameters = {problem,
                                              kernel_scales(problem, geometry.path),
                                              static_cast<int>(problem.shape.tokens),
                                              static_cast<int>(geometry.query_tiles),
                                              geometry.launch.threads,
                                              3 * width * problem.shape.token_stride,
                                              width,
                                              has_aligned_rows(problem.type, size, problem.qkv),
                                              has_aligned_rows(problem.type, size, problem.out)};
  switch (padded_head_size(size)) {
    case 64:
      return start_tensor<T, 64>(geometry, parameters, execution);
    case 80:
      return start_tensor<T, 80>(geometry, parameters, execution);
    default:
      return start_tensor<T, 128>(geometry, parameters, execution);
  }
}

template <class T>
CudaResult run_scalar(const AttentionForwardProblem& problem, const ForwardGeometry& geometry,
                      const CudaExecution& execution) {
  const ForwardScalarParameters parameters = {problem, kernel_scales(problem, geometry.path),
                                              static_cast<uint32_t>(geometry.query_tiles),
                                              static_cast<uint32_t>(geometry.column_tiles)};
  return launch(attention_forward_scalar<T>, geometry.launch, parameters, execution);
}

}  // namespace

CudaResult attention_forward(const AttentionForwardProblem& problem,
                             const CudaExecution& execution) {
  if (problem.type == DType::kFloat64) return CudaResult::kNoKernel;
  int64_t most_shared;
  const CudaResult result = most_shared_bytes(&most_shared);
  if (result != CudaResult::kOk) return result;
  const ForwardGeometry geometry = forward_geometry(problem.type, problem.shape, most_shared);
  if (geometry.launch.blocks == 0) return CudaResult::kOk;
  if (!is_launchable(geometry.launch, most_shared) || problem.shape.tokens > kMaxBlocks)
    return CudaResult::kTooLarge;
  const bool is_tensor = geometry.path == AttentionPath::kTensor;
  switch (problem.type) {
    case DType::kBfloat16:
      return is_tensor ? run_tensor<Bfloat16>(problem, geometry, execution)
                       : run_scalar<Bfloat16>(problem, geometry, execution);
    case DType::kFloat16:
      return is_tensor ? run_tensor<Float16>(problem, geometry, execution)
                       : run_scalar<Float16>(problem, geometry, execution);
    default:
      return run_scalar<float>(problem, geometry, execution);
  }
}

}  // namespace vit
