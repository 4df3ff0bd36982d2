// Weights and gradients of logits with tensor cores. Logits are computed again, as in forward, and
// the weights p follow from the stored statistics. With do = d_out and delta = sum(do * out) of a
// query:
//   dv = p^T do,   ds = p * (do v^T - delta),   dq = ds k * scale,   dk = ds^T q * scale
// and ds is the gradient of the bias (Dao et al., 2022, appendix B.4). p and ds are rounded to the
// element type before they are operands of products.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_LOGIT_GRADIENTS_H_
#define CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_LOGIT_GRADIENTS_H_

#include "custom_ops/cuda/attention_gradient/backward_geometry.h"
#include "custom_ops/cuda/attention/tensor_logits.h"

namespace vit {

// LogitScales for gradients: with x = product * of_products (+ bias) - largest, the weight is
// exp2(x * of_exponents - log2 of the sum).
struct GradientScales {
  float of_queries, of_products, of_exponents;
};
inline GradientScales gradient_scales(const AttentionProblem& problem, AttentionPath path) {
  const LogitScales scales = logit_scales(problem, path);
  return {static_cast<float>(scales.of_queries),
          static_cast<float>(problem.bias.data ? scales.of_products : scales.of_largest),
          static_cast<float>(scales.of_exponents / scales.of_largest)};
}

// The arguments of the kernels of backward and of the gradient of the bias.
struct GradientParameters {
  AttentionGradientProblem problem;
  GradientScales scales;
  float scale;   // of d_q and d_k
  float* delta;  // scratch [lines, tokens]
  int64_t qkv_stride, out_stride;  // elements between tokens of a line
  int queries;  // of a block that owns queries
  uint32_t query_tiles, key_tiles, column_tiles;
  bool is_qkv_aligned, is_out_aligned, is_gradient_aligned;  // see has_aligned_rows
};

// The bias of a tile of logits, and how many queries and keys of the tile exist.
struct TileBias {
  const float* data;  // the element of the first query and key of the tile; null without a bias
  int64_t query_stride, key_stride;
  int queries, keys;

  VIT_DEVICE_METHOD TileBias(const AttentionProblem& problem, const Line& line, int64_t query,
                             int64_t key, int most_queries, int most_keys)
      : data(bias_of(problem.bias, line)),
        query_stride(problem.bias.query_stride),
        key_stride(problem.bias.key_stride),
        queries(rows_from(problem.shape, query, most_queries)),
        keys(rows_from(problem.shape, key, most_keys)) {
    if (data) data += query * query_stride + key * key_stride;
  }
  // Goes on to the tile kGradientTokens queries or keys later, which begins with `first`.
  VIT_DEVICE_METHOD void advance_queries(const AttentionShape& shape, int64_t first) {
    if (data) data += kGradientTokens * query_stride;
    queries = rows_from(shape, first, kGradientTokens);
  }
  VIT_DEVICE_METHOD void advance_keys(const AttentionShape& shape, int64_t first) {
    if (data) data += kGradientTokens * key_stride;
    keys = rows_from(shape, first, kGradientTokens);
  }
  VIT_DEVICE_METHOD bool exists(int query, int key) const { return query < queries && key < keys; }
  // Only with a bias. 0 beyond the line.
  VIT_DEVICE_METHOD float at(int query, int key) const {
    return exists(query, key) ? data[query * query_stride + key * key_stride] : 0.0f;
  }
};

// The place of a logit in a tile, and the statistics of its query. A query without keys has the
// logarithm +inf.
struct LogitPlace {
  int query, key;
  float largest, log2_total, delta;
};

// The operand a of products: the rows of a warp, 16 kTiles of them.
template <class T, int kHead, int kTiles>
struct RowOperand {
  static constexpr int kSteps = kHead / 16;
  uint32_t a[kTiles][kSteps][4];

