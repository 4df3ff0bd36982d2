// The gradients of q, k and v with tensor cores: see logit_gradients.h. Blocks of query_gradients
// own queries and visit all keys; they also store delta, which blocks of key_gradients read, which
// own keys and visit all queries. So logits are computed twice, but every gradient is written once
// and its sum has a fixed order. short_line_gradients does both, for lines of a single tile.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_BACKWARD_TENSOR_H_
#define CUSTOM_OPS_CUDA_ATTENTION_BACKWARD_TENSOR_H_

#include "custom_ops/cuda/attention/logit_gradients.h"

namespace vit {

template <class T, int kHead>
using TokenTile = Tile<T, kGradientTokens, kHead>;

// Tile number `index` of the shared memory of the block.
template <class T, int kHead, int kRows = kGradientTokens>
VIT_DEVICE Tile<T, kRows, kHead> shared_tile(int index) {
  using Shared = Tile<T, kRows, kHead>;
  return Shared{reinterpret_cast<T*>(shared_memory() + index * Shared::kBytes)};
}

// The tile of a block: blocks are numbered by lines, slowest, and tiles.
struct BlockPlace {
  uint32_t index;  // of the line
  Line line;
  int64_t first;  // token
  VIT_DEVICE_METHOD BlockPlace(const AttentionShape& shape, uint32_t tiles, int tokens) {
    const auto block = static_cast<uint32_t>(block_index());
    index = block / tiles;
    line = line_of(shape, index);
    first = int64_t{block % tiles} * tokens;
  }
};

// Writes sums * factor to the rows of the warp in `gradient`, d_qkv, through the rows of `shared`
// from `row` on, which no other warp uses. `token`: of row 0.
template <class T, int kHead, int kTiles, int kRows>
VIT_DEVICE void write_gradient(const GradientParameters<float>& p, const Line& line, Part part,
                               int64_t token, const float (&sums)[kTiles][kHead / 8][4],
                               float factor, const Tile<T, kRows, kHead>& shared, int row) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kHead / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* const pair = &sums[m][n][2 * i];
        store_pair(shared.at(row + 16 * m + lane / 4 + 8 * i, 8 * n + lane % 4 * 2),
                   packed<T>(pair[0] * factor, pair[1] * factor));
      }
    }
  }
  sync_warp();
  const AttentionShape& shape = p.problem.shape;
  const Rows<T> rows = rows_of_qkv<T>(shape, p.problem.gradient, line, part, token + row,
                                      16 * kTiles, p.is_gradient_aligned);
  copy_rows(shared, row, rows,
            static_cast<T*>(p.problem.gradient) + offset_in_qkv(shape, line, token + row, part));
}

// The sums of d_q of a warp.
template <class T, int kHead, int kTiles>
struct QueryGradients {
  float sums[kTiles][kHead / 8][4] = {};

  VIT_DEVICE_METHOD void add_tile(const QueryRows<T, kHead, kTiles>& rows,
                                  const TokenTile<T, kHead>& keys,
                                  const TokenTile<T, kHead>& values,
                                  const GradientScales<float>& scales,
                                  const TileBias<float>& bias) {
#pragma unroll 1
    for (int row = 0; row < bias.keys; row += 16) {
      float weights[kTiles][2][4] = {}, gradients[kTiles][2][4] = {};
      rows.gradients(keys, values, row, scales, bias, weights, gradients);
      add_rows<T, kHead>(gradients, keys, row, sums);
    }
  }

  // A query without keys has no gradient, even if its numbers are not finite.
  VIT_DEVICE_METHOD void clear_closed(const QueryRows<T, kHead, kTiles>& rows) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kHead / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (!rows.is_open(m, i / 2)) sums[m][n][i] = 0;
        }
      }
    }
  }
};

// The statistics of the queries of a tile, in shared memory.
struct TileStatistics {
  float* data;  // [3, kGradientTokens]: the largest logits, logarithms, and delta
  VIT_DEVICE_METHOD float& at(int which, int query) const {
    return data[which * kGradientTokens + query];
  }
};

