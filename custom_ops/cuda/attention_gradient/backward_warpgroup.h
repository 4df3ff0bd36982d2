// The gradients of q, k and v with the products of warpgroups. As in backward_tensor.h, a warpgroup
// owns 64 queries and visits all keys, or owns 64 keys and visits all queries; so every gradient is
// written once and its sum has a fixed order. What it visits reaches it as a stream.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_WARPGROUP_H_
#define CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_WARPGROUP_H_

#include "custom_ops/cuda/attention_gradient/logit_gradients.h"
#include "custom_ops/cuda/attention/line_stream.h"

namespace vit {

struct BackwardWarpgroupParameters {
  GradientParameters common;
  StreamGeometry stream;
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
      // Behind the last query, weights are 0.
      largest[i] = exists ? statistics[query] : 0;
      log2_total[i] = exists ? statistics[tokens + query] : infinity();
    }
    d_out.multiply_rows(result, delta);
    queries.arrange();
    d_out.arrange();
    if (factor != 1) queries.scale(factor);
#pragma unroll
    for (auto& tile : d_queries) tile[0] = tile[1] = tile[2] = tile[3] = 0;
  }

  // Adds 16 kPieces keys, of which `count` exist.
  template <int kPieces>
  VIT_DEVICE_METHOD void add_keys(const Section<T, kHead>& section, int count, bool has_rows,
                                  const GradientScales& scales) {
    float p[2 * kPieces][4], ds[2 * kPieces][4];
    uint32_t gradients[kPieces][4];
    begin_products();
    start_row_products<kPieces>(queries, section.rows[0], p);
    start_row_products<kPieces>(d_out, section.rows[1], ds);
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
    start_weighted_rows<kPieces>(gradients, section.rows[0], d_queries, true);
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

  // Adds 16 kPieces queries, of which `count` exist, with their statistics and delta.
  template <int kPieces>
  VIT_DEVICE_METHOD void add_queries(const Section<T, kHead>& section, int count, bool has_rows,
                                     const GradientScales& scales) {
    float p[2 * kPieces][4], ds[2 * kPieces][4];
    uint32_t weights[kPieces][4], gradients[kPieces][4];
    begin_products();
    start_row_products<kPieces>(keys, section.rows[0], p);
    start_row_products<kPieces>(values, section.rows[1], ds);
    wait_for_products();
    pin(p);
    pin(ds);
    if (has_rows) {
      const float* const numbers = section.numbers + lane_index() % 4 * 2;
#pragma unroll
      for (int n = 0; n < 2 * kPieces; ++n) {
        float largest[2], log2_total[2], delta[2];
        load_pair(numbers + 8 * n, largest);
        load_pair(numbers + 8 * n + 16 * kPieces, log2_total);
        load_pair(numbers + 8 * n + 32 * kPieces, delta);
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
    start_weighted_rows<kPieces>(weights, section.rows[1], d_values, true);
    start_weighted_rows<kPieces>(gradients, section.rows[0], d_keys, true);
    wait_for_products();
    pin(d_values);
    pin(d_keys);
  }
};

// 64 tokens of a line.
template <class T, int kHead>
struct GradientTile {
  const AttentionGradientProblem& problem;
  Line line;
  int64_t token;
  int row = warp_index() % 4 * 16;  // of the warp in the tile

  VIT_DEVICE_METHOD GradientTile(const BackwardWarpgroupParameters& p, const Line& of_tile,
                                 int tile)
      : problem(p.common.problem), line(of_tile), token(int64_t{tile} * kWarpgroupRows) {}

  VIT_DEVICE_METHOD Rows<T> qkv(Part part) const {
    return rows_of_qkv<T>(problem.shape, problem.qkv, line, part, token, kWarpgroupRows, true);
  }
  VIT_DEVICE_METHOD Rows<T> of_out(const void* data) const {
    return rows_of_out<T>(problem.shape, data, line, token, kWarpgroupRows, true);
  }
  VIT_DEVICE_METHOD void write(Part part, const float (&sums)[kHead / 8][4], float factor) const {
    const Rows<T> rows = qkv(part);
    const float factors[2] = {factor, factor};
    store_rows<T, kHead>(
        sums, factors, rows,
        static_cast<T*>(problem.gradient) + offset_in_qkv(problem.shape, line, token, part), row);
  }
};

// Computes d_q and delta.
template <class T, int kHead>
VIT_KERNEL((kQueryGroups<kHead> + 1) * kWarpgroup, 1, query_gradients_warpgroup,
           const BackwardWarpgroupParameters p) {
  if constexpr (kHasWarpgroups) {
    using Gradients = GradientTile<T, kHead>;
    const int tokens = static_cast<int>(p.common.problem.shape.tokens);
    const LineStream<T, kHead, BackwardRows, 0, kQueryGroups<kHead>> stream(p.stream);
    const auto copy = [&] {
      stream.copy([&](int64_t line) {
        const Gradients of(p, stream.line_at(line), 0);
        const Rows<T> keys = of.qkv(kKey), values = of.qkv(kValue);
        return LineSource<T>{
            {keys.data, values.data}, {keys.stride, keys.stride}, tokens, keys.columns, {}};
      });
    };
    const auto multiply = [&](int number) {
      if (number >= stream.groups) return;
      QueryWarpgroup<T, kHead> group;
      stream.for_tiles(number, [&](int64_t line, int tile, const RingPlace& begin, bool is_last) {
        const Gradients of(p, stream.line_at(line), tile);
        const Rows<T> queries = of.qkv(kQuery);
        group.start(queries, of.of_out(of.problem.d_out), of.of_out(of.problem.out),
                    statistics_of(of.problem.statistics, of.problem.shape, line) + of.token, tokens,
                    of.row, p.common.scales.of_queries);
        stream.for_sections(begin, [&](auto rows, int first, const RingPlace& place) {
          constexpr int kRows = decltype(rows)::value;
          group.template add_keys<kRows / 16>(stream.template get<kRows>(place), tokens - first,
                                              of.row < queries.rows, p.common.scales);
          if (is_last) stream.release(place.slot);
        });
        of.write(kQuery, group.d_queries, p.common.scale);
        float* const delta = p.common.delta + line * tokens + of.token;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int query = of.row + lane_index() / 4 + 8 * i;
          if (lane_index() % 4 == 0 && query < queries.rows) delta[query] = group.delta[i];
        }
      });
    };
    divide_warpgroups<kQueryGroups<kHead>>(copy, multiply);
  }
}

// Computes d_k and d_v.
template <class T, int kHead>
VIT_KERNEL((kKeyGroups + 1) * kWarpgroup, 1, key_gradients_warpgroup,
           const BackwardWarpgroupParameters p) {
  if constexpr (kHasWarpgroups) {
    using Gradients = GradientTile<T, kHead>;
    const int tokens = static_cast<int>(p.common.problem.shape.tokens);
    const LineStream<T, kHead, BackwardRows, 3, kKeyGroups> stream(p.stream);
    const auto copy = [&] {
      stream.copy([&](int64_t line) {
        const Gradients of(p, stream.line_at(line), 0);
        const Rows<T> queries = of.qkv(kQuery), d_out = of.of_out(of.problem.d_out);
        const float* const statistics =
            statistics_of(of.problem.statistics, of.problem.shape, line);
        return LineSource<T>{{queries.data, d_out.data},
                             {queries.stride, d_out.stride},
                             tokens,
                             queries.columns,
                             {statistics, statistics + tokens, p.common.delta + line * tokens}};
      });
    };
    const auto multiply = [&](int number) {
      if (number >= stream.groups) return;
      KeyWarpgroup<T, kHead> group;
      stream.for_tiles(number, [&](int64_t line, int tile, const RingPlace& begin, bool is_last) {
        const Gradients of(p, stream.line_at(line), tile);
        const Rows<T> keys = of.qkv(kKey);
        group.start(keys, of.qkv(kValue), of.row, p.common.scales.of_queries);
        stream.for_sections(begin, [&](auto rows, int first, const RingPlace& place) {
          constexpr int kRows = decltype(rows)::value;
          group.template add_queries<kRows / 16>(stream.template get<kRows>(place), tokens - first,
                                                 of.row < keys.rows, p.common.scales);
          if (is_last) stream.release(place.slot);
        });
        of.write(kKey, group.d_keys, p.common.scale);
        of.write(kValue, group.d_values, 1);
      });
    };
    divide_warpgroups<kKeyGroups>(copy, multiply);
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_WARPGROUP_H_
