#include "custom_ops/cpu/attention/attention.h"

#include "custom_ops/cpu/attention/kernels.h"
#include "custom_ops/cpu/dispatch.h"

namespace vit {

namespace {

AttentionKernels kernels(const AttentionProblem& problem) {
  return table_of_current_isa<AttentionKernels>(problem.type);
}

}  // namespace

Result attention_forward(const AttentionForwardProblem& problem, const Execution& execution) {
  return run_kernel(kernels(problem).forward, problem, execution);
}

Result attention_backward(const AttentionGradientProblem& problem, const Execution& execution) {
  return run_kernel(kernels(problem).backward, problem, execution);
}

Result attention_bias_gradient(const AttentionGradientProblem& problem,
                               const Execution& execution) {
  return run_kernel(kernels(problem).bias_gradient, problem, execution);
}

Result attention_taps(const AttentionTapsProblem& problem, const Execution& execution) {
  return run_kernel(kernels(problem).taps, problem, execution);
}

int64_t attention_forward_scratch(const AttentionForwardProblem& problem) {
  return kernels(problem).forward.scratch_bytes(problem);
}

}  // namespace vit