// The keys of a warp as rows of transposed logits, and the sums of their gradients.
template <class T, int kHead>
struct KeyRows {
  // The registers do not hold the values of the largest heads, which are read again for each tile.
  static constexpr bool kKeepsValues = kHead < 128;

  RowOperand<T, kHead, 1> keys, values;
  TokenTile<T, kHead> values_tile;
  float d_keys[1][kHead / 8][4] = {}, d_values[1][kHead / 8][4] = {};
  int first;  // row of the warp in the tile of keys

  VIT_DEVICE_METHOD void load(const TokenTile<T, kHead>& from_keys,
                              const TokenTile<T, kHead>& from_values, int row, float of_queries) {
    first = row;
    keys.load(from_keys, row);
    keys.scale(of_queries);
    values_tile = from_values;
    if (kKeepsValues) values.load(from_values, row);
  }

  VIT_DEVICE_METHOD void add_tile(const TokenTile<T, kHead>& queries,
                                  const TokenTile<T, kHead>& d_out,
                                  const TileStatistics& statistics,
                                  const GradientScales<float>& scales,
                                  const TileBias<float>& bias) {
    const int key = first + lane_index() / 4, column = lane_index() % 4 * 2;
#pragma unroll 1
    for (int row = 0; row < bias.queries; row += 16) {
      float p[1][2][4] = {}, ds[1][2][4] = {};
      add_products(keys, queries, row, p);
      if constexpr (kKeepsValues) {
        add_products(values, d_out, row, ds);
      } else {
        add_products_of_tile(values_tile, first, d_out, row, ds);
      }
      // Rows of keys that do not exist are not written.
      const bool is_whole = !bias.data && row + 16 <= bias.queries;
      to_gradients<1>(
          scales, bias, is_whole,
          [&](int, int n, int i) {
            const int query = row + column + 8 * n + i % 2;
            return LogitPlace<float>{query, key + i / 2 * 8, statistics.at(0, query),
                                     statistics.at(1, query), statistics.at(2, query)};
          },
          p, ds);
      add_rows<T, kHead>(p, d_out, row, d_values);
      add_rows<T, kHead>(ds, queries, row, d_keys);
    }
  }

  VIT_DEVICE_METHOD void write(const GradientParameters<float>& p, const Line& line, int64_t token,
                               const TokenTile<T, kHead>& shared_keys,
                               const TokenTile<T, kHead>& shared_values) const {
    write_gradient<T, kHead, 1>(p, line, kKey, token, d_keys, p.scale, shared_keys, first);
    write_gradient<T, kHead, 1>(p, line, kValue, token, d_values, 1, shared_values, first);
  }
};

// With a bias queries may have no keys. Zeros in their rows keep 0 * Inf out of sums over queries.
// All threads of the block call it, when the tiles have been filled.
template <class T, int kHead>
VIT_DEVICE void clear_closed_rows(const TokenTile<T, kHead>& queries,
                                  const TokenTile<T, kHead>& d_out,
                                  const TileStatistics& statistics) {
  for (int i = thread_index(); i < kGradientTokens * kHead; i += kGradientThreads) {
    if (statistics.at(1, i / kHead) != infinity<float>()) continue;
    *queries.at(i / kHead, i % kHead) = *d_out.at(i / kHead, i % kHead) = rounded<T>(0.0f);
  }
  sync_block();
}

// Two arrays of rows that are read tile by tile into two tiles of shared memory. Strides are
// parameters of the kernel, so that no registers hold them.
template <class T, int kHead>
struct RowPair {
  const T *first, *second;  // the row of the next token

