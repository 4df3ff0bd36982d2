// The gradients of q, k and v without tensor cores, for any type and head size: see
// logit_gradients.h. A block owns 64 columns of the gradients of 64 queries or 64 keys of a line.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_SCALAR_H_
#define CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_SCALAR_H_

#include "custom_ops/cuda/attention_gradient/logit_gradients.h"

namespace vit {

// delta of every query, 0 for queries without keys. A thread computes one. The products are added
// in the order of ScalarTile, so that ds is exactly 0 for a query with a single key.
template <class T>
VIT_KERNEL(kScalarThreads, 4, delta_scalar, const GradientParameters p) {
  const AttentionShape& shape = p.problem.shape;
  const int64_t number = block_index() * kScalarThreads + thread_index();
  const int64_t index = number / shape.tokens, token = number % shape.tokens;
  if (index >= shape.batch * shape.lines * shape.heads) return;
  const float* statistics = statistics_of(p.problem.statistics, shape, index);
  const int64_t at = offset_in_out(shape, line_of(shape, index), token);
  const T* const out = static_cast<const T*>(p.problem.out) + at;
  const T* const d_out = static_cast<const T*>(p.problem.d_out) + at;
  float sum = 0;
  for (int64_t i = 0; i < shape.head_size; ++i) {
    sum += to_float(d_out[i]) * to_float(out[i]);
  }
  p.delta[number] = statistics[shape.tokens + token] == infinity() ? 0 : sum;
}

// p and ds of 64 queries, the rows, and 64 keys, the columns.
template <class T>
struct ScalarGradients {
  using Product = ScalarTile;
  static constexpr int kSize = Product::kSize, kPerThread = Product::kPerThread;

  Product weights, gradients;

  // All threads of the block call it. `shared`: see ScalarTile.
  VIT_DEVICE_METHOD void compute(const GradientParameters& p, int64_t index, const Line& line,
                                 int64_t query, int64_t key, float* shared) {
    const AttentionGradientProblem& problem = p.problem;
    const AttentionShape& shape = problem.shape;
    const auto rows = [&](Part part, int64_t first) {
      return rows_of_qkv<T>(shape, problem.qkv, line, part, first, kSize, false);
    };
    ScalarLogits<T> logits;
    logits.multiply(rows(kQuery, query), rows(kKey, key), p.scales.of_queries, shared);
    const Rows<T> d_out = rows_of_out<T>(shape, problem.d_out, line, query, kSize, false);
    const Rows<T> values = rows(kValue, key);
    gradients.clear();
    gradients.add_product<true, true>(
        shape.head_size,
        [&](int row, int64_t k) {
          return row < d_out.rows ? to_float(d_out.data[row * d_out.stride + k]) : 0.0f;
        },
        [&](int64_t k, int row) {
          return row < values.rows ? to_float(values.data[row * values.stride + k]) : 0.0f;
        },
        shared);

    const float* const statistics = statistics_of(problem.statistics, shape, index) + query;
    const float* const delta = p.delta + index * shape.tokens + query;
    const TileBias bias(problem, line, query, key, kSize, kSize);
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const int row = Product::row(i);
      const bool exists = row < bias.queries;
      const float largest = exists ? statistics[row] : 0;
      const float log2_total = exists ? statistics[shape.tokens + row] : infinity();
      const float row_delta = exists ? delta[row] : 0;
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) {
        const int column = Product::column(j);
        const float product = logits.tile.sums[i][j];
        const float logit = bias.data
                                ? fused_product(product, p.scales.of_products, bias.at(row, column))
                                : product * p.scales.of_products;
        const bool counts = log2_total != infinity() && column < bias.keys;
        const float weight = power_of_two((logit - largest) * p.scales.of_exponents - log2_total);
        weights.sums[i][j] = counts ? weight : 0;
        gradients.sums[i][j] = counts ? weight * (gradients.sums[i][j] - row_delta) : 0;
      }
    }
  }
};

// Writes the sums of a tile to shared memory. All threads of the block call it.
VIT_DEVICE void share_tile(const ScalarTile& tile, float* shared) {
  using Product = ScalarTile;
  for (int i = 0; i < Product::kPerThread; ++i) {
    for (int j = 0; j < Product::kPerThread; ++j) {
      shared[Product::row(i) * Product::kPitch + Product::column(j)] = tile.sums[i][j];
    }
  }
  sync_block();
}

// The tiles of queries and of columns of a block: see BackwardGeometry.
struct ScalarPlace {
  uint32_t index;  // of the line
  Line line;
  int64_t first, column;  // token, and column of the head
  VIT_DEVICE_METHOD ScalarPlace(const AttentionShape& shape, uint32_t tiles,
                                uint32_t column_tiles) {
    const auto block = static_cast<uint32_t>(block_index());
    index = block / column_tiles / tiles;
    line = line_of(shape, index);
    first = int64_t{block / column_tiles % tiles} * kScalarTile;
    column = int64_t{block % column_tiles} * kScalarTile;
  }
};

