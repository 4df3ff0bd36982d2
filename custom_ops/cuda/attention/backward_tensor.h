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

// Where the threads of a block are.
struct Place {
  int64_t index;  // of the line
  Line line;
  int64_t first;  // token of the tile of the block
  VIT_DEVICE_METHOD Place(const AttentionShape& shape, int64_t tiles, int tokens)
      : index(block_index() / tiles),
        line(line_of(shape, index)),
        first(block_index() % tiles * tokens) {}
};

// Writes sums * factor to the rows of the warp in `gradient`, d_qkv, through the rows of `shared`
// from `row` on, which no other warp uses. `token`: of row 0.
template <class T, int kHead, int kTiles, int kRows>
VIT_DEVICE void write_gradient(const GradientParameters& p, const Line& line, Part part,
                               int64_t token, const float (&sums)[kTiles][kHead / 8][4],
                               float factor, const Tile<T, kRows, kHead>& shared, int row) {
  const int lane = lane_index();
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kHead / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        T* const at = shared.at(row + 16 * m + lane / 4 + 8 * i, 8 * n + lane % 4 * 2);
        const uint32_t pair =
            packed<T>(sums[m][n][2 * i] * factor, sums[m][n][2 * i + 1] * factor);
        store_words<1>(at, &pair);
      }
    }
  }
  sync_warp();
  const AttentionShape& shape = p.problem.shape;
  const int64_t stride = shape.token_stride * 3 * shape.heads * shape.head_size;
  const int rows = rows_from(shape, token + row, 16 * kTiles);
  const int columns = static_cast<int>(shape.head_size);
  T* const to =
      static_cast<T*>(p.problem.gradient) + offset_in_qkv(shape, line, token + row, part);
  const int step = p.is_aligned ? 8 : 1, steps = kHead / step;
#pragma unroll 1
  for (int i = lane; i < rows * steps; i += kWarp) {
    const int at = i / steps, column = i % steps * step;
    if (column >= columns) continue;
    const T* const from = shared.at(row + at, column);
    if (p.is_aligned) {
      uint32_t words[4];
      load_words<4>(from, words);
      store_words<4>(to + at * stride + column, words);
    } else {
      to[at * stride + column] = *from;
    }
  }
}

// The sums of d_q of a warp.
template <class T, int kHead, int kTiles>
struct QueryGradients {
  float sums[kTiles][kHead / 8][4] = {};

