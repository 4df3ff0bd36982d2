// LayerNorm after a residual addition: cc/row_problems.h.
#ifndef CUSTOM_OPS_CPU_ROWS_RESIDUAL_NORM_H_
#define CUSTOM_OPS_CPU_ROWS_RESIDUAL_NORM_H_

#include "custom_ops/cpu/normalize.h"
#include "custom_ops/cpu/rows/groups.h"
#include "custom_ops/cpu/scratch.h"

namespace vit {
namespace VIT_ISA {

// A unit is a group of rows, in the gradient too.
template <class S>
struct ResidualNorm {
  static int64_t units(const ResidualNormProblem& problem) {
    return row_groups(problem.rows).count;
  }

  static double unit_cycles(const ResidualNormProblem& problem) {
    const Blocking groups = row_groups(problem.rows);
    return static_cast<double>(groups.size(0)) * static_cast<double>(problem.width) + 100;
  }

  static int64_t scratch_bytes(const ResidualNormProblem& problem) {
    return Scratch::bytes<float>(problem.width);
  }

  static void run(const ResidualNormProblem& problem, int64_t begin, int64_t end, void* memory) {
    const int64_t width = problem.width;
    float* const sum_row = Scratch(memory).take<float>(width);
    for_rows(problem.rows, width, 0, nullptr, begin, end, [&](int64_t row, float*) {
      const S* x = static_cast<const S*>(problem.x) + row * width;
      if (problem.branch) {
        // What is normalized is the sum as it is stored, rounded.
        const S* branch = static_cast<const S*>(problem.branch) + row * width;
        S* sum = static_cast<S*>(problem.sum) + row * width;
        for (int64_t j = 0; j < width; j += kLanes<float>) {
          const int64_t count = width - j;
          store_first(sum + j, load_first(x + j, count) + load_first(branch + j, count), count);
        }
        x = sum;
      }
      for (int64_t j = 0; j < width; j += kLanes<float>) {
        store_first(sum_row + j, load_first(x + j, width - j), width - j);
      }
      const RowStatistics found =
          normalize_row(sum_row, width, problem.epsilon, problem.scale, problem.bias,
                        static_cast<S*>(problem.normalized) + row * width);
      problem.statistics[2 * row] = found.mean;
      problem.statistics[2 * row + 1] = found.factor;
    });
  }
};

// With n = (x - mean) factor and g = d_normalized scale: d_x = factor (g - mean(g) - n mean(g n))
// + d_sum. d_scale is the sum of d_normalized n, d_bias that of d_normalized.
template <class S>
struct ResidualNormGradient {
  using Problem = WithSums<ResidualNormGradientProblem>;

  static int64_t units(const Problem& problem) { return row_groups(problem.rows).count; }

  static double unit_cycles(const Problem& problem) {
    const Blocking groups = row_groups(problem.rows);
    return 2 * static_cast<double>(groups.size(0)) * static_cast<double>(problem.width) + 100;
  }

  static int64_t scratch_bytes(const Problem& problem) {
    return 2 * Scratch::bytes<float>(round_up(problem.width, kLanes<float>));
  }

  static void run(const Problem& problem, int64_t begin, int64_t end, void* memory) {
    const int64_t width = problem.width;
    Scratch scratch(memory);
    float* const normalized = scratch.take<float>(round_up(width, kLanes<float>));
    float* const pulls = scratch.take<float>(round_up(width, kLanes<float>));
    const float share = 1 / static_cast<float>(width);
    const auto compute = [&](int64_t row, float* d_scale) {
      const S* x = static_cast<const S*>(problem.x) + row * width;
      const S* d_normalized = static_cast<const S*>(problem.d_normalized) + row * width;
      const S* d_sum = problem.d_sum ? static_cast<const S*>(problem.d_sum) + row * width : nullptr;
      S* d_x = static_cast<S*>(problem.d_x) + row * width;
      float* const d_bias = d_scale + sums_stride(width);
      const float mean = problem.statistics[2 * row], factor = problem.statistics[2 * row + 1];
      Vector<float> pull_sum = {}, product_sum = {};
      for (int64_t j = 0; j < width; j += kLanes<float>) {
        const int64_t count = width - j;
        const Vector<float> d = load_first(d_normalized + j, count);
        const Vector<float> n = (load_first(x + j, count) - mean) * factor;
        const Vector<float> pull = d * load_first(problem.scale + j, count);
        // Lanes beyond the row have a d of 0.
        store(d_scale + j, load(d_scale + j) + d * n);
        store(d_bias + j, load(d_bias + j) + d);
        store(normalized + j, n);
        store(pulls + j, pull);
        pull_sum += pull;
        product_sum += pull * n;
      }
      const float pull_mean = add_lanes<float>(pull_sum) * share;
      const float product_mean = add_lanes<float>(product_sum) * share;
      for (int64_t j = 0; j < width; j += kLanes<float>) {
        const int64_t count = width - j;
        Vector<float> d =
            factor * (load(pulls + j) - pull_mean - load(normalized + j) * product_mean);
        if (d_sum) d += load_first(d_sum + j, count);
        store_first(d_x + j, d, count);
      }
    };
    for_rows(problem.rows, width, 2, problem.sums, begin, end, compute);
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ROWS_RESIDUAL_NORM_H_