  // Starts to fill the tiles number 2 stage and 2 stage + 1 with the tokens from `token` on, and
  // goes on to the next. All threads of the block call it. kSecondIsOut: the second array has the
  // strides of out, not of qkv.
  template <bool kSecondIsOut>
  VIT_DEVICE_METHOD void fill_stage(const GradientParameters<float>& p, int64_t token, int stage,
                                    int threads) {
    const AttentionShape& shape = p.problem.shape;
    const int rows = rows_from(shape, token, kGradientTokens);
    const int columns = static_cast<int>(shape.head_size);
    const int64_t stride = kSecondIsOut ? p.out_stride : p.qkv_stride;
    fill(shared_tile<T, kHead>(2 * stage),
         Rows<T>{first, p.qkv_stride, rows, columns, p.is_qkv_aligned}, threads);
    fill(shared_tile<T, kHead>(2 * stage + 1),
         Rows<T>{second, stride, rows, columns, kSecondIsOut ? p.is_out_aligned : p.is_qkv_aligned},
         threads);
    commit_copies();
    first += kGradientTokens * p.qkv_stride;
    second += kGradientTokens * stride;
  }
};

// Computes d_q and delta. A block owns p.queries queries of a line.
template <class T, int kHead>
VIT_KERNEL(kGradientThreads, 2)
query_gradients(const GradientParameters<float> p) {
  constexpr int kTiles = kGradientQueries<kHead> / 16;
  constexpr int kQueries = kGradientThreads / kWarp * kGradientQueries<kHead>;
  const int threads = p.queries / kGradientQueries<kHead> * kWarp;
  const AttentionGradientProblem& problem = p.problem;
  const AttentionShape& shape = problem.shape;
  const BlockPlace place(shape, p.query_tiles, p.queries);
  const Line& line = place.line;

  // Queries and d_out pass through the memory of keys and values.
  const auto first_rows = shared_tile<T, kHead, kQueries>(0);
  const auto second_rows = shared_tile<T, kHead, kQueries>(1);
  fill(first_rows,
       rows_of_qkv<T>(shape, problem.qkv, line, kQuery, place.first, p.queries, p.is_qkv_aligned),
       threads);
  fill(second_rows,
       rows_of_out<T>(shape, problem.d_out, line, place.first, p.queries, p.is_out_aligned),
       threads);
  commit_copies();
  wait_for_copies<0>();
  sync_block();
  QueryRows<T, kHead, kTiles> rows;
  rows.first = thread_index() / kWarp * 16 * kTiles;
  rows.queries.load(first_rows, rows.first);
  rows.queries.scale(p.scales.of_queries);
  rows.d_out.load(second_rows, rows.first);
  sync_block();
  fill(first_rows,
       rows_of_out<T>(shape, problem.out, line, place.first, p.queries, p.is_out_aligned), threads);
  commit_copies();
  // Stage 1 is behind the rows of out.
  const T* const qkv = static_cast<const T*>(problem.qkv);
  RowPair<T, kHead> keys = {qkv + offset_in_qkv(shape, line, 0, kKey),
                            qkv + offset_in_qkv(shape, line, 0, kValue)};
  keys.template fill_stage<false>(p, 0, 1, threads);
  wait_for_copies<1>();
  sync_block();
  rows.load_statistics(shape, statistics_of<float>(problem.statistics, shape, place.index),
                       place.first, first_rows);

  const bool has_rows = place.first + rows.first < shape.tokens;
  TileBias<float> bias(problem, line, place.first, 0, p.queries, kGradientTokens);
  QueryGradients<T, kHead, kTiles> gradients;
  int stage = 1;
  for (int64_t key = 0; key < shape.tokens; key += kGradientTokens, stage ^= 1) {
    wait_for_copies<0>();
    // The tiles that arrived are there for all warps, and all warps are done with the others.
    sync_block();
    if (key + kGradientTokens < shape.tokens) {
      keys.template fill_stage<false>(p, key + kGradientTokens, 1 - stage, threads);
    }
    if (!has_rows) continue;
    gradients.add_tile(rows, shared_tile<T, kHead>(2 * stage), shared_tile<T, kHead>(2 * stage + 1),
                       p.scales, bias);
    bias.advance_keys(shape, key + kGradientTokens);
  }
  sync_block();
  if (!has_rows) return;
  gradients.clear_closed(rows);
  write_gradient<T, kHead, kTiles>(p, line, kQuery, place.first, gradients.sums, p.scale,
                                   first_rows, rows.first);
  float* const delta = p.delta + place.index * shape.tokens;
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int64_t query = place.first + rows.first + lane_index() / 4 + 8 * i;
    if (lane_index() % 4 == 0 && query < shape.tokens) delta[query] = rows.delta[i / 2][i % 2];
  }
}

