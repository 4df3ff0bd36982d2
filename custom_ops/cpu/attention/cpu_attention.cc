#include "custom_ops/cpu/attention/cpu_attention.h"

#include "custom_ops/cpu/attention/attention_kernels.h"
#include "custom_ops/cpu/dispatch.h"

namespace vit {

namespace {

AttentionKernels kernels(const AttentionProblem& problem) {
  const bool has_pairs = problem.type == DType::kBfloat16 && problem.shape.head_size % 2 == 0;
  return table_of_current_isa<AttentionKernels>(has_pairs ? Isa::kAvx512Bf16 : Isa::kAvx512,
                                                problem.type);
}

// Runs `first`, which computes a gradient or sums of groups, and then `second`, which adds them.
Result run_in_groups(const Kernel<AttentionGroupedProblem>& first,
                     const Kernel<AttentionGroupedProblem>& second, int64_t bytes,
                     const AttentionGradientProblem& problem, const Execution& execution) {
  if (bytes == 0) return run_kernel(first, AttentionGroupedProblem{problem, nullptr}, execution);
  void* const sums = execution.allocator.allocate(bytes);
  if (!sums) return Result::kOutOfMemory;
  const AttentionGroupedProblem grouped{problem, sums};
  Result result = run_kernel(first, grouped, execution);
  if (result == Result::kOk) result = run_kernel(second, grouped, execution);
  execution.allocator.release(sums);
  return result;
}

}  // namespace

Result attention_forward(const AttentionForwardProblem& problem, const Execution& execution) {
  return run_kernel(kernels(problem).forward, problem, execution);
}

Kernel<AttentionForwardProblem> attention_forward_kernel(const AttentionProblem& problem) {
  return kernels(problem).forward;
}

Result attention_backward(const AttentionGradientProblem& problem, const Execution& execution) {
  const AttentionKernels table = kernels(problem);
  return run_in_groups(table.backward, table.key_gradients, table.backward_bytes(problem), problem,
                       execution);
}

Result attention_bias_gradient(const AttentionGradientProblem& problem,
                               const Execution& execution) {
  const AttentionKernels table = kernels(problem);
  return run_in_groups(table.bias_gradient, table.bias_sums, table.bias_bytes(problem), problem,
                       execution);
}

Result attention_taps(const AttentionTapsProblem& problem, const Execution& execution) {
  return run_kernel(kernels(problem).taps, problem, execution);
}

}  // namespace vit
