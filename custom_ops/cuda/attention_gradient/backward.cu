// Chooses and starts the kernels of the gradients of q, k and v.
#include "custom_ops/cuda/cuda_attention.h"

#include "custom_ops/cuda/attention_gradient/backward_scalar.h"
#include "custom_ops/cuda/attention_gradient/backward_tensor.h"
#include "custom_ops/cuda/attention_gradient/backward_warpgroup.h"

namespace vit {
namespace {

GradientParameters parameters_of(const AttentionGradientProblem& problem,
                                 const BackwardGeometry& geometry, void* delta) {
  const AttentionShape& shape = problem.shape;
  const int64_t size = shape.head_size, out_stride = shape.token_stride * shape.heads * size;
  const auto is_aligned = [&](const void* data) {
    return has_aligned_rows(problem.type, size, data);
  };
  return {problem,
          gradient_scales(problem, geometry.path),
          static_cast<float>(problem.scale),
          static_cast<float*>(delta),
          3 * out_stride,
          out_stride,
          geometry.queries,
          static_cast<uint32_t>(geometry.query_tiles),
          static_cast<uint32_t>(geometry.key_tiles),
          static_cast<uint32_t>(geometry.column_tiles),
          is_aligned(problem.qkv),
          is_aligned(problem.out) && is_aligned(problem.d_out),
          is_aligned(problem.gradient)};
}

template <class T, int kHead>
CudaResult run_tensor(const AttentionGradientProblem& problem, const BackwardGeometry& geometry,
                      void* delta, const CudaExecution& execution) {
  const auto parameters = parameters_of(problem, geometry, delta);
  if constexpr (kHead < 128) {
    const LaunchShape& shape = geometry.short_lines;
    const auto start = [&](auto kernel) { return launch(kernel, shape, parameters, execution); };
    if (shape.blocks) {
      switch (shape.threads / 32) {
        case 1:
          return start(short_line_gradients<T, kHead, 1>);
        case 2:
          return start(short_line_gradients<T, kHead, 2>);
        case 3:
          return start(short_line_gradients<T, kHead, 3>);
        default:
          return start(short_line_gradients<T, kHead, 4>);
      }
    }
  }
  const CudaResult result =
      launch(query_gradients<T, kHead>, geometry.d_queries, parameters, execution);
  if (result != CudaResult::kOk) return result;
  return launch(key_gradients<T, kHead>, geometry.d_keys, parameters, execution);
}

template <class T>
CudaResult run_scalar(const AttentionGradientProblem& problem, const BackwardGeometry& geometry,
                      void* delta, const CudaExecution& execution) {
  const auto parameters = parameters_of(problem, geometry, delta);
  CudaResult result = launch(delta_scalar<T>, geometry.delta, parameters, execution);
  if (result != CudaResult::kOk) return result;
  result = launch(query_gradients_scalar<T>, geometry.d_queries, parameters, execution);
  if (result != CudaResult::kOk) return result;
  return launch(key_gradients_scalar<T>, geometry.d_keys, parameters, execution);
}

template <class T>
CudaResult run_16_bit(const AttentionGradientProblem& problem, const BackwardGeometry& geometry,
                      void* delta, const CudaExecution& execution) {
  if (geometry.path == AttentionPath::kScalar) {
    return run_scalar<T>(problem, geometry, delta, execution);
  }
  switch (padded_head_size(problem.shape.head_size)) {
    case 64:
      return run_tensor<T, 64>(problem, geometry, delta, execution);
    case 80:
      return run_tensor<T, 80>(problem, geometry, delta, execution);
    default:
      return run_tensor<T, 128>(problem, geometry, delta, execution);
  }
}

template <class T, int kHead>
CudaResult run_warpgroup(const AttentionGradientProblem& problem,
                         const BackwardWarpgroupGeometry& geometry, void* delta,
                         const CudaExecution& execution) {
  const GradientParameters common = parameters_of(problem, {}, delta);
  const auto start = [&](auto kernel, const StreamGeometry& stream, const LaunchShape& shape) {
    return launch(kernel, shape, BackwardWarpgroupParameters{common, stream}, execution);
  };
  const CudaResult result =
      start(query_gradients_warpgroup<T, kHead>, geometry.queries, geometry.d_queries);
  if (result != CudaResult::kOk) return result;
  return start(key_gradients_warpgroup<T, kHead>, geometry.keys, geometry.d_keys);
}

bool is_aligned(const AttentionGradientProblem& problem) {
  const auto check = [&](const void* data) {
    return has_aligned_rows(problem.type, problem.shape.head_size, data);
  };
  return check(problem.qkv) && check(problem.out) && check(problem.d_out) &&
         check(problem.gradient);
}

}  // namespace

CudaResult attention_backward(const AttentionGradientProblem& problem,
                              const CudaExecution& execution) {
  int64_t most_shared;
  const CudaResult result = attention_limits(problem, &most_shared);
  if (result != CudaResult::kOk) return result;
  const BackwardGeometry geometry = backward_geometry(problem.type, problem.shape, most_shared);
  if (is_empty(geometry)) return CudaResult::kOk;
  if (!is_launchable(geometry, most_shared)) return CudaResult::kTooLarge;
  void* delta = nullptr;
  const int multiprocessors = warpgroup_multiprocessors();
  if (multiprocessors && !problem.bias.data && is_aligned(problem)) {
    const auto warpgroups =
        backward_warpgroup_geometry(problem.type, problem.shape, most_shared, multiprocessors);
    if (warpgroups.is_possible) {
      if (warpgroups.delta_bytes) {
        delta = execution.allocate(execution.allocator, warpgroups.delta_bytes);
        if (!delta) return CudaResult::kOutOfMemory;
      }
      const bool is_64 = padded_head_size(problem.shape.head_size) == 64;
      if (problem.type == DType::kBfloat16) {
        return is_64 ? run_warpgroup<Bfloat16, 64>(problem, warpgroups, delta, execution)
                     : run_warpgroup<Bfloat16, 80>(problem, warpgroups, delta, execution);
      }
      return is_64 ? run_warpgroup<Float16, 64>(problem, warpgroups, delta, execution)
                   : run_warpgroup<Float16, 80>(problem, warpgroups, delta, execution);
    }
  }
  if (geometry.delta_bytes) {
    delta = execution.allocate(execution.allocator, geometry.delta_bytes);
    if (!delta) return CudaResult::kOutOfMemory;
  }
  switch (problem.type) {
    case DType::kBfloat16:
      return run_16_bit<Bfloat16>(problem, geometry, delta, execution);
    case DType::kFloat16:
      return run_16_bit<Float16>(problem, geometry, delta, execution);
    default:
      return run_scalar<float>(problem, geometry, delta, execution);
  }
}

}  // namespace vit
