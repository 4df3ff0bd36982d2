// Attention forward without tensor cores: any type, any head size. A block computes 64 columns of
// the output of 64 queries.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_FORWARD_SCALAR_H_
#define CUSTOM_OPS_CUDA_ATTENTION_FORWARD_SCALAR_H_

#include "custom_ops/cuda/attention/scalar_logits.h"

namespace vit {

struct ForwardScalarParameters {
  AttentionForwardProblem problem;
  KernelScales scales;
  uint32_t query_tiles, column_tiles;  // of a line
};

// The running softmax of the queries of a thread, and their sums of values.
struct ScalarSoftmax {
  static constexpr int kPerThread = ScalarTile::kPerThread;

  ScalarTile sums;
  float maxima[kPerThread];
  float totals[kPerThread];  // of the keys of this thread, until reduce()

  VIT_DEVICE_METHOD void clear() {
    sums.clear();
    for (int i = 0; i < kPerThread; ++i) {
      maxima[i] = -infinity();
      totals[i] = 0;
    }
  }

  // Replaces logits by weights exp2((logit - maximum) * factor), and rescales totals and sums to
  // the new maxima.
  VIT_DEVICE_METHOD void weigh(ScalarTile& logits, float factor) {
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      float highest = maxima[i];
#pragma unroll
      for (float x : logits.sums[i]) highest = x > highest ? x : highest;
#pragma unroll
      for (int mask = 1; mask < 16; mask *= 2) {
        const float other = shuffle_xor(highest, mask);
        highest = other > highest ? other : highest;
      }
      // In a row of -inf only, 0 keeps the weights at 0 instead of NaN.
      const float shift = highest == -infinity() ? 0 : highest;
      const float rescale = power_of_two((maxima[i] - shift) * factor);
      maxima[i] = highest;
      totals[i] *= rescale;
#pragma unroll
      for (float& x : logits.sums[i]) {
        x = power_of_two((x - shift) * factor);
        totals[i] += x;
      }
#pragma unroll
      for (float& x : sums.sums[i]) x *= rescale;
    }
  }

  // Adds what the 16 threads of a row have.
  VIT_DEVICE_METHOD void reduce(int& open) {
    for (int mask = 1; mask < 16; mask *= 2) {
      open |= shuffle_xor(open, mask);
      for (float& total : totals) total += shuffle_xor(total, mask);
    }
  }
};

template <class T>
VIT_KERNEL(kScalarThreads, 2, attention_forward_scalar, const ForwardScalarParameters p) {
  using Product = ScalarTile;
  constexpr int kSize = Product::kSize, kPerThread = Product::kPerThread;
  float* const shared = reinterpret_cast<float*>(shared_memory());
  float* const weights = shared + Product::kBytes / static_cast<int64_t>(sizeof(float));
  const AttentionForwardProblem& problem = p.problem;
  const AttentionShape& shape = problem.shape;
  const auto block = static_cast<uint32_t>(block_index());
  const uint32_t index = block / p.column_tiles / p.query_tiles;
  const int64_t first = int64_t{block / p.column_tiles % p.query_tiles} * kSize;
  const int64_t first_column = int64_t{block % p.column_tiles} * kSize;
  const int64_t columns = shape.head_size - first_column;  // 64 of them if there are more
  const Line line = line_of(shape, index);
  const Rows<T> queries = rows_of_qkv<T>(shape, problem.qkv, line, kQuery, first, kSize, false);
  const float* bias = bias_of(problem.bias, line);
  if (bias) bias += first * problem.bias.query_stride;

  ScalarSoftmax softmax;
  softmax.clear();
  int open = 0;
  for (int64_t key = 0; key < shape.tokens; key += kSize) {
    const Rows<T> keys = rows_of_qkv<T>(shape, problem.qkv, line, kKey, key, kSize, false);
    const Rows<T> values = rows_of_qkv<T>(shape, problem.qkv, line, kValue, key, kSize, false);
    ScalarLogits<T> logits;
    logits.multiply(queries, keys, p.scales.of_queries, shared);
    logits.finish(bias, problem.bias, p.scales.of_products, queries.rows, keys.rows, open);
    if (bias) bias += kSize * problem.bias.key_stride;
    softmax.weigh(logits.tile, p.scales.of_exponents);
    for (int i = 0; i < kPerThread; ++i) {
      for (int j = 0; j < kPerThread; ++j) {
        weights[Product::row(i) * Product::kPitch + Product::column(j)] = logits.tile.sums[i][j];
      }
    }
    sync_block();
    softmax.sums.add_product<true, false>(
        keys.rows, [&](int row, int64_t k) { return weights[row * Product::kPitch + k]; },
        [&](int64_t k, int column) {
          return column < columns ? to_float(values.data[k * values.stride + first_column + column])
                                  : 0.0f;
        },
        shared);
  }
  softmax.reduce(open);
  float* const statistics = statistics_of(problem.statistics, shape, index);
  T* const out = static_cast<T*>(problem.out) + first_column;
  for (int i = 0; i < kPerThread; ++i) {
    const int row = Product::row(i);
    if (row >= queries.rows) continue;
    const bool has_keys = !problem.bias.data || open >> i & 1;
    if (first_column == 0 && thread_index() % 16 == 0) {
      write_statistics(statistics, shape.tokens, first + row, has_keys, softmax.maxima[i],
                       softmax.totals[i]);
    }
    T* const to = out + offset_in_out(shape, line, first + row);
    for (int j = 0; j < kPerThread; ++j) {
      const int column = Product::column(j);
      // The sum of a query without keys may be NaN.
      const float value = has_keys ? softmax.sums.sums[i][j] / softmax.totals[i] : 0.0f;
      if (column < columns) to[column] = rounded<T>(value);
    }
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_FORWARD_SCALAR_H_
