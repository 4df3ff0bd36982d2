// The gradients of q, k and v with the products of warpgroups, for lines that fit the shared memory
// of a block. As in backward_tensor.h, a warpgroup owns 64 queries and visits all keys, or owns 64
// keys and visits all queries; so every gradient is written once and its sum has a fixed order.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_WARPGROUP_H_
#define CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_WARPGROUP_H_

#include "custom_ops/cuda/attention_gradient/logit_gradients.h"
#include "custom_ops/cuda/warpgroup_tiles.h"

namespace vit {

struct BackwardWarpgroupParameters {
  GradientParameters common;
  WarpgroupLines lines;
  int threads;  // of the block
};

// The statistics of all queries of a line, in shared memory. Behind the last query, log2_total is
// +inf, which makes weights 0.
struct LineStatistics {
  float* data;  // [3, rows]: the largest logits, logarithms, and delta
  int rows;
  static VIT_DEVICE_METHOD float value(int which) { return which == 1 ? infinity() : 0; }
  VIT_DEVICE_METHOD float* of(int which) const { return data + which * rows; }
};

// Zeros from column `count` on: a product of a row that does not exist may be 0 * Inf.
template <int kTiles>
VIT_DEVICE void clear_columns(float (&values)[kTiles][4], int count) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (8 * n + lane_index() % 4 * 2 + i % 2 >= count) values[n][i] = 0;
    }
  }
}

// 64 queries. A thread holds sums of the rows g and g + 8 of its warp, g = lane / 4.
template <class T, int kHead>
struct QueryWarpgroup {
  WarpRows<T, kHead> queries, d_out;
  float d_queries[kHead / 8][4];
  float largest[2], log2_total[2], delta[2];

  // `row`: of the warp; the other arguments begin with query 0 of the tile.
  VIT_DEVICE_METHOD void start(const Rows<T>& q, const Rows<T>& gradient, const Rows<T>& out,
                               const float* statistics, int64_t tokens, int row, float factor) {
    WarpRows<T, kHead> result;
    queries.fetch(q, row);
    d_out.fetch(gradient, row);
    result.fetch(out, row);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = row + lane_index() / 4 + 8 * i;
      const bool exists = query < q.rows;
      largest[i] = exists ? statistics[query] : LineStatistics::value(0);
      log2_total[i] = exists ? statistics[tokens + query] : LineStatistics::value(1);
    }
    d_out.multiply_rows(result, delta);
    queries.arrange();
    d_out.arrange();
    if (factor != 1) queries.scale(factor);
#pragma unroll
    for (auto& tile : d_queries) tile[0] = tile[1] = tile[2] = tile[3] = 0;
  }

  // Adds 16 kPieces keys from `first` on, of which `count` exist.
  template <int kPieces>
  VIT_DEVICE_METHOD void add_keys(const LineRows<T, kHead>& keys, const LineRows<T, kHead>& values,
                                  int first, int count, bool has_rows,
                                  const GradientScales& scales) {
    float p[2 * kPieces][4], ds[2 * kPieces][4];
    uint32_t gradients[kPieces][4];
    begin_products();
    start_row_products<kPieces>(queries, keys, first, p);
    start_row_products<kPieces>(d_out, values, first, ds);
    wait_for_products();
    pin(p);
    pin(ds);
    if (has_rows) {
#pragma unroll
      for (int n = 0; n < 2 * kPieces; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float x = p[n][i] * scales.of_products - largest[i / 2];
          const float weight = fast_power_of_two(x * scales.of_exponents - log2_total[i / 2]);
          ds[n][i] = weight * (ds[n][i] - delta[i / 2]);
        }
      }
      if (count < 16 * kPieces) clear_columns(ds, count);
    }
    pack<T>(ds, gradients);
    pin(d_queries);
    begin_products();
    start_weighted_rows<kPieces>(gradients, keys, first, d_queries, true);
    wait_for_products();
    pin(d_queries);
  }
};

// 64 keys, the rows of transposed logits.
template <class T, int kHead>
struct KeyWarpgroup {
  WarpRows<T, kHead> keys, values;
  float d_keys[kHead / 8][4], d_values[kHead / 8][4];

  VIT_DEVICE_METHOD void start(const Rows<T>& k, const Rows<T>& v, int row, float factor) {
    keys.fetch(k, row);
    values.fetch(v, row);
    keys.arrange();
    values.arrange();
    if (factor != 1) keys.scale(factor);
#pragma unroll
    for (auto& tile : d_keys) tile[0] = tile[1] = tile[2] = tile[3] = 0;
#pragma unroll
    for (auto& tile : d_values) tile[0] = tile[1] = tile[2] = tile[3] = 0;
  }

