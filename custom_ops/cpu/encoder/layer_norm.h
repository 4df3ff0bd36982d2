// LayerNorm of rows, and the mean of rows.
#ifndef CUSTOM_OPS_CPU_ENCODER_LAYER_NORM_H_
#define CUSTOM_OPS_CPU_ENCODER_LAYER_NORM_H_

#include "custom_ops/cpu/encoder/encoder_kernels.h"
#include "custom_ops/cpu/normalize.h"

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
    for (int64_t row = begin; row < end; ++row) {
      normalize_row(problem.input + row * problem.input_stride, problem.width, problem.epsilon,
                    problem.scale, problem.bias,
                    static_cast<Activation*>(problem.output) + row * problem.output_stride);
    }
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
