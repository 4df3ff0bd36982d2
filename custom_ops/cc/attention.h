// Multi-head attention over a packed projection, forward and backward, without any buffer of
// tokens x tokens (Dosovitskiy et al., 2021, appendix A; Dao et al., 2022, for the running softmax).
//
// A tensor has `batch * lines * tokens` positions of `3 * heads * head_size` elements: q | k | v,
// each [heads, head_size]. Attention goes along the tokens of a line. Strides say where positions
// lie, so that rows and columns of a grid need no transpose. All tensors are dense; no alignment is
// assumed. Everything is deterministic: the same bits for any number of threads.
#ifndef CUSTOM_OPS_CC_ATTENTION_H_
#define CUSTOM_OPS_CC_ATTENTION_H_

#include "custom_ops/cc/kernel.h"

namespace vit {

struct AttentionShape {
  int64_t batch, lines, tokens, heads, head_size;
  // Distance in positions between consecutive batch elements, lines, and tokens of a line.
  int64_t batch_stride, line_stride, token_stride;
};

// Positions [batch, tokens].
AttentionShape sequence_shape(int64_t batch, int64_t tokens, int64_t heads, int64_t head_size);

// Positions [batch, rows, columns]; axis 1 attends within columns, axis 2 within rows.
AttentionShape grid_shape(int64_t batch, int64_t rows, int64_t columns, int64_t heads,
                          int64_t head_size, int axis);

// Added to the scaled logits. float, or double with kFloat64. Strides count elements and are 0 along
// what the bias is broadcast over. A row that is -inf for all keys has zero output and gradients.
struct AttentionBias {
  const void* data;  // null: no bias
  int64_t batch_stride, line_stride, head_stride, query_stride, key_stride;
};

// What q k^T is multiplied by unless something else is asked for: 1 / sqrt(head_size).
double default_attention_scale(int64_t head_size);

// Whether `scale` can be: finite and above 0, because the running maximum is that of the products
// before they are scaled; and so in the type that sums are kept in, where its product with log2(e)
// has to be a normal number too.
bool is_attention_scale(DType type, double scale);

// out[position] = softmax(q k^T * scale + bias) v, heads concatenated, `heads * head_size`
// elements of `type` per position.
// statistics: [batch, lines, heads, 2, tokens], float (double with kFloat64). Of each query the
// largest logit (without a bias the largest q k, before its scale) and log2 of the sum of
// exp(logit - largest); 0 and +inf for a row without keys. Kept for the functions below. One number,
// the logarithm of the sum of exp(logit), would not do: its rounding becomes a factor of all weights
// that are computed from it, some percent for logits of 1e6.
Result attention_forward(DType type, const AttentionShape& shape, double scale,
                         const void* qkv, const AttentionBias& bias, void* out,
                         void* statistics, ParallelFor parallel_for);

// d_qkv: like qkv, the gradient for d_out, which is like out.
Result attention_backward(DType type, const AttentionShape& shape, double scale, const void* qkv,
                          const AttentionBias& bias, const void* out, const void* statistics,
                          const void* d_out, void* d_qkv, ParallelFor parallel_for);

// d_bias: the gradient of the bias, summed over what it was broadcast over, at the strides of `bias`;
// float (double with kFloat64). Each of its elements is written once.
Result attention_bias_gradient(DType type, const AttentionShape& shape, double scale,
                               const void* qkv, const AttentionBias& bias, const void* out,
                               const void* statistics, const void* d_out, void* d_bias, ParallelFor parallel_for);

// What the weights say, without storing them: any pointer may be null. Lines must be 1.
struct AttentionTaps {
  void* class_row;  // [batch, heads, tokens]: weights of query 0
  void* distance;   // [batch, heads]: see custom_ops/attention.py; over the last rows * columns tokens
  void* entropy;    // [batch, heads]: nats, mean over queries
  int64_t rows, columns;  // for distance; rows * columns <= tokens
};

Result attention_taps(DType type, const AttentionShape& shape, double scale, const void* qkv,
                      const AttentionBias& bias, const void* statistics, const AttentionTaps& taps,
                      ParallelFor parallel_for);

// Bytes of scratch that one thread uses at a time; grows with tokens, not with their square.
int64_t attention_forward_scratch(DType type, const AttentionShape& shape);

}  // namespace vit

#endif  // CUSTOM_OPS_CC_ATTENTION_H_