  // Adds 16 kPieces queries from `first` on, of which `count` exist.
  template <int kPieces>
  VIT_DEVICE_METHOD void add_queries(const LineRows<T, kHead>& queries,
                                     const LineRows<T, kHead>& d_out,
                                     const LineStatistics& statistics, int first, int count,
                                     bool has_rows, const GradientScales& scales) {
    float p[2 * kPieces][4], ds[2 * kPieces][4];
    uint32_t weights[kPieces][4], gradients[kPieces][4];
    begin_products();
    start_row_products<kPieces>(keys, queries, first, p);
    start_row_products<kPieces>(values, d_out, first, ds);
    wait_for_products();
    pin(p);
    pin(ds);
    if (has_rows) {
      const int column = first + lane_index() % 4 * 2;
#pragma unroll
      for (int n = 0; n < 2 * kPieces; ++n) {
        float largest[2], log2_total[2], delta[2];
        load_pair(statistics.of(0) + column + 8 * n, largest);
        load_pair(statistics.of(1) + column + 8 * n, log2_total);
        load_pair(statistics.of(2) + column + 8 * n, delta);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float x = p[n][i] * scales.of_products - largest[i % 2];
          p[n][i] = fast_power_of_two(x * scales.of_exponents - log2_total[i % 2]);
          ds[n][i] = p[n][i] * (ds[n][i] - delta[i % 2]);
        }
      }
      if (count < 16 * kPieces) {
        clear_columns(p, count);
        clear_columns(ds, count);
      }
    }
    pack<T>(p, weights);
    pack<T>(ds, gradients);
    pin(d_values);
    pin(d_keys);
    begin_products();
    start_weighted_rows<kPieces>(weights, d_out, first, d_values, true);
    start_weighted_rows<kPieces>(gradients, queries, first, d_keys, true);
    wait_for_products();
    pin(d_values);
    pin(d_keys);
  }
};

// What the warpgroups of a block do: the tiles of a part of a line.
template <class T, int kHead>
struct LineGradients {
  const BackwardWarpgroupParameters& p;
  uint32_t index;  // of the line
  Line line;
  int first_tile, last_tile;

  VIT_DEVICE_METHOD explicit LineGradients(const BackwardWarpgroupParameters& parameters)
      : p(parameters) {
    const auto block = static_cast<uint32_t>(block_index());
    const auto blocks = static_cast<uint32_t>(p.lines.blocks);
    index = block / blocks;
    line = line_of(p.common.problem.shape, index);
    first_tile = static_cast<int>(block % blocks) * p.lines.tiles_per_block;
    last_tile = smaller(first_tile + p.lines.tiles_per_block, p.lines.tiles);
  }

  // Array number `number` of the shared memory; the statistics lie behind two.
  VIT_DEVICE_METHOD LineRows<T, kHead> array(int number) const {
    const int pitch = 16 * p.lines.rows + 16;
    return {shared_memory() + number * kHead / 8 * pitch, pitch};
  }
  VIT_DEVICE_METHOD LineStatistics statistics() const {
    return {reinterpret_cast<float*>(array(2).data), p.lines.rows};
  }

  VIT_DEVICE_METHOD Rows<T> qkv(Part part, int64_t token) const {
    return rows_of_qkv<T>(p.common.problem.shape, p.common.problem.qkv, line, part, token,
                          kWarpgroupRows, true);
  }
  VIT_DEVICE_METHOD Rows<T> of_out(const void* data, int64_t token) const {
    return rows_of_out<T>(p.common.problem.shape, data, line, token, kWarpgroupRows, true);
  }

  // Copies k and v, or q and the gradient of out, of the line.
  VIT_DEVICE_METHOD void copy(bool is_queries) const {
    const AttentionShape& shape = p.common.problem.shape;
    const Rows<T> one = qkv(is_queries ? kQuery : kKey, 0);
    const Rows<T> other = is_queries ? of_out(p.common.problem.d_out, 0) : qkv(kValue, 0);
    const LineCopy<T, kHead> copy = {{array(0), array(1)},
                                     {one.data, other.data},
                                     {one.stride, other.stride},
                                     static_cast<int>(shape.tokens),
                                     one.columns,
                                     p.threads};
    copy.start(0, p.lines.rows);
    commit_copies();
  }

  VIT_DEVICE_METHOD void write(Part part, int64_t token, const float (&sums)[kHead / 8][4],
                               float factor, int row) const {
    const AttentionGradientProblem& problem = p.common.problem;
    const Rows<T> rows = qkv(part, token);
    const float factors[2] = {factor, factor};
    store_rows<T, kHead>(
        sums, factors, rows,
        static_cast<T*>(problem.gradient) + offset_in_qkv(problem.shape, line, token, part), row);
  }

