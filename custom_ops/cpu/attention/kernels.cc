// Compiled once for every instruction set, with -DVIT_ISA=<name>: see simd/vectors.h.
#include "custom_ops/cpu/attention/kernels.h"

#include "custom_ops/cpu/attention/backward.h"
#include "custom_ops/cpu/attention/bias_gradient.h"
#include "custom_ops/cpu/attention/forward.h"
#include "custom_ops/cpu/attention/taps.h"
#include "custom_ops/cpu/element_types.h"

namespace vit {
namespace VIT_ISA {

namespace {

template <class S>
struct Kernels {
  static AttentionKernels table() {
    return {Kernel<AttentionForwardProblem>::of<AttentionForward<S>>(),
            Kernel<AttentionGradientProblem>::of<AttentionBackward<S>>(),
            Kernel<AttentionGradientProblem>::of<AttentionBiasGradient<S>>(),
            Kernel<AttentionTapsProblem>::of<AttentionTaps<S>>()};
  }
};

#if defined(__AVX512BF16__)
// Multiplies Pairs if the head size is even, as it nearly always is.
template <template <class S, class E> class Implementation, class Problem>
struct PairsIfEven {
  using Pairs = Implementation<Bfloat16, Pair>;
  using Numbers = Implementation<Bfloat16, float>;

  static bool even(const Problem& problem) { return problem.shape.head_size % 2 == 0; }
  static int64_t units(const Problem& problem) { return Numbers::units(problem); }
  static double unit_cycles(const Problem& problem) { return Numbers::unit_cycles(problem); }
  static int64_t scratch_bytes(const Problem& problem) {
    return even(problem) ? Pairs::scratch_bytes(problem) : Numbers::scratch_bytes(problem);
  }
  static void run(const Problem& problem, int64_t begin, int64_t end, void* scratch) {
    even(problem) ? Pairs::run(problem, begin, end, scratch)
                  : Numbers::run(problem, begin, end, scratch);
  }
};

template <>
struct Kernels<Bfloat16> {
  template <template <class S, class E> class Implementation, class Problem>
  static Kernel<Problem> kernel() {
    return Kernel<Problem>::template of<PairsIfEven<Implementation, Problem>>();
  }
  static AttentionKernels table() {
    return {kernel<AttentionForward, AttentionForwardProblem>(),
            kernel<AttentionBackward, AttentionGradientProblem>(),
            kernel<AttentionBiasGradient, AttentionGradientProblem>(),
            kernel<AttentionTaps, AttentionTapsProblem>()};
  }
};
#endif

}  // namespace

}  // namespace VIT_ISA

template <Isa isa>
AttentionKernels AttentionKernels::of(DType type) {
  return VIT_ISA::table_of_type<VIT_ISA::Kernels>(type);
}
template AttentionKernels AttentionKernels::of<VIT_ISA::kIsa>(DType type);

}  // namespace vit
