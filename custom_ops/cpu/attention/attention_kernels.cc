// Compiled once for every instruction set, with -DVIT_ISA=<name>: see simd/vectors.h.
#include "custom_ops/cpu/attention/attention_kernels.h"

#include "custom_ops/cpu/attention/backward.h"
#include "custom_ops/cpu/attention/bias_gradient.h"
#include "custom_ops/cpu/attention/forward.h"
#include "custom_ops/cpu/attention/taps.h"
#include "custom_ops/cpu/element_types.h"

namespace vit {
namespace VIT_ISA {

namespace {

// The elements of the products: Pairs where there are instructions for them.
template <class S>
using Elements =
#if defined(__AVX512BF16__)
    Pair;
#else
    Accumulator<S>;
#endif

template <class S>
struct Kernels {
  using E = Elements<S>;
  static AttentionKernels table() {
    return {Kernel<AttentionForwardProblem>::of<AttentionForward<S, E>>(),
            Kernel<AttentionGroupedProblem>::of<AttentionBackward<S, E>>(),
            Kernel<AttentionGroupedProblem>::of<AttentionKeyGradients<S, E>>(),
            Kernel<AttentionGroupedProblem>::of<AttentionBiasGradient<S, E>>(),
            Kernel<AttentionGroupedProblem>::of<AttentionBiasSums<S>>(),
            Kernel<AttentionTapsProblem>::of<AttentionTaps<S, E>>(),
            AttentionBackward<S, E>::group_bytes,
            AttentionBiasGradient<S, E>::group_bytes};
  }
};

}  // namespace

}  // namespace VIT_ISA

template <Isa isa>
AttentionKernels AttentionKernels::of(DType type) {
  return VIT_ISA::table_of_type<VIT_ISA::Kernels>(type);
}
#if !defined(__AMX_BF16__)  // no kernels with tiles
template AttentionKernels AttentionKernels::of<VIT_ISA::kIsa>(DType type);
#endif

}  // namespace vit