// Reads the statistics of one query of a tile per thread early, and stores them late.
struct StatisticsReader {
  const float *statistics, *delta;  // of the line
  float kept[3];

  VIT_DEVICE_METHOD void read(const AttentionShape& shape, int64_t first) {
    if (thread_index() >= kGradientTokens) return;
    const int64_t query = first + thread_index();
    const bool exists = query < shape.tokens;
    kept[0] = exists ? statistics[query] : 0;
    kept[1] = exists ? statistics[shape.tokens + query] : infinity<float>();
    kept[2] = exists ? delta[query] : 0;
  }
  VIT_DEVICE_METHOD void store(const TileStatistics& to) const {
    if (thread_index() >= kGradientTokens) return;
#pragma unroll
    for (int i = 0; i < 3; ++i) to.at(i, thread_index()) = kept[i];
  }
};

// Computes d_k and d_v. A block owns kGradientTokens keys of a line.
template <class T, int kHead>
VIT_KERNEL(kGradientThreads, 2)
key_gradients(const GradientParameters<float> p) {
  constexpr int kKeptTiles = KeyRows<T, kHead>::kKeepsValues ? 4 : 5;
  const AttentionGradientProblem& problem = p.problem;
  const AttentionShape& shape = problem.shape;
  const BlockPlace place(shape, p.key_tiles, kGradientTokens);
  const Line& line = place.line;
  float* const shared_statistics =
      reinterpret_cast<float*>(shared_memory() + kKeptTiles * TokenTile<T, kHead>::kBytes);
  StatisticsReader reader = {statistics_of<float>(problem.statistics, shape, place.index),
                             p.delta + place.index * shape.tokens,
                             {}};
  RowPair<T, kHead> queries = {
      static_cast<const T*>(problem.qkv) + offset_in_qkv(shape, line, 0, kQuery),
      static_cast<const T*>(problem.d_out) + offset_in_out(shape, line, 0)};

  // Keys, and values if they are kept in registers, pass through the memory of stage 1.
  const auto keys = shared_tile<T, kHead>(2), values = shared_tile<T, kHead>(kKeptTiles - 1);
  fill(keys,
       rows_of_qkv<T>(shape, problem.qkv, line, kKey, place.first, kGradientTokens,
                      p.is_qkv_aligned),
       kGradientThreads);
  fill(values,
       rows_of_qkv<T>(shape, problem.qkv, line, kValue, place.first, kGradientTokens,
                      p.is_qkv_aligned),
       kGradientThreads);
  queries.template fill_stage<true>(p, 0, 0, kGradientThreads);
  reader.read(shape, 0);
  reader.store({shared_statistics});
  wait_for_copies<0>();
  sync_block();
  KeyRows<T, kHead> rows;
  rows.load(keys, values, thread_index() / kWarp * 16, p.scales.of_queries);

  const bool has_rows = place.first + rows.first < shape.tokens;
  TileBias<float> bias(problem, line, 0, place.first, kGradientTokens, kGradientTokens);
  int stage = 0;
  for (int64_t query = 0; query < shape.tokens; query += kGradientTokens, stage ^= 1) {
    wait_for_copies<0>();
    sync_block();
    const int64_t next = query + kGradientTokens;
    if (next < shape.tokens) {
      queries.template fill_stage<true>(p, next, 1 - stage, kGradientThreads);
      reader.read(shape, next);
    }
    const auto rows_of_q = shared_tile<T, kHead>(2 * stage);
    const auto rows_of_d_out = shared_tile<T, kHead>(2 * stage + 1);
    const TileStatistics statistics = {shared_statistics + stage * 3 * kGradientTokens};
    if (bias.data) clear_closed_rows(rows_of_q, rows_of_d_out, statistics);
    if (has_rows) rows.add_tile(rows_of_q, rows_of_d_out, statistics, p.scales, bias);
    bias.advance_queries(shape, next);
    if (next < shape.tokens) reader.store({shared_statistics + (1 - stage) * 3 * kGradientTokens});
  }
  sync_block();
  if (!has_rows) return;
  rows.write(p, line, place.first, shared_tile<T, kHead>(0), shared_tile<T, kHead>(1));
}

