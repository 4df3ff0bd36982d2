// LayerNorm of rows, and the mean of rows.
#ifndef CUSTOM_OPS_CPU_ENCODER_LAYER_NORM_H_
#define CUSTOM_OPS_CPU_ENCODER_LAYER_NORM_H_

#include "custom_ops/cpu/encoder/encoder_kernels.h"
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
      const float mean = sum(from, width, [](Vector<float> x) { return x; }) / count;
      // The mean is subtracted first: the difference of two sums of squares would cancel.
      const auto square = [mean](Vector<float> x) { return (x - mean) * (x - mean); };
      const float variance = sum(from, width, square) / count;
      const float factor = 1 / __builtin_sqrtf(variance + problem.epsilon);
      for (int64_t j = 0; j < width; j += kLanes<float>) {
        Vector<float> x = (load_first(from + j, width - j) - mean) * factor;
        if (problem.scale) {
          x = x * load_first(problem.scale + j, width - j) +
              load_first(problem.bias + j, width - j);
        }
        store_first(to + j, x, width - j);
      }
    }
  }

  // The sum of function(x). Two sums at a time: an addition takes 4 cycles.
  template <class Function>
  static VIT_INLINE float sum(const float* from, int64_t width, Function function) {
    constexpr int64_t kLane = kLanes<float>;
    Vector<float> even = {}, odd = {};
    int64_t j = 0;
    for (; j + 2 * kLane <= width; j += 2 * kLane) {
      even += function(load(from + j));
      odd += function(load(from + j + kLane));
    }
    for (; j < width; j += kLane) {
      Vector<float> x = function(load_first(from + j, width - j));
      for (int64_t i = width - j; i < kLane; ++i) x[i] = 0;
      even += x;
    }
    return add_lanes<float>(even + odd);
  }
};

// A unit is a vector of columns of an image.
struct Mean {
  static int64_t vectors(const MeanProblem& problem) {
    return ceil_divide(problem.width, kLanes<float>);
  }

  static int64_t units(const MeanProblem& problem) { return problem.batch * vectors(problem); }

  static double unit_cycles(const MeanProblem& problem) {
    return static_cast<double>(problem.tokens) * 4;
  }

  static int64_t scratch_bytes(const MeanProblem&) { return 0; }

  static void run(const MeanProblem& problem, int64_t begin, int64_t end, void*) {
    const int64_t width = problem.width;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t image = unit / vectors(problem), j = unit % vectors(problem) * kLanes<float>;
      const float* from = problem.input + image * problem.tokens * width + j;
      Vector<float> sum = {};
      for (int64_t i = 0; i < problem.tokens; ++i, from += width)
        sum += load_first(from, width - j);
      store_first(problem.output + image * width + j, sum / static_cast<float>(problem.tokens),
                  width - j);
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ENCODER_LAYER_NORM_H_