  VIT_DEVICE_METHOD void add_tile(const QueryRows<T, kHead, kTiles>& rows,
                                  const TokenTile<T, kHead>& keys,
                                  const TokenTile<T, kHead>& values, const Scales<float>& scales,
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
  RowOperand<T, kHead, 1> keys, values;
  float d_keys[1][kHead / 8][4] = {}, d_values[1][kHead / 8][4] = {};
  int first;  // row of the warp in the tile of keys

  VIT_DEVICE_METHOD void add_tile(const TokenTile<T, kHead>& queries,
                                  const TokenTile<T, kHead>& d_out,
                                  const TileStatistics& statistics, const Scales<float>& scales,
                                  const TileBias<float>& bias) {
    const int key = first + lane_index() / 4, column = lane_index() % 4 * 2;
#pragma unroll 1
    for (int row = 0; row < bias.queries; row += 16) {
      float p[1][2][4] = {}, ds[1][2][4] = {};
      add_products(keys, queries, row, p);
      add_products(values, d_out, row, ds);
      float kept[3][2][2];
#pragma unroll
      for (int which = 0; which < 3; ++which) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          kept[which][i / 2][i % 2] = statistics.at(which, row + column + i / 2 * 8 + i % 2);
        }
      }
      // Rows of keys that do not exist are not written.
      const bool is_whole = !bias.data && row + 16 <= bias.queries;
      to_gradients<1>(
          scales, bias, is_whole,
          [&](int, int n, int i) {
            return LogitPlace<float>{row + column + 8 * n + i % 2, key + i / 2 * 8,
                                     kept[0][n][i % 2], kept[1][n][i % 2], kept[2][n][i % 2]};
          },
          p, ds);
      add_rows<T, kHead>(p, d_out, row, d_values);
      add_rows<T, kHead>(ds, queries, row, d_keys);
    }
  }

  VIT_DEVICE_METHOD void write(const GradientParameters& p, const Line& line, int64_t token,
                               const TokenTile<T, kHead>& shared_keys,
                               const TokenTile<T, kHead>& shared_values) const {
    const float scale = static_cast<float>(p.problem.scale);
    write_gradient<T, kHead, 1>(p, line, kKey, token, d_keys, scale, shared_keys, first);
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

// Computes d_q and delta. A block owns kGradientQueries<kHead> queries of a line.
template <class T, int kHead>
VIT_KERNEL(kGradientThreads, 2) query_gradients(const GradientParameters p) {
  constexpr int kQueries = kGradientQueries<kHead>, kTiles = kQueries / 64;
  const AttentionGradientProblem& problem = p.problem;
  const AttentionShape& shape = problem.shape;
  const Place place(shape, p.query_tiles, kQueries);
  const Line& line = place.line;
  const Scales<float> scales(p.scales);

  // Queries and d_out pass through the memory of the keys and values.
  const auto first_rows = shared_tile<T, kHead, kQueries>(0);
  const auto second_rows = shared_tile<T, kHead, kQueries>(1);
  fill<kGradientThreads>(first_rows, rows_of_qkv<T>(shape, problem.qkv, line, kQuery, place.first,
                                                    kQueries, p.is_aligned));
  fill<kGradientThreads>(second_rows, rows_of_out<T>(shape, problem.d_out, line, place.first,
                                                     kQueries, p.is_aligned));
  commit_copies();
  wait_for_copies<0>();
  sync_block();
  QueryRows<T, kHead, kTiles> rows;
  rows.first = thread_index() / kWarp * 16 * kTiles;
  rows.queries.load(first_rows, rows.first);
  rows.queries.scale(scales.elements);
  rows.d_out.load(second_rows, rows.first);
  sync_block();

  // Stage 1 is behind the rows of out.
  const auto fill_stage = [&](int stage, int64_t key) {
    fill<kGradientThreads>(shared_tile<T, kHead>(2 * stage),
                           rows_of_qkv<T>(shape, problem.qkv, line, kKey, key, kGradientTokens,
                                          p.is_aligned));
    fill<kGradientThreads>(shared_tile<T, kHead>(2 * stage + 1),
                           rows_of_qkv<T>(shape, problem.qkv, line, kValue, key, kGradientTokens,
                                          p.is_aligned));
    commit_copies();
  };
  fill<kGradientThreads>(first_rows, rows_of_out<T>(shape, problem.out, line, place.first, kQueries,
                                                    p.is_aligned));
  commit_copies();
  fill_stage(1, 0);
  wait_for_copies<1>();
  sync_block();
  rows.load_statistics(shape, statistics_of<float>(problem.statistics, shape, place.index),
                       place.first, first_rows);

  const bool has_rows = place.first + rows.first < shape.tokens;
  QueryGradients<T, kHead, kTiles> gradients;
  for (int64_t i = 0; i < p.key_tiles; ++i) {
    wait_for_copies<0>();
    sync_block();
    const int stage = i % 2 ? 0 : 1;
    const int64_t key = i * kGradientTokens;
    if (i + 1 < p.key_tiles) fill_stage(1 - stage, key + kGradientTokens);
    if (!has_rows) continue;
    const TileBias<float> bias(problem, line, place.first, key, kQueries, kGradientTokens);
    gradients.add_tile(rows, shared_tile<T, kHead>(2 * stage),
                       shared_tile<T, kHead>(2 * stage + 1), scales, bias);
  }
  sync_block();
  if (!has_rows) return;
  gradients.clear_closed(rows);
  write_gradient<T, kHead, kTiles>(p, line, kQuery, place.first, gradients.sums,
                                   static_cast<float>(problem.scale), first_rows, rows.first);
  float* const delta = static_cast<float*>(p.delta) + place.index * shape.tokens;
  for (int i = 0; i < 2 * kTiles; ++i) {
    const int64_t query = place.first + rows.first + lane_index() / 4 + 8 * i;
    if (lane_index() % 4 == 0 && query < shape.tokens) delta[query] = rows.delta[i / 2][i % 2];
  }
}

// Computes d_k and d_v. A block owns kGradientTokens keys of a line.
template <class T, int kHead>
VIT_KERNEL(kGradientThreads, 2) key_gradients(const GradientParameters p) {
  const AttentionGradientProblem& problem = p.problem;
  const AttentionShape& shape = problem.shape;
  const Place place(shape, p.key_tiles, kGradientTokens);
  const Line& line = place.line;
  const Scales<float> scales(p.scales);
  const float* const statistics = statistics_of<float>(problem.statistics, shape, place.index);
  const float* const delta = static_cast<const float*>(p.delta) + place.index * shape.tokens;
  const auto statistics_of_stage = [](int stage) {
    return TileStatistics{
        reinterpret_cast<float*>(shared_memory() + 4 * TokenTile<T, kHead>::kBytes) +
        stage * 3 * kGradientTokens};
  };
  const int thread = thread_index();
  // A thread reads the statistics of one query of a tile early, and stores them late.
  float kept[3];
  const auto read_statistics = [&](int64_t first) {
    if (thread >= kGradientTokens) return;
    const int64_t query = first + thread;
    const bool exists = query < shape.tokens;
    kept[0] = exists ? statistics[query] : 0;
    kept[1] = exists ? statistics[shape.tokens + query] : infinity<float>();
    kept[2] = exists ? delta[query] : 0;
  };
  const auto store_statistics = [&](int stage) {
    if (thread >= kGradientTokens) return;
    for (int i = 0; i < 3; ++i) statistics_of_stage(stage).at(i, thread) = kept[i];
  };
  const auto fill_stage = [&](int stage, int64_t query) {
    fill<kGradientThreads>(shared_tile<T, kHead>(2 * stage),
                           rows_of_qkv<T>(shape, problem.qkv, line, kQuery, query, kGradientTokens,
                                          p.is_aligned));
    fill<kGradientThreads>(shared_tile<T, kHead>(2 * stage + 1),
                           rows_of_out<T>(shape, problem.d_out, line, query, kGradientTokens,
                                          p.is_aligned));
    commit_copies();
  };

  // Keys and values pass through the memory of stage 1.
  for (Part part : {kKey, kValue}) {
    fill<kGradientThreads>(shared_tile<T, kHead>(part == kKey ? 2 : 3),
                           rows_of_qkv<T>(shape, problem.qkv, line, part, place.first,
                                          kGradientTokens, p.is_aligned));
  }
  fill_stage(0, 0);
  read_statistics(0);
  store_statistics(0);
  wait_for_copies<0>();
  sync_block();
  KeyRows<T, kHead> rows;
  rows.first = thread / kWarp * 16;
  rows.keys.load(shared_tile<T, kHead>(2), rows.first);
  rows.keys.scale(scales.elements);
  rows.values.load(shared_tile<T, kHead>(3), rows.first);

  const bool has_rows = place.first + rows.first < shape.tokens;
  for (int64_t i = 0; i < p.key_tiles; ++i) {
    wait_for_copies<0>();
    sync_block();
    const int stage = i % 2;
    const int64_t query = i * kGradientTokens;
    const bool has_next = i + 1 < p.key_tiles;
    if (has_next) {
      fill_stage(1 - stage, query + kGradientTokens);
      read_statistics(query + kGradientTokens);
    }
    const auto queries = shared_tile<T, kHead>(2 * stage);
    const auto d_out = shared_tile<T, kHead>(2 * stage + 1);
    const TileBias<float> bias(problem, line, query, place.first, kGradientTokens, kGradientTokens);
    if (bias.data) clear_closed_rows(queries, d_out, statistics_of_stage(stage));
    if (has_rows) rows.add_tile(queries, d_out, statistics_of_stage(stage), scales, bias);
    if (has_next) store_statistics(1 - stage);
  }
  sync_block();
  if (!has_rows) return;
  rows.write(p, line, place.first, shared_tile<T, kHead>(0), shared_tile<T, kHead>(1));
}

// Computes d_q, d_k and d_v of a line of up to kGradientTokens tokens. A block owns a line.
template <class T, int kHead>
VIT_KERNEL(kGradientThreads, 2) short_line_gradients(const GradientParameters p) {
  const AttentionGradientProblem& problem = p.problem;
  const AttentionShape& shape = problem.shape;
  const Place place(shape, 1, kGradientTokens);
  const Line& line = place.line;
  const Scales<float> scales(p.scales);
  const auto queries = shared_tile<T, kHead>(0), keys = shared_tile<T, kHead>(1);
  const auto values = shared_tile<T, kHead>(2), d_out = shared_tile<T, kHead>(3);
  const auto out = shared_tile<T, kHead>(4);
  const TileStatistics statistics = {
      reinterpret_cast<float*>(shared_memory() + 5 * TokenTile<T, kHead>::kBytes)};
  for (int part = 0; part < 3; ++part) {
    fill<kGradientThreads>(shared_tile<T, kHead>(part),
                           rows_of_qkv<T>(shape, problem.qkv, line, static_cast<Part>(part), 0,
                                          kGradientTokens, p.is_aligned));
  }
  for (int i = 0; i < 2; ++i) {
    fill<kGradientThreads>(shared_tile<T, kHead>(3 + i),
                           rows_of_out<T>(shape, i ? problem.out : problem.d_out, line, 0,
                                          kGradientTokens, p.is_aligned));
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
    rows.queries.scale(scales.elements);
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
      gradients.add_tile(rows, keys, values, scales, bias);
      gradients.clear_closed(rows);
      write_gradient<T, kHead, 1>(p, line, kQuery, 0, gradients.sums,
                                  static_cast<float>(problem.scale), out, first);
    }
  }
  sync_block();
  if (bias.data) clear_closed_rows(queries, d_out, statistics);
  if (!has_rows) return;
  KeyRows<T, kHead> rows;
  rows.first = first;
  rows.keys.load(keys, first);
  rows.keys.scale(scales.elements);
  rows.values.load(values, first);
  rows.add_tile(queries, d_out, statistics, scales, bias);
  rows.write(p, line, 0, keys, values);
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_BACKWARD_TENSOR_H_
