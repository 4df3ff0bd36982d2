// Inputs of attention, for the tests and the oracle.
#ifndef TESTS_CC_ATTENTION_CASE_H_
#define TESTS_CC_ATTENTION_CASE_H_

#include <math.h>

#include <vector>

#include "custom_ops/cc/attention_problem.h"
#include "tests/cc/check.h"
#include "tests/cc/numbers.h"

namespace vit_test {

struct AttentionCase {
  vit::DType type;
  vit::AttentionShape shape;
  int64_t rows = 0, columns = 0;  // the grid of the tap distance
  // Contents of the tensors. `strides` are the strides of the bias, which is empty without a bias.
  std::vector<double> qkv, d_out, bias;
  vit::AttentionBias strides = {};
  double explicit_scale = 0;  // 0: the default scale of the head size

  int64_t positions() const { return shape.batch * shape.lines * shape.tokens; }
  int64_t width() const { return shape.heads * shape.head_size; }
  double scale() const {
    return explicit_scale > 0 ? explicit_scale : vit::default_attention_scale(shape.head_size);
  }
  bool has_taps() const { return shape.lines == 1; }
};

// Gives the problem a bias of zeros that has the dimensions in `mask` (bits 0 to 4: keys, queries,
// heads, lines, batch) and is broadcast over the others. `order` lists its dimensions in memory,
// fastest first.
inline void shape_bias(AttentionCase& problem, int mask,
                       const std::vector<int>& order = {0, 1, 2, 3, 4}) {
  const vit::AttentionShape& shape = problem.shape;
  const int64_t sizes[] = {shape.tokens, shape.tokens, shape.heads, shape.lines, shape.batch};
  int64_t* strides[] = {&problem.strides.key_stride, &problem.strides.query_stride,
                        &problem.strides.head_stride, &problem.strides.line_stride,
                        &problem.strides.batch_stride};
  int64_t count = 1;
  for (int i : order) {
    *strides[i] = mask >> i & 1 ? count : 0;
    if (mask >> i & 1) count *= sizes[i];
  }
  problem.bias.assign(static_cast<size_t>(count), 0.0);
}

// Random normal numbers times `scale`, rounded to the type.
inline std::vector<double> normals(Random& random, vit::DType type, int64_t count,
                                   double scale = 1) {
  std::vector<double> result(static_cast<size_t>(count));
  for (double& x : result) x = rounded_to(type, scale * random.normal());
  return result;
}

// Closes about a third of the keys with -inf, and all keys for about every eighth query.
inline void fill_bias(Random& random, AttentionCase& problem) {
  for (double& x : problem.bias) {
    x = random.below(3) ? rounded_to(accumulator(problem.type), random.normal()) : -HUGE_VAL;
  }
  if (!problem.strides.query_stride || !problem.strides.key_stride || problem.bias.empty()) return;
  const int64_t n = problem.shape.tokens;
  const int64_t last = n * (problem.strides.query_stride + problem.strides.key_stride);
  for (int64_t i = 0; i < n; ++i) {
    if (random.below(8)) continue;
    // Closes all keys for the first head, line and batch element. For the others the result is
    // random.
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = i * problem.strides.query_stride + j * problem.strides.key_stride;
      if (at < last) problem.bias[static_cast<size_t>(at)] = -HUGE_VAL;
    }
  }
}

inline AttentionCase make(Random& random, vit::DType type, const vit::AttentionShape& shape,
                          double scale = 1) {
  AttentionCase problem = {type, shape, 0, 0, {}, {}, {}, {}};
  const int64_t count = problem.positions() * problem.width();
  problem.qkv = normals(random, type, 3 * count, scale);
  problem.d_out = normals(random, type, count);
  return problem;
}

// A line of one head, where element 1 of key 2 is infinite and that element
// of every query has the sign `sign`.
inline AttentionCase infinite_key(vit::DType type, int64_t tokens, int64_t size, double sign) {
  const int64_t key = 2, column = 1;
  Random random(13);
  AttentionCase problem = make(random, type, vit::sequence_shape(1, tokens, 1, size));
  for (int64_t i = 0; i < tokens; ++i) {
    double& q = problem.qkv[static_cast<size_t>(3 * i * size + column)];
    q = rounded_to(type, sign * (1 + fabs(q)));
  }
  problem.qkv[static_cast<size_t>((3 * key + 1) * size + column)] = HUGE_VAL;
  return problem;
}

// The shape of attention over `tokens` tokens: of sequences, or of 3 lines of a grid along an axis.
inline vit::AttentionShape shape_of(int axis, int64_t batch, int64_t tokens, int64_t heads,
                                    int64_t size) {
  if (axis == 0) return vit::sequence_shape(batch, tokens, heads, size);
  const int64_t rows = axis == 1 ? tokens : 3, columns = axis == 1 ? 3 : tokens;
  return vit::grid_shape(batch, rows, columns, heads, size, axis);
}

}  // namespace vit_test

#endif  // TESTS_CC_ATTENTION_CASE_H_
