// The kernels on rows of one instruction set.
#ifndef CUSTOM_OPS_CPU_ROWS_ROW_KERNELS_H_
#define CUSTOM_OPS_CPU_ROWS_ROW_KERNELS_H_

#include "custom_ops/cc/row_problems.h"
#include "custom_ops/cpu/isa.h"
#include "custom_ops/cpu/kernel.h"

namespace vit {

// With the sums of columns of each group of rows: groups.h.
template <class Problem>
struct WithSums : Problem {
  float* sums;
};

// out = the sums of all groups; `stride` floats lie between those of two groups.
struct ColumnSumsProblem {
  int64_t rows, width, stride;
  const float* sums;
  void* out;
};

struct RowKernels {
  Kernel<BiasGeluProblem> bias_gelu;
  Kernel<WithSums<BiasGeluGradientProblem>> bias_gelu_gradient;
  Kernel<ResidualNormProblem> residual_norm;
  Kernel<WithSums<ResidualNormGradientProblem>> residual_norm_gradient;
  Kernel<ColumnSumsProblem> column_sums, float_column_sums;

  static constexpr Isa kMost = Isa::kAvx512;
  template <Isa isa>
  static RowKernels of(DType type);
};

struct UpdateKernels {
  Kernel<UpdateProblem> update;

  static constexpr Isa kMost = Isa::kAvx512;
  template <Isa isa>
  static UpdateKernels of(DType momentum_type);
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ROWS_ROW_KERNELS_H_
