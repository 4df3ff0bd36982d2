// Multi-head attention over a packed projection, forward and backward, without a buffer of tokens x
// tokens elements (Dosovitskiy et al., 2021, appendix A; Dao et al., 2022, for the running
// softmax). This header defines the problems that a device solves.
//
// A tensor has `batch * lines * tokens` positions of `3 * heads * head_size` elements: q | k | v,
// each [heads, head_size]. Every token attends to the tokens of its line. Strides say where
// positions lie, so rows and columns of a grid need no transpose. All tensors are dense; data must
// be aligned to its element type only.
#ifndef CUSTOM_OPS_CC_ATTENTION_PROBLEM_H_
#define CUSTOM_OPS_CC_ATTENTION_PROBLEM_H_

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

// Added to the scaled logits. float, or double with kFloat64. Strides count elements; a stride is 0
// along the dimensions that the bias is broadcast over. A query whose bias is -inf for all keys has
// zero output and gradients.
struct AttentionBias {
  const void* data;  // null: no bias
  int64_t batch_stride, line_stride, head_stride, query_stride, key_stride;
};

// The scale of q k^T if the caller sets none: 1 / sqrt(head_size).
double default_attention_scale(int64_t head_size);

// The part of the scale that q is multiplied by before the product with k, so that for scales from
// 2^-32 on q k^T does not overflow where scaled logits do not: a power of two in [2^-32, 1], which
// rounds only what becomes subnormal.
double query_factor(double scale);

// Whether a problem can have this scale: it must be finite and above 0, because the running maximum
// is the maximum of the products before they are scaled by the rest of the scale. This holds for
// its value in the type of the sums, where its product with log2(e) must be a normal number too.
bool is_attention_scale(DType type, double scale);

// The inputs that all problems have.
struct AttentionProblem {
  DType type;  // of qkv, out and their gradients
  AttentionShape shape;
  double scale;
  const void* qkv;
  AttentionBias bias;
};

// out[position] = softmax(q k^T * scale + bias) v, heads concatenated, `heads * head_size` elements
// of `type` per position.
// statistics: [batch, lines, heads, 2, tokens], float (double with kFloat64). For each query: the
// largest logit (without a bias the largest q k * query_factor), and log2 of the sum of exp(logit -
// largest). 0 and +inf for a query without keys. The problems below read them. One
// number, the logarithm of the sum of exp(logit), is not enough: its rounding error scales all
// weights that are computed from it, by some percent for logits of 1e6.
struct AttentionForwardProblem : AttentionProblem {
  // Outputs.
  void *out, *statistics;
};

// d_out has the shape and type of out. The gradient is d_qkv, with the shape and type of qkv; or
// d_bias, the gradient of the bias, summed over the dimensions that the bias was broadcast over,
// with the strides of the bias, float (double with kFloat64). Each element is written once.
struct AttentionGradientProblem : AttentionProblem {
  const void *out, *statistics, *d_out;
  // Output.
  void* gradient;
};

// Summaries of the attention weights, which are not stored. Any output may be null. Lines must be
// 1.
struct AttentionTapsProblem : AttentionProblem {
  const void* statistics;
  // The distance uses the last rows * columns tokens; rows * columns <= tokens.
  int64_t rows, columns;
  // Outputs.
  void* class_row;  // [batch, heads, tokens]: weights of query 0
  void* distance;  // [batch, heads]: see custom_ops/attention.py
  void* entropy;  // [batch, heads]: nats, mean over queries
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_ATTENTION_PROBLEM_H_
