// Compiled once for every instruction set, with -DVIT_ISA=<name>: see simd/vectors.h.
#include "custom_ops/cpu/rows/row_kernels.h"

#include "custom_ops/cpu/rows/bias_gelu.h"
#include "custom_ops/cpu/rows/residual_norm.h"
#include "custom_ops/cpu/rows/update.h"

namespace vit {
namespace VIT_ISA {

namespace {

template <class S>
RowKernels row_kernels() {
  return {Kernel<BiasGeluProblem>::of<BiasGelu<S>>(),
          Kernel<WithSums<BiasGeluGradientProblem>>::of<BiasGeluGradient<S>>(),
          Kernel<ResidualNormProblem>::of<ResidualNorm<S>>(),
          Kernel<WithSums<ResidualNormGradientProblem>>::of<ResidualNormGradient<S>>(),
          Kernel<ColumnSumsProblem>::of<ColumnSums<S>>(),
          Kernel<ColumnSumsProblem>::of<ColumnSums<float>>()};
}

}  // namespace

}  // namespace VIT_ISA

#if !defined(__AVX512BF16__)  // its instructions for bfloat16 are products
template <Isa isa>
RowKernels RowKernels::of(DType type) {
  switch (type) {
    case DType::kBfloat16:
      return VIT_ISA::row_kernels<VIT_ISA::Bfloat16>();
    case DType::kFloat16:
      return VIT_ISA::row_kernels<VIT_ISA::Float16>();
    case DType::kFloat32:
      return VIT_ISA::row_kernels<float>();
    default:
      __builtin_trap();
  }
}
template RowKernels RowKernels::of<VIT_ISA::kIsa>(DType type);

template <Isa isa>
UpdateKernels UpdateKernels::of(DType momentum_type) {
  if (momentum_type == DType::kBfloat16) {
    return {Kernel<UpdateProblem>::of<VIT_ISA::Update<VIT_ISA::Bfloat16>>()};
  }
  return {Kernel<UpdateProblem>::of<VIT_ISA::Update<float>>()};
}
template UpdateKernels UpdateKernels::of<VIT_ISA::kIsa>(DType momentum_type);
#endif

}  // namespace vit
