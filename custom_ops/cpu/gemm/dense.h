// A dense layer over packed weights, with the operation that follows it.
#ifndef CUSTOM_OPS_CPU_GEMM_DENSE_H_
#define CUSTOM_OPS_CPU_GEMM_DENSE_H_

#include <stdint.h>

namespace vit {

// What is done with a sum before it is written.
enum class Epilogue : int {
  kBias,      // output = sum + bias
  kFloat,     // the same, in float
  kGeluTanh,  // output = GELU(sum + bias), in the tanh form
  kGeluErf,   // the same, exact
  kResidual,  // output = residual + sum + bias, in float
};

// output[row, column] for the columns from kPanelColumns * first_panel on. cc/encoder_problem.h
// describes the weights; inputs and outputs are activations of the kernels (EncoderKernels), but
// the outputs of kFloat and kResidual are float.
struct DenseProblem {
  int64_t threads;  // that may take units
  int64_t rows, depth, columns, first_panel;
  const void* weights;
  int64_t panel_size;  // elements from one panel to the next
  const float* bias;   // [columns], or null
  const void* input;  // [rows, depth]
  int64_t input_stride;  // elements between rows
  void* output;
  int64_t output_stride;
  Epilogue epilogue;
  // Of kResidual only; it may be the output.
  const float* residual;
  int64_t residual_stride;
  // After every `period` rows, so many elements more lie between rows of the output and the
  // residual.
  int64_t period = INT64_MAX, output_gap = 0, residual_gap = 0;
  // What is read after this layer, which is prefetched; null: none.
  const void* next_panel;
  int64_t next_panel_bytes;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_GEMM_DENSE_H_
