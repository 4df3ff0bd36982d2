// Compiled once for every instruction set, with -DVIT_ISA=<name>: see simd.h.
#include "custom_ops/cc/attention_isa.h"

#include "custom_ops/cc/attention_backward.h"
#include "custom_ops/cc/attention_forward.h"
#include "custom_ops/cc/attention_taps.h"

namespace vit {
namespace VIT_ISA {

namespace {

template <class Kernel>
AttentionWork work() {
  return {Kernel::units, Kernel::scratch_bytes, Kernel::run};
}

#if defined(__AVX512BF16__)
// Products of pairs where the head size is even, as it nearly always is.
template <class Pairs, class Numbers>
struct PairsIfEven {
  static bool even(const AttentionCall& call) { return call.shape.head_size % 2 == 0; }
  static int64_t units(const AttentionCall& call) { return Numbers::units(call); }
  static int64_t scratch_bytes(const AttentionCall& call) {
    return even(call) ? Pairs::scratch_bytes(call) : Numbers::scratch_bytes(call);
  }
  static void run(const AttentionCall& call, int64_t begin, int64_t end, void* scratch) {
    even(call) ? Pairs::run(call, begin, end, scratch) : Numbers::run(call, begin, end, scratch);
  }
};
#endif

template <class S>
AttentionKernels kernels() {
  return {work<Forward<S>>(), work<Backward<S>>(), work<BiasGradient<S>>(), work<Taps<S>>()};
}

}  // namespace

AttentionKernels attention_kernels(DType type) {
  switch (type) {
    case DType::kFloat64:
      return kernels<double>();
    case DType::kBfloat16:
#if defined(__AVX512BF16__)
      return {work<PairsIfEven<Forward<Bfloat16, Pair>, Forward<Bfloat16>>>(),
              work<PairsIfEven<Backward<Bfloat16, Pair>, Backward<Bfloat16>>>(),
              work<PairsIfEven<BiasGradient<Bfloat16, Pair>, BiasGradient<Bfloat16>>>(),
              work<PairsIfEven<Taps<Bfloat16, Pair>, Taps<Bfloat16>>>()};
#else
      return kernels<Bfloat16>();
#endif
    case DType::kFloat16:
      return kernels<Float16>();
    default:
      return kernels<float>();
  }
}

}  // namespace VIT_ISA
}  // namespace vit
