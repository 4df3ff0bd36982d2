// The gradients of q, k and v with tensor cores: see logit_gradients.h. Blocks of query_gradients
// own queries and visit all keys; they also store delta, which blocks of key_gradients read, which
// own keys and visit all queries. So logits are computed twice, but every gradient is written once
// and its sum has a fixed order. short_line_gradients does both, for lines of a single tile.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_TENSOR_H_
#define CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_TENSOR_H_

#include "custom_ops/cuda/attention_gradient/backward_rows.h"

namespace vit {

// With a bias queries may have no keys. Zeros in their rows keep 0 * Inf out of sums over queries.
// All threads of the block call it, when the first `rows` rows of the tiles have been filled.
template <class T, int kHead>
VIT_DEVICE void clear_closed_rows(const TokenTile<T, kHead>& queries,
                                  const TokenTile<T, kHead>& d_out,
                                  const TileStatistics& statistics, int rows, int threads) {
  for (int row = thread_index() / kWarp; row < rows; row += threads / kWarp) {
    if (statistics.at(1, row) != infinity()) continue;
    for (int i = lane_index(); i < kHead; i += kWarp) {
      *queries.at(row, i) = *d_out.at(row, i) = rounded<T>(0.0f);
    }
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
  VIT_DEVICE_METHOD void fill_stage(const GradientParameters& p, int64_t token, int stage,
                                    int threads) {
    const AttentionShape& shape = p.problem.shape;
    const int rows = rows_from(shape, token, kGradientTokens);
    const int columns = static_cast<int>(shape.head_size);
    const int64_t stride = kSecondIsOut ? p.out_stride : p.qkv_stride;
    fill(shared_tile<T, kHead>(2 * stage),
         Rows<T>{first, p.qkv_stride, rows, kGradientTokens, columns, p.is_qkv_aligned}, threads);
    fill(shared_tile<T, kHead>(2 * stage + 1),
         Rows<T>{second, stride, rows, kGradientTokens, columns,
                 kSecondIsOut ? p.is_out_aligned : p.is_qkv_aligned},
         threads);
    commit_copies();
    first += kGradientTokens * p.qkv_stride;
    second += kGradientTokens * stride;
  }
};

// Computes d_q and delta. A block owns p.queries queries of a line.
template <class T, int kHead>
VIT_KERNEL(kGradientThreads, 2, query_gradients, const GradientParameters p) {
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
  rows.load_statistics(shape, statistics_of(problem.statistics, shape, place.index), place.first,
                       first_rows);

  const bool has_rows = place.first + rows.first < shape.tokens;
  TileBias bias(problem, line, place.first, 0, p.queries, kGradientTokens);
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
    kept[1] = exists ? statistics[shape.tokens + query] : infinity();
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
VIT_KERNEL(kGradientThreads, 2, key_gradients, const GradientParameters p) {
  constexpr int kKeptTiles = KeyRows<T, kHead>::kKeepsValues ? 4 : 5;
  const AttentionGradientProblem& problem = p.problem;
  const AttentionShape& shape = problem.shape;
  const BlockPlace place(shape, p.key_tiles, kGradientTokens);
  const Line& line = place.line;
  float* const shared_statistics =
      reinterpret_cast<float*>(shared_memory() + kKeptTiles * TokenTile<T, kHead>::kBytes);
  StatisticsReader reader = {statistics_of(problem.statistics, shape, place.index),
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
  TileBias bias(problem, line, 0, place.first, kGradientTokens, kGradientTokens);
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
    if (bias.data) {
      clear_closed_rows(rows_of_q, rows_of_d_out, statistics, kGradientTokens, kGradientThreads);
    }
    if (has_rows) rows.add_tile(rows_of_q, rows_of_d_out, statistics, p.scales, bias);
    bias.advance_queries(shape, next);
    if (next < shape.tokens) reader.store({shared_statistics + (1 - stage) * 3 * kGradientTokens});
  }
  sync_block();
  if (!has_rows) return;
  rows.write(p, line, place.first, shared_tile<T, kHead>(0), shared_tile<T, kHead>(1));
}

// Computes d_q, d_k and d_v of a line of up to 16 kWarps tokens. A block owns a line.
template <class T, int kHead, int kWarps>
VIT_KERNEL(kWarps* kWarp, kWarps == 3 ? 2 : 8 / kWarps, short_line_gradients,
           const GradientParameters p) {
  static_assert(KeyRows<T, kHead>::kKeepsValues);
  using Shared = TokenTile<T, kHead>;
  constexpr int kRows = 16 * kWarps, kThreads = kWarps * kWarp;
  const AttentionGradientProblem& problem = p.problem;
  const AttentionShape& shape = problem.shape;
  const BlockPlace place(shape, 1, kGradientTokens);
  const Line& line = place.line;
  const auto tile = [](int i) {
    return Shared{reinterpret_cast<T*>(shared_memory()) + i * kRows * Shared::kPitch};
  };
  const Shared queries = tile(0), keys = tile(1), values = tile(2), d_out = tile(3), out = tile(4);
  const TileStatistics statistics = {reinterpret_cast<float*>(tile(5).elements)};
#pragma unroll 1
  for (int i = 0; i < 5; ++i) {
    fill(tile(i),
         i < 3 ? rows_of_qkv<T>(shape, problem.qkv, line, static_cast<Part>(i), 0, kRows,
                                p.is_qkv_aligned)
               : rows_of_out<T>(shape, i == 3 ? problem.d_out : problem.out, line, 0, kRows,
                                p.is_out_aligned),
         kThreads);
  }
  commit_copies();
  wait_for_copies<0>();
  sync_block();

  const int first = thread_index() / kWarp * 16;
  const bool has_rows = first < shape.tokens;
  const TileBias bias(problem, line, 0, 0, kRows, kRows);
  {
    QueryRows<T, kHead, 1> rows;
    rows.first = first;
    rows.queries.load(queries, first);
    rows.queries.scale(p.scales.of_queries);
    rows.d_out.load(d_out, first);
    rows.load_statistics(shape, statistics_of(problem.statistics, shape, place.index), 0, out);
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
  if (bias.data) clear_closed_rows(queries, d_out, statistics, kRows, kThreads);
  if (!has_rows) return;
  KeyRows<T, kHead> rows;
  rows.load(keys, values, first, p.scales.of_queries);
  rows.add_tile(queries, d_out, statistics, p.scales, bias);
  rows.write(p, line, 0, keys, values);
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_TENSOR_H_
