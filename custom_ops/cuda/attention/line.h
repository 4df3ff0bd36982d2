// Where the tensors of a line of attention lie: of one head of one line of one image.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_LINE_H_
#define CUSTOM_OPS_CUDA_ATTENTION_LINE_H_

#include "custom_ops/cc/attention_problem.h"
#include "custom_ops/cuda/scalar_tiles.h"
#include "custom_ops/cuda/tensor_tiles.h"

namespace vit {

struct Line {
  int64_t batch, line, head;
};

// Line number `index` of batch * lines * heads, heads fastest. Every line has a block, so these
// numbers are below kMaxBlocks, and divisions of 64 bits, which take long, are not needed.
VIT_DEVICE Line line_of(const AttentionShape& shape, int64_t index) {
  const auto at = static_cast<uint32_t>(index), heads = static_cast<uint32_t>(shape.heads),
             lines = static_cast<uint32_t>(shape.lines);
  return {at / heads / lines, at / heads % lines, at % heads};
}

VIT_DEVICE int64_t position_of(const AttentionShape& shape, const Line& line, int64_t token) {
  return line.batch * shape.batch_stride + line.line * shape.line_stride +
         token * shape.token_stride;
}

// q, k and v of a packed projection.
enum Part { kQuery = 0, kKey = 1, kValue = 2 };

// The element of `part` of a token that the head begins with, in qkv or its gradient.
VIT_DEVICE int64_t offset_in_qkv(const AttentionShape& shape, const Line& line, int64_t token,
                                 Part part) {
  const int64_t width = shape.heads * shape.head_size;
  return position_of(shape, line, token) * 3 * width + part * width + line.head * shape.head_size;
}

// The same in out or its gradient.
VIT_DEVICE int64_t offset_in_out(const AttentionShape& shape, const Line& line, int64_t token) {
  return (position_of(shape, line, token) * shape.heads + line.head) * shape.head_size;
}

// The tokens from `first` on, at most `count`, that exist.
VIT_DEVICE int rows_from(const AttentionShape& shape, int64_t first, int count) {
  const int64_t left = shape.tokens - first;
  return left < count ? static_cast<int>(left < 0 ? 0 : left) : count;
}

// Rows of a tile that products use: multiply_add takes 16 at a time.
VIT_DEVICE int used_rows(int rows) { return (rows + 15) / 16 * 16; }

// The rows of tokens [first, first + count), for fill().
template <class T>
VIT_DEVICE Rows<T> rows_of_qkv(const AttentionShape& shape, const void* qkv, const Line& line,
                               Part part, int64_t first, int count, bool is_aligned) {
  const T* data = static_cast<const T*>(qkv) + offset_in_qkv(shape, line, first, part);
  const int rows = rows_from(shape, first, count);
  return {data,
          shape.token_stride * 3 * shape.heads * shape.head_size,
          rows,
          used_rows(rows),
          static_cast<int>(shape.head_size),
          is_aligned};
}
template <class T>
VIT_DEVICE Rows<T> rows_of_out(const AttentionShape& shape, const void* out, const Line& line,
                               int64_t first, int count, bool is_aligned) {
  const T* data = static_cast<const T*>(out) + offset_in_out(shape, line, first);
  const int rows = rows_from(shape, first, count);
  return {data,
          shape.token_stride * shape.heads * shape.head_size,
          rows,
          used_rows(rows),
          static_cast<int>(shape.head_size),
          is_aligned};
}

// The bias of query 0 and key 0; null without a bias.
VIT_DEVICE const float* bias_of(const AttentionBias& bias, const Line& line) {
  if (!bias.data) return nullptr;
  return static_cast<const float*>(bias.data) + line.batch * bias.batch_stride +
         line.line * bias.line_stride + line.head * bias.head_stride;
}

// [2, tokens]: the largest logits, and the logarithms of the sums. They are in the order of
// line_of.
VIT_DEVICE float* statistics_of(void* statistics, const AttentionShape& shape, int64_t index) {
  return static_cast<float*>(statistics) + index * 2 * shape.tokens;
}
VIT_DEVICE const float* statistics_of(const void* statistics, const AttentionShape& shape,
                                      int64_t index) {
  return static_cast<const float*>(statistics) + index * 2 * shape.tokens;
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_LINE_H_
