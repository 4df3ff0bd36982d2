// What a training step computes between its matrix products, and its update of the weights.
// custom_ops/reference.py defines the same in TensorFlow. Types are float32, bfloat16 and
// float16; sums are float32.
#ifndef CUSTOM_OPS_CC_ROW_PROBLEMS_H_
#define CUSTOM_OPS_CC_ROW_PROBLEMS_H_

#include "custom_ops/cc/dtype.h"
#include "custom_ops/cc/execution.h"

namespace vit {

// out = gelu(x + bias).
struct BiasGeluProblem {
  DType type;
  bool is_exact;  // x times the normal distribution function, else the tanh form
  int64_t rows, width;
  const void* x;     // [rows, width]
  const void* bias;  // [width]
  void* out;         // [rows, width]
};

// d_x = d_out gelu'(x + bias), and d_bias is the sum of its rows.
struct BiasGeluGradientProblem : BiasGeluProblem {
  const void* d_out;  // [rows, width]
  void* d_x;          // [rows, width]
  void* d_bias;       // [width]
};

// sum = x + branch, rounded to `type`; statistics = mean | 1 / sqrt(variance + epsilon) of its
// rows; normalized = (sum - mean) / sqrt(variance + epsilon) * scale + bias. Without a branch
// (null) x is the sum.
struct ResidualNormProblem {
  DType type;
  int64_t rows, width;
  float epsilon;
  const void* x;       // [rows, width]
  const void* branch;  // [rows, width] or null
  const float* scale;  // [width]
  const float* bias;   // [width]
  void* sum;           // [rows, width], null without a branch
  void* normalized;    // [rows, width]
  float* statistics;   // [rows, 2]
};

// The gradients of x (that of the branch is the same), scale and bias; x is the sum.
struct ResidualNormGradientProblem {
  DType type;
  int64_t rows, width;
  const void* x;              // [rows, width]
  const float* statistics;    // [rows, 2]
  const float* scale;         // [width]
  const void* d_normalized;   // [rows, width]
  const void* d_sum;          // [rows, width] or null
  void* d_x;                  // [rows, width]
  float *d_scale, *d_bias;    // [width]
};

// An update of `size` weights; g is gradient_scale times the gradient.
//   SGD:   m = momentum m + g;                  weight -= rate (m + decay weight)
//   AdamW: m = beta_1 m + (1 - beta_1) g;       v = beta_2 v + (1 - beta_2) g g
//          weight -= rate (m / correction_1 / (sqrt(v / correction_2) + epsilon) + decay weight)
struct UpdateProblem {
  DType momentum_type;  // float32 or bfloat16
  bool is_adamw;
  int64_t size;
  const float *weight, *gradient, *variance;  // [size]; the variance only of AdamW
  const void* momentum;                       // [size]
  // gradient_scale, rate, and of AdamW correction_1, correction_2
  const float* scalars;
  float beta_1, rest_1, beta_2, rest_2, epsilon, decay;  // rest = 1 - beta; of SGD rest_1 = 1
  float *new_weight, *new_variance;
  void* new_momentum;
};

// On the CPU: cpu/rows/cpu_rows.cc.
Result bias_gelu(const BiasGeluProblem& problem, const Execution& execution);
Result bias_gelu_gradient(const BiasGeluGradientProblem& problem, const Execution& execution);
Result residual_norm(const ResidualNormProblem& problem, const Execution& execution);
Result residual_norm_gradient(const ResidualNormGradientProblem& problem,
                              const Execution& execution);
Result update(const UpdateProblem& problem, const Execution& execution);

}  // namespace vit

#endif  // CUSTOM_OPS_CC_ROW_PROBLEMS_H_
