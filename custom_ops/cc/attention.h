// Multi-head attention over a packed projection: the problems that a device solves, forward and
// backward, without any buffer of tokens x tokens (Dosovitskiy et al., 2021, appendix A; Dao et
// al., 2022, for the running softmax).
//
// A tensor has `batch * lines * tokens` positions of `3 * heads * head_size` elements: q | k | v,
// each [heads, head_size]. Attention goes along the tokens of a line. Strides say where positions
// lie, so that rows and columns of a grid need no transpose. All tensors are dense; no alignment is
// assumed.
#ifndef CUSTOM_OPS_CC_ATTENTION_H_
#define CUSTOM_OPS_CC_ATTENTION_H_

#include <stdint.h>

#include "custom_ops/cc/dtype.h"

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

// Added to the scaled logits. float, or double with kFloat64. Strides count elements and are 0
// along what the bias is broadcast over. A row that is -inf for all keys has zero output and
// gradients.
struct AttentionBias {
  const void* data;  // null: no bias
  int64_t batch_stride, line_stride, head_stride, query_stride, key_stride;
};

// The factor of q k^T where no other is given: 1 / sqrt(head_size).
double default_attention_scale(int64_t head_size);

// Whether `scale` can be that of a problem: finite and above 0, because the running maximum is that
// of the products before they are scaled; and so in the type that sums are kept in, where its
// product with log2(e) has to be a normal number too.
bool is_attention_scale(DType type, double scale);

// Common to all problems.
struct AttentionProblem {
  DType type;  // of qkv, out and their gradients
  AttentionShape shape;
  double scale;
  const void* qkv;
  AttentionBias bias;
};

// out[position] = softmax(q k^T * scale + bias) v, heads concatenated, `heads * head_size` elements
// of `type` per position.
// statistics: [batch, lines, heads, 2, tokens], float (double with kFloat64). Of each query the
// largest logit (without a bias the largest q k, before its scale) and log2 of the sum of
// exp(logit - largest); 0 and +inf for a row without keys. Kept for the problems below. One number,
// the logarithm of the sum of exp(logit), is not enough: its rounding becomes a factor of all
// weights that are computed from it, some percent for logits of 1e6.
struct AttentionForwardProblem : AttentionProblem {
  // Written.
  void *out, *statistics;
};

// d_out is like out. The gradient is d_qkv, like qkv; or d_bias, the gradient of the bias, summed
// over what it was broadcast over, at the strides of the bias, float (double with kFloat64), each
// element written once.
struct AttentionGradientProblem : AttentionProblem {
  const void *out, *statistics, *d_out;
  // Written.
  void* gradient;
};

// Summaries of the weights, which are not stored: any output may be null. Lines must be 1.
struct AttentionTapsProblem : AttentionProblem {
  const void* statistics;
  // For distance: it is over the last rows * columns tokens; rows * columns <= tokens.
  int64_t rows, columns;
  // Written.
  void* class_row;  // [batch, heads, tokens]: weights of query 0
  void* distance;  // [batch, heads]: see custom_ops/attention.py
  void* entropy;  // [batch, heads]: nats, mean over queries
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_ATTENTION_H_
