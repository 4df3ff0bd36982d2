// LayerNorm without scale and bias, of rows.
#ifndef CUSTOM_OPS_CPU_ENCODER_LAYER_NORM_H_
#define CUSTOM_OPS_CPU_ENCODER_LAYER_NORM_H_

#include <math.h>

#include "custom_ops/cpu/encoder/kernels.h"
#include "custom_ops/cpu/simd/conversions.h"

namespace vit {
namespace VIT_ISA {

// A unit is a row. Activation: elements of the output.
template <class Activation>
struct LayerNorm {
  static int64_t units(const LayerNormProblem& problem) { return problem.rows; }

  static double unit_cycles(const LayerNormProblem& problem) {
    return static_cast<double>(problem.width) / 4 + 50;
  }

  static int64_t scratch_bytes(const LayerNormProblem&) { return 0; }

  static void run(const LayerNormProblem& problem, int64_t begin, int64_t end, void*) {
    const int64_t width = problem.width;
    const float count = static_cast<float>(width);
    for (int64_t row = begin; row < end; ++row) {
      const float* from = problem.input + row * problem.input_stride;
      Activation* to = static_cast<Activation*>(problem.output) + row * problem.output_stride;
      Vector<float> sums[2] = {};
      each_vector(width, [&](int64_t j, int64_t left) {
        sums[j / kLanes<float> % 2] += load_first(from + j, left);
      });
      const float mean = add_lanes<float>(sums[0] + sums[1]) / count;
      // The mean is subtracted first: the difference of two sums of squares would cancel.
      sums[0] = sums[1] = Vector<float>{};
      each_vector(width, [&](int64_t j, int64_t left) {
        const Vector<float> x = clear_after(load_first(from + j, left) - mean, left);
        sums[j / kLanes<float> % 2] += x * x;
      });
      const float variance = add_lanes<float>(sums[0] + sums[1]) / count;
      const float factor = 1 / __builtin_sqrtf(variance + problem.epsilon);
      each_vector(width, [&](int64_t j, int64_t left) {
        store_first(to + j, (load_first(from + j, left) - mean) * factor, left);
      });
      // Products of pairs read rows of an odd width to the end of the last pair.
      if (sizeof(Activation) == 2 && width % 2) to[width] = Activation{};
    }
  }

  template <class Function>
  static VIT_INLINE void each_vector(int64_t width, Function function) {
    for (int64_t j = 0; j < width; j += kLanes<float>) function(j, width - j);
  }

  // The first `count` lanes; 0 in the others.
  static VIT_INLINE Vector<float> clear_after(Vector<float> x, int64_t count) {
    for (int64_t i = count; i < kLanes<float>; ++i) x[i] = 0;
    return x;
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ENCODER_LAYER_NORM_H_
