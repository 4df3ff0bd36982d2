// The attention kernels of one instruction set.
#ifndef CUSTOM_OPS_CPU_ATTENTION_ATTENTION_KERNELS_H_
#define CUSTOM_OPS_CPU_ATTENTION_ATTENTION_KERNELS_H_

#include "custom_ops/cc/attention_problem.h"
#include "custom_ops/cpu/isa.h"
#include "custom_ops/cpu/kernel.h"

namespace vit {

// A gradient that is split into groups, so that there are units for many threads.
struct AttentionGroupedProblem : AttentionGradientProblem {
  // Where a kernel writes the sums of the groups. Another kernel adds them, always in the same
  // order. Null without groups: the first kernel then writes the gradient.
  void* group_sums;
};

// The kernels of a type. With AVX-512 BF16 they multiply pairs of bfloat16, so the head size must
// be even.
struct AttentionKernels {
  Kernel<AttentionForwardProblem> forward;
  Kernel<AttentionGroupedProblem> backward, key_gradients, bias_gradient, bias_sums;
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
