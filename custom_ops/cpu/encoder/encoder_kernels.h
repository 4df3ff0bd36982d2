// The kernels of the encoder for one instruction set.
#ifndef CUSTOM_OPS_CPU_ENCODER_ENCODER_KERNELS_H_
#define CUSTOM_OPS_CPU_ENCODER_ENCODER_KERNELS_H_

#include "custom_ops/cc/attention_problem.h"
#include "custom_ops/cc/dtype.h"
#include "custom_ops/cc/encoder_problem.h"
#include "custom_ops/cpu/gemm/dense.h"
#include "custom_ops/cpu/isa.h"
#include "custom_ops/cpu/kernel.h"

namespace vit {

// The matrix of patches as rows of activations, and the prefix tokens, plus their positions, of
// each image in the residual stream.
struct PatchRowsProblem {
  const EncoderImages& images;
  void* rows;          // [batch * patches, patch elements]
  int64_t row_stride;  // elements between rows: at least 32 more than the elements
  float* stream;       // [batch, tokens, width]
};

// output = (input - mean) / sqrt(variance + epsilon), row by row, as activations. Strides count
// elements between rows.
struct LayerNormProblem {
  int64_t rows, width;
  float epsilon;
  const float* input;
  int64_t input_stride;
  void* output;
  int64_t output_stride;
  const float *scale, *bias;  // of the output; null: none
};

// output [batch, width] = the mean over the tokens of input [batch, tokens, width].
struct MeanProblem {
  int64_t batch, tokens, width;
  const float* input;
  float* output;
};

// out [batch, heads * head_size] = attention of token 0 of each image over qkv [batch, tokens, 3,
// heads, head_size]; both are activations.
struct FirstRowProblem {
  int64_t batch, tokens, heads, head_size;
  double scale;
  const void* qkv;
  void* out;
};

// The heads [begin, end) of each row of queries and keys, transformed in place. Rows lie `stride`
// activations apart.
struct HeadRowsProblem {
  HeadTransform transform;
  int64_t rows, begin, end;
  void* qkv;
  int64_t stride;
};

// The kernels for a type of packed weights.
struct EncoderKernels {
  // The type of activations: the inputs of products, q, k and v.
  DType activation;
  Kernel<PatchRowsProblem> patch_rows;
  Kernel<LayerNormProblem> layer_norm;
  Kernel<DenseProblem> dense;
  Kernel<HeadRowsProblem> head_rows;
  Kernel<FirstRowProblem> first_row;
  Kernel<MeanProblem> mean;
  // Attention of all tokens. The table of an instruction set may have none (`run` is null) or one
  // for even head sizes; then encoder_kernels puts attention_forward_kernel here.
  Kernel<AttentionForwardProblem> attention;

  static constexpr Isa kMost = Isa::kAmx;
  template <Isa isa>
  static EncoderKernels of(DType type);
};

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ENCODER_ENCODER_KERNELS_H_