// Computes d_q, d_k and d_v of a line of up to kGradientTokens tokens. A block owns a line.
template <class T, int kHead>
VIT_KERNEL(kGradientThreads, 2)
short_line_gradients(const GradientParameters<float> p) {
  static_assert(KeyRows<T, kHead>::kKeepsValues);
  const AttentionGradientProblem& problem = p.problem;
  const AttentionShape& shape = problem.shape;
  const BlockPlace place(shape, 1, kGradientTokens);
  const Line& line = place.line;
  const auto queries = shared_tile<T, kHead>(0), keys = shared_tile<T, kHead>(1);
  const auto values = shared_tile<T, kHead>(2), d_out = shared_tile<T, kHead>(3);
  const auto out = shared_tile<T, kHead>(4);
  const TileStatistics statistics = {
      reinterpret_cast<float*>(shared_memory() + 5 * TokenTile<T, kHead>::kBytes)};
#pragma unroll 1
  for (int i = 0; i < 5; ++i) {
    fill(shared_tile<T, kHead>(i),
         i < 3 ? rows_of_qkv<T>(shape, problem.qkv, line, static_cast<Part>(i), 0, kGradientTokens,
                                p.is_qkv_aligned)
               : rows_of_out<T>(shape, i == 3 ? problem.d_out : problem.out, line, 0,
                                kGradientTokens, p.is_out_aligned),
         kGradientThreads);
  }
  commit_copies();
  wait_for_copies<0>();
  sync_block();

  const int first = thread_index() / kWarp * 16;
  const bool has_rows = first < shape.tokens;
  const TileBias<float> bias(problem, line, 0, 0, kGradientTokens, kGradientTokens);
  {
    QueryRows<T, kHead, 1> rows;
    rows.first = first;
    rows.queries.load(queries, first);
    rows.queries.scale(p.scales.of_queries);
    rows.d_out.load(d_out, first);
    rows.load_statistics(shape, statistics_of<float>(problem.statistics, shape, place.index), 0,
                         out);
    for (int i = 0; i < 2 && lane_index() % 4 == 0; ++i) {
      const int query = first + lane_index() / 4 + 8 * i;
      statistics.at(0, query) = rows.largest[0][i];
      statistics.at(1, query) = rows.log2_total[0][i];
      statistics.at(2, query) = rows.delta[0][i];
    }
    if (has_rows) {
      QueryGradients<T, kHead, 1> gradients;
      gradients.add_tile(rows, keys, values, p.scales, bias);
      gradients.clear_closed(rows);
      write_gradient<T, kHead, 1>(p, line, kQuery, 0, gradients.sums, p.scale, out, first);
    }
  }
  sync_block();
  if (bias.data) clear_closed_rows(queries, d_out, statistics);
  KeyRows<T, kHead> rows;
  rows.load(keys, values, first, p.scales.of_queries);
  if (!has_rows) return;
  rows.add_tile(queries, d_out, statistics, p.scales, bias);
  rows.write(p, line, 0, keys, values);
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_BACKWARD_TENSOR_H_
