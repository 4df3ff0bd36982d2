// Attention on the CPU: cc/attention_problem.h defines the problems. All functions are
// deterministic: results have the same bits for any number of threads.
#ifndef CUSTOM_OPS_CPU_ATTENTION_CPU_ATTENTION_H_
#define CUSTOM_OPS_CPU_ATTENTION_CPU_ATTENTION_H_

#include "custom_ops/cc/attention_problem.h"
#include "custom_ops/cc/execution.h"
#include "custom_ops/cpu/kernel.h"

namespace vit {

Result attention_forward(const AttentionForwardProblem& problem, const Execution& execution);
// The same as one of several kernels that run together.
Kernel<AttentionForwardProblem> attention_forward_kernel(const AttentionProblem& problem);

// Writes d_qkv.
Result attention_backward(const AttentionGradientProblem& problem, const Execution& execution);

// Writes d_bias.
Result attention_bias_gradient(const AttentionGradientProblem& problem, const Execution& execution);

Result attention_taps(const AttentionTapsProblem& problem, const Execution& execution);

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ATTENTION_CPU_ATTENTION_H_
