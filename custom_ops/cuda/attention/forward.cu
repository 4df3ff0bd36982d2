// Chooses and starts the kernel of attention forward.
#include "custom_ops/cuda/cuda_attention.h"

#include "custom_ops/cuda/attention/forward_scalar.h"
#include "custom_ops/cuda/attention/forward_tensor.h"
#include "custom_ops/cuda/attention/forward_warpgroup.h"

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

template <class T, int kSize, int kShortBlocks>
CudaResult run_warpgroup(const AttentionForwardProblem& problem,
                         const ForwardWarpgroupGeometry& geometry, const CudaExecution& execution) {
  const int64_t width = problem.shape.heads * problem.shape.head_size;
  const ForwardWarpgroupParameters parameters = {
      problem, kernel_scales(problem, AttentionPath::kTensor), geometry.stream,
      3 * width * problem.shape.token_stride, width};
  return geometry.stream.blocks
             ? launch(attention_forward_warpgroup<T, kSize>, geometry.launch, parameters, execution)
             : launch(attention_forward_short_warpgroup<T, kSize, kShortBlocks>, geometry.launch,
                      parameters, execution);
}

template <class T>
CudaResult run_warpgroup(const AttentionForwardProblem& problem,
                         const ForwardWarpgroupGeometry& geometry, const CudaExecution& execution) {
  return padded_head_size(problem.shape.head_size) == 64
             ? run_warpgroup<T, 64, 5>(problem, geometry, execution)
             : run_warpgroup<T, 80, 3>(problem, geometry, execution);
}

template <class T>
CudaResult run_scalar(const AttentionForwardProblem& problem, const ForwardGeometry& geometry,
                      const CudaExecution& execution) {
  const ForwardScalarParameters parameters = {problem, kernel_scales(problem, geometry.path),
                                              static_cast<uint32_t>(geometry.query_tiles),
                                              static_cast<uint32_t>(geometry.column_tiles)};
  return launch(attention_forward_scalar<T>, geometry.launch, parameters, execution);
}

bool is_aligned(const AttentionForwardProblem& problem) {
  const int64_t size = problem.shape.head_size;
  return has_aligned_rows(problem.type, size, problem.qkv) &&
         has_aligned_rows(problem.type, size, problem.out);
}

}  // namespace

CudaResult attention_forward(const AttentionForwardProblem& problem,
                             const CudaExecution& execution) {
  int64_t most_shared;
  const CudaResult result = attention_limits(problem, &most_shared);
  if (result != CudaResult::kOk) return result;
  const ForwardGeometry geometry = forward_geometry(problem.type, problem.shape, most_shared);
  if (geometry.launch.blocks == 0) return CudaResult::kOk;
  if (!is_launchable(geometry.launch, most_shared) || problem.shape.tokens > kMaxBlocks)
    return CudaResult::kTooLarge;
  const int multiprocessors = warpgroup_multiprocessors();
  if (multiprocessors && !problem.bias.data && is_aligned(problem)) {
    const auto of_warpgroups =
        forward_warpgroup_geometry(problem.type, problem.shape, most_shared, multiprocessors);
    if (of_warpgroups.is_possible && is_launchable(of_warpgroups.launch, most_shared)) {
      return problem.type == DType::kBfloat16
                 ? run_warpgroup<Bfloat16>(problem, of_warpgroups, execution)
                 : run_warpgroup<Float16>(problem, of_warpgroups, execution);
    }
  }
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
