// Bias and GELU: cc/row_problems.h.
#ifndef CUSTOM_OPS_CPU_ROWS_BIAS_GELU_H_
#define CUSTOM_OPS_CPU_ROWS_BIAS_GELU_H_

#include "custom_ops/cpu/rows/groups.h"
#include "custom_ops/cpu/simd/activations.h"

namespace vit {
namespace VIT_ISA {

// A unit is a group of rows, in the gradient too.
template <class S>
struct BiasGelu {
  static int64_t units(const BiasGeluProblem& problem) { return row_groups(problem.rows).count; }

  static double unit_cycles(const BiasGeluProblem& problem) {
    const Blocking groups = row_groups(problem.rows);
    return 2 * static_cast<double>(groups.size(0)) * static_cast<double>(problem.width) + 100;
  }

  static int64_t scratch_bytes(const BiasGeluProblem&) { return 0; }

  static void run(const BiasGeluProblem& problem, int64_t begin, int64_t end, void*) {
    if (problem.is_exact) {
      run_as(problem, begin, end, [](Vector<float> x) { return gelu_erf(x); });
    } else {
      run_as(problem, begin, end, [](Vector<float> x) { return gelu_tanh(x); });
    }
  }

 private:
  template <class Activation>
  VIT_INLINE static void run_as(const BiasGeluProblem& problem, int64_t begin, int64_t end,
                                const Activation& activation) {
    const int64_t width = problem.width;
    const S* const bias = static_cast<const S*>(problem.bias);
    for_rows(problem.rows, width, 0, nullptr, begin, end, [&](int64_t row, float*) {
      const S* x = static_cast<const S*>(problem.x) + row * width;
      S* out = static_cast<S*>(problem.out) + row * width;
      for (int64_t j = 0; j < width; j += kLanes<float>) {
        const int64_t count = width - j;
        store_first(out + j, activation(load_first(x + j, count) + load_first(bias + j, count)),
                    count);
      }
    });
  }
};

template <class S>
struct BiasGeluGradient {
  using Problem = WithSums<BiasGeluGradientProblem>;

  static int64_t units(const Problem& problem) { return BiasGelu<S>::units(problem); }

  static double unit_cycles(const Problem& problem) {
    return 2 * BiasGelu<S>::unit_cycles(problem);
  }

  static int64_t scratch_bytes(const Problem&) { return 0; }

  static void run(const Problem& problem, int64_t begin, int64_t end, void*) {
    if (problem.is_exact) {
      run_as(problem, begin, end, [](Vector<float> x) { return gelu_erf_slope(x); });
    } else {
      run_as(problem, begin, end, [](Vector<float> x) { return gelu_tanh_slope(x); });
    }
  }

 private:
  template <class Slope>
  VIT_INLINE static void run_as(const Problem& problem, int64_t begin, int64_t end,
                                const Slope& slope) {
    const int64_t width = problem.width;
    const S* const bias = static_cast<const S*>(problem.bias);
    const auto compute = [&](int64_t row, float* sums) {
      const S* x = static_cast<const S*>(problem.x) + row * width;
      const S* d_out = static_cast<const S*>(problem.d_out) + row * width;
      S* d_x = static_cast<S*>(problem.d_x) + row * width;
      for (int64_t j = 0; j < width; j += kLanes<float>) {
        const int64_t count = width - j;
        const Vector<float> d = load_first(d_out + j, count) *
                                slope(load_first(x + j, count) + load_first(bias + j, count));
        store_first(d_x + j, d, count);
        store(sums + j, load(sums + j) + d);
      }
    };
    for_rows(problem.rows, width, 1, problem.sums, begin, end, compute);
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ROWS_BIAS_GELU_H_