  template <int kRows>
  VIT_DEVICE_METHOD void load(const Tile<T, kRows, kHead>& from, int row) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) from.load_a(row + 16 * m, 16 * k, a[m][k]);
    }
  }

  // Multiplies by a power of two.
  VIT_DEVICE_METHOD void scale(float factor) {
    if (factor == 1) return;
#pragma unroll
    for (auto& of_tile : a) {
#pragma unroll
      for (auto& of_step : of_tile) {
#pragma unroll
        for (uint32_t& pair : of_step) pair = scaled_pair<T>(pair, factor);
      }
    }
  }
};

// sums[16 kTiles, 16] += a (rows [row, row + 16) of b)^T.
template <class T, int kHead, int kTiles, int kRows>
VIT_DEVICE void add_products(const RowOperand<T, kHead, kTiles>& a, const Tile<T, kRows, kHead>& b,
                             int row, float (&sums)[kTiles][2][4]) {
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
    uint32_t pair[4];
    b.load_b_of_transposed(row, 16 * k, pair);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      multiply_add<T>(a.a[m][k], pair[0], pair[1], sums[m][0]);
      multiply_add<T>(a.a[m][k], pair[2], pair[3], sums[m][1]);
    }
  }
}

// The same with rows [a_row, a_row + 16) of a tile as the operand a.
template <class T, int kHead, int kRows, int kARows>
VIT_DEVICE void add_products_of_tile(const Tile<T, kARows, kHead>& a, int a_row,
                                     const Tile<T, kRows, kHead>& b, int row,
                                     float (&sums)[1][2][4]) {
#pragma unroll 2
  for (int k = 0; k < kHead / 16; ++k) {
    uint32_t left[4], pair[4];
    a.load_a(a_row, 16 * k, left);
    b.load_b_of_transposed(row, 16 * k, pair);
    multiply_add<T>(left, pair[0], pair[1], sums[0][0]);
    multiply_add<T>(left, pair[2], pair[3], sums[0][1]);
  }
}

// sums[16 kTiles, kHead] += x[16 kTiles, 16] rows [row, row + 16) of b. x is rounded to T.
template <class T, int kHead, int kTiles, int kRows>
VIT_DEVICE void add_rows(const float (&x)[kTiles][2][4], const Tile<T, kRows, kHead>& b, int row,
                         float (&sums)[kTiles][kHead / 8][4]) {
  uint32_t a[kTiles][4];
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[m][i] = packed<T>(x[m][i / 2][i % 2 * 2], x[m][i / 2][i % 2 * 2 + 1]);
    }
  }
#pragma unroll
  for (int n = 0; n < kHead / 16; ++n) {
    uint32_t pair[4];
    b.load_b(row, 16 * n, pair);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      multiply_add<T>(a[m], pair[0], pair[1], sums[m][2 * n]);
      multiply_add<T>(a[m], pair[2], pair[3], sums[m][2 * n + 1]);
    }
  }
}

// result[m][i] = the product of row g + 8 i of tile m of the operand with the same row of b, which
// begins at `row`; g = lane / 4. It is added in the order of add_products, so that ds is exactly 0
// for a query with a single key, whose out is v.
template <class T, int kHead, int kTiles, int kRows>
VIT_DEVICE void row_products(const RowOperand<T, kHead, kTiles>& a, const Tile<T, kRows, kHead>& b,
                             int row, float (&result)[kTiles][2]) {
  const int g = lane_index() / 4, source = 4 * g + g / 2;
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    float sums[1][2][4] = {};
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      uint32_t pair[4];
      b.load_b_of_transposed(row + 16 * m, 16 * k, pair);
      multiply_add<T>(a.a[m][k], pair[0], pair[1], sums[0][0]);
      multiply_add<T>(a.a[m][k], pair[2], pair[3], sums[0][1]);
    }
    result[m][0] = shuffle(g % 2 ? sums[0][0][1] : sums[0][0][0], source);
    result[m][1] = shuffle(g % 2 ? sums[0][1][3] : sums[0][1][2], source);
  }
}