// Writes sums * factor to the tokens from `first` on and the columns from `column` on.
template <class T>
VIT_DEVICE void write_gradient(const GradientParameters& p, const ScalarPlace& place, Part part,
                               const ScalarTile& tile, float factor) {
  using Product = ScalarTile;
  const AttentionShape& shape = p.problem.shape;
  for (int i = 0; i < Product::kPerThread; ++i) {
    const int64_t token = place.first + Product::row(i);
    if (token >= shape.tokens) continue;
    T* const to = static_cast<T*>(p.problem.gradient) +
                  offset_in_qkv(shape, place.line, token, part) + place.column;
    for (int j = 0; j < Product::kPerThread; ++j) {
      const int column = Product::column(j);
      if (place.column + column >= shape.head_size) continue;
      to[column] = rounded<T>(tile.sums[i][j] * factor);
    }
  }
}

template <class T>
VIT_KERNEL(kScalarThreads, 1, query_gradients_scalar, const GradientParameters p) {
  using Product = ScalarTile;
  float* const shared = reinterpret_cast<float*>(shared_memory());
  float* const shared_tile = shared + Product::kBytes / static_cast<int64_t>(sizeof(float));
  const AttentionShape& shape = p.problem.shape;
  const ScalarPlace place(shape, p.query_tiles, p.column_tiles);
  const int64_t columns = shape.head_size - place.column;
  Product sums;
  sums.clear();
  for (int64_t key = 0; key < shape.tokens; key += kScalarTile) {
    ScalarGradients<T> tile;
    tile.compute(p, place.index, place.line, place.first, key, shared);
    share_tile(tile.gradients, shared_tile);
    const Rows<T> keys =
        rows_of_qkv<T>(shape, p.problem.qkv, place.line, kKey, key, kScalarTile, false);
    sums.add_product<true, false>(
        keys.rows, [&](int row, int64_t k) { return shared_tile[row * Product::kPitch + k]; },
        [&](int64_t k, int column) {
          return column < columns ? to_float(keys.data[k * keys.stride + place.column + column])
                                  : 0.0f;
        },
        shared);
  }
  // A query without keys has no gradient, even if a key is not finite.
  const float* const log2_totals =
      statistics_of(p.problem.statistics, shape, place.index) + shape.tokens + place.first;
  for (int i = 0; i < Product::kPerThread; ++i) {
    const int row = Product::row(i);
    if (place.first + row >= shape.tokens || log2_totals[row] != infinity()) continue;
    for (float& sum : sums.sums[i]) sum = 0;
  }
  write_gradient<T>(p, place, kQuery, sums, p.scale);
}

template <class T>
VIT_KERNEL(kScalarThreads, 1, key_gradients_scalar, const GradientParameters p) {
  using Product = ScalarTile;
  float* const shared = reinterpret_cast<float*>(shared_memory());
  float* const shared_tile = shared + Product::kBytes / static_cast<int64_t>(sizeof(float));
  const AttentionShape& shape = p.problem.shape;
  const ScalarPlace place(shape, p.key_tiles, p.column_tiles);
  const int64_t columns = shape.head_size - place.column;
  const float* const log2_totals =
      statistics_of(p.problem.statistics, shape, place.index) + shape.tokens;
  Product d_keys, d_values;
  d_keys.clear();
  d_values.clear();
  for (int64_t query = 0; query < shape.tokens; query += kScalarTile) {
    ScalarGradients<T> tile;
    tile.compute(p, place.index, place.line, query, place.first, shared);
    // sums += tile^T rows. A query without keys counts as zeros, which keeps 0 * Inf out.
    const auto add = [&](Product& sums, const Product& left, const Rows<T>& rows) {
      share_tile(left, shared_tile);
      sums.add_product<false, false>(
          rows.rows, [&](int key, int64_t k) { return shared_tile[k * Product::kPitch + key]; },
          [&](int64_t k, int column) {
            return column < columns && log2_totals[query + k] != infinity()
                       ? to_float(rows.data[k * rows.stride + place.column + column])
                       : 0.0f;
          },
          shared);
    };
    add(d_values, tile.weights,
        rows_of_out<T>(shape, p.problem.d_out, place.line, query, kScalarTile, false));
    add(d_keys, tile.gradients,
        rows_of_qkv<T>(shape, p.problem.qkv, place.line, kQuery, query, kScalarTile, false));
  }
  write_gradient<T>(p, place, kKey, d_keys, p.scale);
  write_gradient<T>(p, place, kValue, d_values, 1.0f);
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_SCALAR_H_
