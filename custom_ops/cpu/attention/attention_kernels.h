// The attention kernels of one instruction set.
#ifndef CUSTOM_OPS_CPU_ATTENTION_ATTENTION_KERNELS_H_
#define CUSTOM_OPS_CPU_ATTENTION_ATTENTION_KERNELS_H_

#include "custom_ops/cc/attention_problem.h"
#include "custom_ops/cpu/isa.h"
#include "custom_ops/cpu/kernel.h"

namespace vit {

// Where a kernel writes the sums of the groups that a gradient is split into, so that there are
// units for many threads. Another kernel adds them, always in the same order. Null without groups:
// the first kernel then writes the gradient.
struct AttentionBackwardProblem : AttentionGradientProblem {
  void* group_sums;
};
struct AttentionBiasProblem : AttentionGradientProblem {
  void* group_sums;
};

// The kernels of a type. With AVX-512 BF16 they multiply pairs of bfloat16, so the head size must
// be even.
struct AttentionKernels {
  Kernel<AttentionForwardProblem> forward;
  Kernel<AttentionBackwardProblem> backward, key_gradients;
  Kernel<AttentionBiasProblem> bias_gradient, bias_sums;
  Kernel<AttentionTapsProblem> taps;
  // Bytes of group_sums; 0 without groups.
  int64_t (*backward_bytes)(const AttentionGradientProblem& problem);
  int64_t (*bias_bytes)(const AttentionGradientProblem& problem);

  static constexpr Isa kMost = Isa::kAvx512Bf16;
  template <Isa isa>
  static AttentionKernels of(DType type);
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ATTENTION_ATTENTION_KERNELS_H_