  // Computes d_q from k and v in the arrays, and delta.
  template <int kPieces>
  VIT_DEVICE_METHOD void of_queries() const {
    const AttentionGradientProblem& problem = p.common.problem;
    const int64_t tokens = problem.shape.tokens;
    const LineRows<T, kHead> keys = array(0), values = array(1);
    const int row = warp_index() % 4 * 16;  // of the warp in the tile
    const int step = p.threads / kWarpgroup;
#pragma unroll 1
    for (int tile = first_tile + warp_index() / 4; tile < last_tile; tile += step) {
      const int64_t token = int64_t{tile} * kWarpgroupRows;
      QueryWarpgroup<T, kHead> group;
      const Rows<T> queries = qkv(kQuery, token);
      group.start(queries, of_out(problem.d_out, token), of_out(problem.out, token),
                  statistics_of(problem.statistics, problem.shape, index) + token, tokens, row,
                  p.common.scales.of_queries);
      const bool has_rows = row < queries.rows;
      int first = 0;
#pragma unroll 1
      for (; first + 16 * kPieces <= p.lines.rows; first += 16 * kPieces) {
        group.template add_keys<kPieces>(keys, values, first, static_cast<int>(tokens) - first,
                                         has_rows, p.common.scales);
      }
      group.template add_keys<1>(keys, values, first, static_cast<int>(tokens) - first, has_rows,
                                 p.common.scales);
      write(kQuery, token, group.d_queries, p.common.scale, row);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int query = row + lane_index() / 4 + 8 * i;
        if (lane_index() % 4 != 0) continue;
        if (query < queries.rows) {
          p.common.delta[index * tokens + token + query] = group.delta[i];
        }
      }
    }
  }

  // Computes d_k and d_v from q and the gradient of out in the arrays.
  template <int kPieces>
  VIT_DEVICE_METHOD void of_keys(const LineStatistics& statistics) const {
    const LineRows<T, kHead> queries = array(0), d_out = array(1);
    const int tokens = static_cast<int>(p.common.problem.shape.tokens);
    const int row = warp_index() % 4 * 16;
    const int step = p.threads / kWarpgroup;
#pragma unroll 1
    for (int tile = first_tile + warp_index() / 4; tile < last_tile; tile += step) {
      const int64_t token = int64_t{tile} * kWarpgroupRows;
      KeyWarpgroup<T, kHead> group;
      const Rows<T> keys = qkv(kKey, token);
      group.start(keys, qkv(kValue, token), row, p.common.scales.of_queries);
      const bool has_rows = row < keys.rows;
      int first = 0;
#pragma unroll 1
      for (; first + 16 * kPieces <= p.lines.rows; first += 16 * kPieces) {
        group.template add_queries<kPieces>(queries, d_out, statistics, first, tokens - first,
                                            has_rows, p.common.scales);
      }
      group.template add_queries<1>(queries, d_out, statistics, first, tokens - first, has_rows,
                                    p.common.scales);
      write(kKey, token, group.d_keys, p.common.scale, row);
      write(kValue, token, group.d_values, 1, row);
    }
  }

  // Reads the statistics of forward, and delta from the scratch memory.
  VIT_DEVICE_METHOD void read_statistics(const LineStatistics& to) const {
    const AttentionGradientProblem& problem = p.common.problem;
    const int64_t tokens = problem.shape.tokens;
    const float* const from = statistics_of(problem.statistics, problem.shape, index);
    for (int i = thread_index(); i < p.lines.rows; i += p.threads) {
      const bool exists = i < tokens;
      to.of(0)[i] = exists ? from[i] : LineStatistics::value(0);
      to.of(1)[i] = exists ? from[tokens + i] : LineStatistics::value(1);
      to.of(2)[i] = exists ? p.common.delta[index * tokens + i] : LineStatistics::value(2);
    }
  }

  VIT_DEVICE_METHOD void wait() const {
    wait_for_copies<0>();
    publish_to_products();
    sync_block();
  }
};

// Computes d_q and delta.
template <class T, int kHead>
VIT_KERNEL(kWarpgroup* kQueryWarpgroups<kHead>, 1, query_gradients_warpgroup,
           const BackwardWarpgroupParameters p) {
  if constexpr (kHasWarpgroups) {
    const LineGradients<T, kHead> gradients(p);
    gradients.copy(false);
    gradients.wait();
    gradients.template of_queries<4>();
  }
}

// Computes d_k and d_v.
template <class T, int kHead>
VIT_KERNEL(kWarpgroup* kKeyWarpgroups, 1, key_gradients_warpgroup,
           const BackwardWarpgroupParameters p) {
  if constexpr (kHasWarpgroups) {
    const LineGradients<T, kHead> gradients(p);
    gradients.copy(true);
    const LineStatistics statistics = gradients.statistics();
    gradients.read_statistics(statistics);
    gradients.wait();
    gradients.template of_keys<4>(statistics);
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_WARPGROUP_H_
