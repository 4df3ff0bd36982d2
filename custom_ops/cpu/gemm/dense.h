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
  kSwiglu,    // output = silu(gate) * up, both sum + bias, in panels of 32 columns of each
  kHeads,     // output = heads of sum + bias, transformed
  kResidual,  // output = residual + sum + bias, in float
};

// What happens to each head of queries and keys before attention: LayerNorm with scale and bias,
// and then rotary positions (Su et al., 2021), with n = head_size / 2:
//
//   x'[i] = x[i] cos[i] - x[i + n] sin[i]
//   x'[i + n] = x[i + n] cos[i] + x[i] sin[i]
//
// A row of the projection has the queries of `heads` heads, and then as many keys.
struct HeadTransform {
  int64_t heads, head_size;
  int64_t tokens;         // row i of the projection has token i % tokens
  int64_t first_rotated;  // the tokens before it keep their direction
  float epsilon;
  const float* norm;  // [4, head_size]: scale, bias of queries; scale, bias of keys; null: none
  const float* rotary;  // [tokens - first_rotated, 2, head_size / 2]: cosines, sines; null: none
};

// output[row, column] for the columns from kPanelColumns * first_panel on, or of kSwiglu from half
// of that on. cc/encoder_problem.h describes the weights; inputs and outputs are activations of the
// kernels (EncoderKernels), but the outputs of kFloat and kResidual are float.
struct DenseProblem {
  int64_t threads;  // that may take units
  int64_t rows, depth, columns, first_panel;
  const void* weights;
  int64_t panel_size;  // elements from one panel to the next
  const float* bias;  // [columns], or null
  const void* input;  // [rows, depth]
  int64_t input_stride;  // elements between rows
  void* output;
  int64_t output_stride;
  Epilogue epilogue;
  // Of kResidual only; it may be the output.
  const float* residual;
  int64_t residual_stride;
  // Of kHeads only. A panel has whole heads.
  HeadTransform heads;
  // After every `period` rows, so many elements more lie between rows of the output and the
  // residual.
  int64_t period = INT64_MAX, output_gap = 0, residual_gap = 0;
  // What is read after this layer, which is prefetched; null: none.
  const void* next_panel;
  int64_t next_panel_bytes;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_GEMM_DENSE_H_
