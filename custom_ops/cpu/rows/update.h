// One update of weights by SGD with momentum or AdamW: cc/row_problems.h.
#ifndef CUSTOM_OPS_CPU_ROWS_UPDATE_H_
#define CUSTOM_OPS_CPU_ROWS_UPDATE_H_

#include "custom_ops/cpu/blocking.h"
#include "custom_ops/cpu/rows/row_kernels.h"
#include "custom_ops/cpu/simd/conversions.h"
#include "custom_ops/cpu/simd/math.h"

namespace vit {
namespace VIT_ISA {

// A unit is kUnit weights. M: elements of the momentum.
template <class M>
struct Update {
  static constexpr int64_t kUnit = 4096;

  static int64_t units(const UpdateProblem& problem) { return ceil_divide(problem.size, kUnit); }

  static double unit_cycles(const UpdateProblem&) { return 2 * kUnit; }

  static int64_t scratch_bytes(const UpdateProblem&) { return 0; }

  static void run(const UpdateProblem& problem, int64_t begin, int64_t end, void*) {
    const int64_t first = begin * kUnit;
    const int64_t last = end * kUnit < problem.size ? end * kUnit : problem.size;
    const M* momentum = static_cast<const M*>(problem.momentum);
    M* new_momentum = static_cast<M*>(problem.new_momentum);
    const float scale = problem.scalars[0], rate = problem.scalars[1];
    const float part_1 = problem.is_adamw ? 1 / problem.scalars[2] : 1;
    const float part_2 = problem.is_adamw ? 1 / problem.scalars[3] : 1;
    for (int64_t i = first; i < last; i += kLanes<float>) {
      const int64_t count = last - i;
      const Vector<float> weight = load_first(problem.weight + i, count);
      const Vector<float> gradient = load_first(problem.gradient + i, count) * scale;
      const Vector<float> m =
          problem.beta_1 * load_first(momentum + i, count) + problem.rest_1 * gradient;
      store_first(new_momentum + i, m, count);
      Vector<float> direction = m;
      if (problem.is_adamw) {
        const Vector<float> v = problem.beta_2 * load_first(problem.variance + i, count) +
                                problem.rest_2 * (gradient * gradient);
        store_first(problem.new_variance + i, v, count);
        direction = m * part_1 / (square_root(v * part_2) + problem.epsilon);
      }
      direction += problem.decay * weight;
      store_first(problem.new_weight + i, weight - rate * direction, count);
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ROWS_UPDATE_H_
