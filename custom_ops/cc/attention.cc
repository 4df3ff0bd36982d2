#include "custom_ops/cc/attention.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include <atomic>

#include "custom_ops/cc/attention_isa.h"

namespace vit {

namespace {

AttentionKernels kernels(DType type) {
  switch (current_isa()) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2::attention_kernels(type);
    case Isa::kAvx512:
      return avx512::attention_kernels(type);
    case Isa::kAvx512Bf16:
      return avx512_bf16::attention_kernels(type);
#endif
    default:
      return baseline::attention_kernels(type);
  }
}

struct Job {
  const AttentionCall& call;
  const AttentionWork& work;
  std::atomic<bool> out_of_memory{false};
};

void run_range(void* argument, int64_t begin, int64_t end) {
  Job& job = *static_cast<Job*>(argument);
  const int64_t bytes = (job.work.scratch_bytes(job.call) + 63) / 64 * 64;
  void* scratch = aligned_alloc(64, static_cast<size_t>(bytes));
  if (!scratch) {
    job.out_of_memory = true;
    return;
  }
  job.work.run(job.call, begin, end, scratch);
  free(scratch);
}

Result run(const AttentionCall& call, const AttentionWork& work, double products,
           ParallelFor parallel_for) {
  const int64_t units = work.units(call);
  if (units == 0) return Result::kOk;
  Job job{call, work};
  // About 16 multiplications and additions a cycle, and something for each unit.
  const double cost = products * static_cast<double>(call.shape.tokens) *
                          static_cast<double>(call.shape.tokens) *
                          static_cast<double>(call.shape.head_size) / 16 +
                      500;
  parallel_for.run(parallel_for.pool, units, static_cast<int64_t>(cost < 1e12 ? cost : 1e12),
                   run_range, &job);
  return job.out_of_memory ? Result::kOutOfMemory : Result::kOk;
}

}  // namespace

AttentionShape sequence_shape(int64_t batch, int64_t tokens, int64_t heads, int64_t head_size) {
  return {batch, 1, tokens, heads, head_size, tokens, 0, 1};
}

AttentionShape grid_shape(int64_t batch, int64_t rows, int64_t columns, int64_t heads,
                          int64_t head_size, int axis) {
  if (axis == 1) return {batch, columns, rows, heads, head_size, rows * columns, 1, columns};
  return {batch, rows, columns, heads, head_size, rows * columns, columns, 1};
}

double default_attention_scale(int64_t head_size) {
  return 1 / sqrt(static_cast<double>(head_size));
}

bool is_attention_scale(DType type, double scale) {
  const bool wide = type == DType::kFloat64;
  return scale >= (wide ? DBL_MIN : double{FLT_MIN}) && scale <= (wide ? DBL_MAX : FLT_MAX) / 2;
}

Result attention_forward(DType type, const AttentionShape& shape, double scale,
    const void* qkv,
                         const AttentionBias& bias, void* out, void* statistics,
                         ParallelFor parallel_for) {
  AttentionCall call{};
  call.type = type;
  call.shape = shape;
  call.scale = scale;
  call.qkv = qkv;
  call.bias = bias;
  call.result = out;
  call.result_statistics = statistics;
  return run(call, kernels(type).forward, 2, parallel_for);
}

Result attention_backward(DType type, const AttentionShape& shape, double scale,
    const void* qkv,
                          const AttentionBias& bias, const void* out, const void* statistics,
                          const void* d_out, void* d_qkv, ParallelFor parallel_for) {
  AttentionCall call{};
  call.type = type;
  call.shape = shape;
  call.scale = scale;
  call.qkv = qkv;
  call.bias = bias;
  call.out = out;
  call.statistics = statistics;
  call.d_out = d_out;
  call.result = d_qkv;
  return run(call, kernels(type).backward, 5, parallel_for);
}

Result attention_bias_gradient(DType type, const AttentionShape& shape, double scale,
    const void* qkv,
                               const AttentionBias& bias, const void* out, const void* statistics,
                               const void* d_out, void* d_bias, ParallelFor parallel_for) {
  AttentionCall call{};
  call.type = type;
  call.shape = shape;
  call.scale = scale;
  call.qkv = qkv;
  call.bias = bias;
  call.out = out;
  call.statistics = statistics;
  call.d_out = d_out;
  call.result = d_bias;
  return run(call, kernels(type).bias_gradient, 2, parallel_for);
}

Result attention_taps(DType type, const AttentionShape& shape, double scale,
    const void* qkv,
                      const AttentionBias& bias, const void* statistics, const AttentionTaps& taps,
                      ParallelFor parallel_for) {
  AttentionCall call{};
  call.type = type;
  call.shape = shape;
  call.scale = scale;
  call.qkv = qkv;
  call.bias = bias;
  call.statistics = statistics;
  call.taps = taps;
  return run(call, kernels(type).taps, 1, parallel_for);
}

int64_t attention_forward_scratch(DType type, const AttentionShape& shape) {
  AttentionCall call{};
  call.type = type;
  call.shape = shape;
  return kernels(type).forward.scratch_bytes(call);
}

}  // namespace vit
