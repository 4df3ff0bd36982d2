// The attention kernels of one instruction set.
#ifndef CUSTOM_OPS_CPU_ATTENTION_KERNELS_H_
#define CUSTOM_OPS_CPU_ATTENTION_KERNELS_H_

#include "custom_ops/cc/attention.h"
#include "custom_ops/cpu/isa.h"
#include "custom_ops/cpu/kernel.h"

namespace vit {

struct AttentionKernels {
  Kernel<AttentionForwardProblem> forward;
  Kernel<AttentionGradientProblem> backward, bias_gradient;
  Kernel<AttentionTapsProblem> taps;

  template <Isa isa>
  static AttentionKernels of(DType type);
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ATTENTION_KERNELS_H_