// Replaces products q k^T by p, and products do v^T by ds. place(m, n, i) is the LogitPlace of an
// element. `is_whole`: all queries and keys of the tile exist, and there is no bias.
template <int kTiles, class Place>
VIT_DEVICE void to_gradients(const GradientScales& scales, const TileBias& bias, bool is_whole,
                             const Place& place, float (&p)[kTiles][2][4],
                             float (&ds)[kTiles][2][4]) {
  const auto for_each = [](const auto& body) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) body(m, n, i);
      }
    }
  };
  if (bias.data) {
    for_each([&](int m, int n, int i) {
      const LogitPlace at = place(m, n, i);
      const float logit = fused_product(p[m][n][i], scales.of_products, bias.at(at.query, at.key));
      p[m][n][i] = logit - at.largest;
    });
  } else {
    for_each([&](int m, int n, int i) {
      p[m][n][i] = p[m][n][i] * scales.of_products - place(m, n, i).largest;
    });
  }
  for_each([&](int m, int n, int i) {
    const LogitPlace at = place(m, n, i);
    p[m][n][i] = fast_power_of_two(p[m][n][i] * scales.of_exponents - at.log2_total);
    ds[m][n][i] = p[m][n][i] * (ds[m][n][i] - at.delta);
  });
  if (is_whole) return;
  for_each([&](int m, int n, int i) {
    const LogitPlace at = place(m, n, i);
    if (bias.exists(at.query, at.key) && at.log2_total != infinity()) return;
    p[m][n][i] = ds[m][n][i] = 0;
  });
}

// The queries of a warp as rows of logits, 16 kTiles of them.
template <class T, int kHead, int kTiles>
struct QueryRows {
  RowOperand<T, kHead, kTiles> queries, d_out;
  float largest[kTiles][2], log2_total[kTiles][2], delta[kTiles][2];
  int first;  // row of the warp in the tile

  // Reads the statistics [2, tokens] of a line from query `token` on. `out`: the rows of the
  // forward result; the warp reads the rows of its queries.
  template <int kRows>
  VIT_DEVICE_METHOD void load_statistics(const AttentionShape& shape, const float* statistics,
                                         int64_t token, const Tile<T, kRows, kHead>& out) {
    row_products(d_out, out, first, delta);
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int64_t query = token + first + 16 * m + lane_index() / 4 + 8 * i;
        const bool exists = query < shape.tokens;
        largest[m][i] = exists ? statistics[query] : 0;
        log2_total[m][i] = exists ? statistics[shape.tokens + query] : infinity();
        if (log2_total[m][i] == infinity()) delta[m][i] = 0;
      }
    }
  }

  // p and ds of 16 keys, whose rows of the tiles begin at `row`.
  template <int kRows>
  VIT_DEVICE_METHOD void gradients(const Tile<T, kRows, kHead>& keys,
                                   const Tile<T, kRows, kHead>& values, int row,
                                   const GradientScales& scales, const TileBias& bias,
                                   float (&p)[kTiles][2][4], float (&ds)[kTiles][2][4]) const {
    add_products(queries, keys, row, p);
    add_products(d_out, values, row, ds);
    const int query = first + lane_index() / 4, key = row + lane_index() % 4 * 2;
    const bool is_whole = !bias.data && row + 16 <= bias.keys;
    to_gradients<kTiles>(
        scales, bias, is_whole,
        [&](int m, int n, int i) {
          return LogitPlace{query + 16 * m + i / 2 * 8, key + 8 * n + i % 2, largest[m][i / 2],
                            log2_total[m][i / 2], delta[m][i / 2]};
        },
        p, ds);
  }

  VIT_DEVICE_METHOD bool is_open(int m, int i) const { return log2_total[m][i] != infinity(); }
};

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_LOGIT_GRADIENTS_H_
