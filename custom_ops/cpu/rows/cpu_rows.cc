#include "custom_ops/cc/row_problems.h"
#include "custom_ops/cpu/dispatch.h"
#include "custom_ops/cpu/rows/groups.h"

namespace vit {

namespace {

RowKernels kernels(DType type) { return table_of_current_isa<RowKernels>(Isa::kAvx512, type); }

// Runs the kernel of a gradient, which sums the columns of `arrays` arrays in groups of rows, and
// then, for each array, `add(its sums)`.
template <class Problem, class Add>
Result run_with_sums(const Kernel<WithSums<Problem>>& kernel, const Problem& problem,
                     int64_t arrays, const Execution& execution, const Add& add) {
  const int64_t stride = VIT_ISA::sums_stride(problem.width);
  const int64_t groups = VIT_ISA::row_groups(problem.rows).count;
  const int64_t bytes = groups * arrays * stride * static_cast<int64_t>(sizeof(float));
  void* const memory = bytes ? execution.allocator.allocate(bytes) : nullptr;
  if (bytes && !memory) return Result::kOutOfMemory;
  float* const sums = static_cast<float*>(memory);
  Result result = run_kernel(kernel, WithSums<Problem>{problem, sums}, execution);
  for (int64_t i = 0; i < arrays && result == Result::kOk; ++i) {
    const int64_t between = arrays * stride;
    result =
        add(i, ColumnSumsProblem{problem.rows, problem.width, between, sums + i * stride, nullptr});
  }
  if (memory) execution.allocator.release(memory);
  return result;
}

}  // namespace

Result bias_gelu(const BiasGeluProblem& problem, const Execution& execution) {
  return run_kernel(kernels(problem.type).bias_gelu, problem, execution);
}

Result bias_gelu_gradient(const BiasGeluGradientProblem& problem, const Execution& execution) {
  const RowKernels table = kernels(problem.type);
  return run_with_sums(table.bias_gelu_gradient, problem, 1, execution,
                       [&](int64_t, ColumnSumsProblem sums) {
                         sums.out = problem.d_bias;
                         return run_kernel(table.column_sums, sums, execution);
                       });
}

Result residual_norm(const ResidualNormProblem& problem, const Execution& execution) {
  return run_kernel(kernels(problem.type).residual_norm, problem, execution);
}

Result residual_norm_gradient(const ResidualNormGradientProblem& problem,
                              const Execution& execution) {
  const RowKernels table = kernels(problem.type);
  return run_with_sums(table.residual_norm_gradient, problem, 2, execution,
                       [&](int64_t array, ColumnSumsProblem sums) {
                         sums.out = array ? problem.d_bias : problem.d_scale;
                         return run_kernel(table.float_column_sums, sums, execution);
                       });
}

Result update(const UpdateProblem& problem, const Execution& execution) {
  const UpdateKernels table =
      table_of_current_isa<UpdateKernels>(Isa::kAvx512, problem.momentum_type);
  return run_kernel(table.update, problem, execution);
}

}  // namespace vit
