// Summaries of the attention weights: custom_ops/attention.py defines them. Every block computes
// the logits of 64 queries again (of query 0 alone, if only the class row is wanted), as attention
// forward did, and takes the weights from the statistics.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_TAPS_H_
#define CUSTOM_OPS_CUDA_ATTENTION_TAPS_H_

#include "custom_ops/cuda/attention/tensor_logits.h"

namespace vit {

struct TapsParameters {
  AttentionTapsProblem problem;
  KernelScales scales;
  uint32_t query_tiles;  // of a line
  bool is_aligned;
  float* sums;  // [lines, query_tiles, 2], of the distances and the entropies; null if not wanted
};

// A query, its statistics, and its place on the grid; not on the grid in the prefix.
struct TapsQuery {
  float largest, log2_total;
  int row, column;
  bool exists, is_class_token, is_on_grid;
};

// The sums of a thread.
struct TapsSums {
  float distance, entropy;

  // The queries of a block of up to `count`.
  static VIT_DEVICE_METHOD int wanted(const TapsParameters& p, int count) {
    return p.sums ? count : 1;
  }

  static VIT_DEVICE_METHOD TapsQuery query_of(const TapsParameters& p, int64_t index, int64_t query,
                                              bool exists) {
    const AttentionTapsProblem& problem = p.problem;
    TapsQuery q = {0, 0, 0, 0, exists, query == 0, false};
    if (!q.exists) return q;
    const float* kept = statistics_of(problem.statistics, problem.shape, index);
    q.largest = kept[query] / p.scales.of_largest;  // exact: a power of two
    q.log2_total = kept[problem.shape.tokens + query];
    const auto columns = static_cast<int>(problem.columns);
    const auto place = static_cast<int>(query - first_on_grid(problem));
    q.is_on_grid = problem.distance && place >= 0;
    if (q.is_on_grid) {
      q.row = place / columns;
      q.column = place % columns;
    }
    return q;
  }

  static VIT_DEVICE_METHOD int64_t first_on_grid(const AttentionTapsProblem& problem) {
    return problem.shape.tokens - problem.rows * problem.columns;
  }

  // Adds a weight; `key` exists.
  VIT_DEVICE_METHOD void add(const TapsParameters& p, int64_t index, const TapsQuery& q,
                             int64_t key, float logit) {
    constexpr float kLn2 = 0.693147181f;
    if (!q.exists) return;
    const AttentionTapsProblem& problem = p.problem;
    const float exponent = (logit - q.largest) * p.scales.of_exponents - q.log2_total;
    // A query without keys has no weights, whatever its logits are.
    const bool has_keys = q.log2_total != infinity();
    const float weight = has_keys ? power_of_two(exponent) : 0.0f;
    if (problem.class_row && q.is_class_token) {
      static_cast<float*>(problem.class_row)[index * problem.shape.tokens + key] = weight;
    }
    // 0 log(0) counts as 0; the entropy is in nats.
    if (weight != 0) entropy += weight * exponent * -kLn2;
    const auto place = static_cast<int>(key - first_on_grid(problem));
    if (q.is_on_grid && place >= 0) {
      const auto columns = static_cast<int>(problem.columns);
      const auto down = static_cast<float>(q.row - place / columns);
      const auto across = static_cast<float>(q.column - place % columns);
      distance += weight * square_root(down * down + across * across);
    }
  }

  // Adds the sums of all threads of the block, always in the same order, and writes the sums of
  // query tile number `tile` over all lines. `shared` has 2 numbers per warp.
  VIT_DEVICE_METHOD void write(const TapsParameters& p, int64_t tile, int warps, float* shared) {
    if (!p.sums) return;
    for (int mask = 1; mask < kWarp; mask *= 2) {
      distance += shuffle_xor(distance, mask);
      entropy += shuffle_xor(entropy, mask);
    }
    if (lane_index() == 0) {
      shared[thread_index() / kWarp * 2] = distance;
      shared[thread_index() / kWarp * 2 + 1] = entropy;
    }
    sync_block();
    if (thread_index() >= 2) return;
    float total = 0;
    for (int i = 0; i < warps; ++i) total += shared[2 * i + thread_index()];
    p.sums[2 * tile + thread_index()] = total;
  }
};

// For all head sizes up to 128: the zeros behind smaller heads change no bit of the logits.
template <class T>
VIT_KERNEL(128, 2, attention_taps_tensor, const TapsParameters p) {
  constexpr int kWarps = 4, kSize = 128;
  using KeyTile = Tile<T, kKeysPerTile, kSize>;
  using Logits = TensorLogits<T, kSize, 1>;
  const KeyTile query_tile{reinterpret_cast<T*>(shared_memory())};
  const KeyTile key_tile{query_tile.at(kKeysPerTile, 0)};
  float* const warp_sums = reinterpret_cast<float*>(key_tile.at(kKeysPerTile, 0));
  const AttentionShape& shape = p.problem.shape;
  const auto block = static_cast<uint32_t>(block_index());
  const uint32_t index = block / p.query_tiles;
  const Line line = line_of(shape, index);
  const int64_t first = int64_t{block % p.query_tiles} * kKeysPerTile;
  const int first_of_warp = thread_index() / kWarp * 16;
  const Rows<T> of_block = rows_of_qkv<T>(shape, p.problem.qkv, line, kQuery, first,
                                          TapsSums::wanted(p, kKeysPerTile), p.is_aligned);
  fill<kWarps * kWarp>(query_tile, of_block);
  const int rows = of_block.rows - first_of_warp;  // a warp without rows only copies
  const float* bias = bias_of(p.problem.bias, line);
  if (bias) bias += (first + first_of_warp) * p.problem.bias.query_stride;

  TapsSums sums = {0, 0};
  TapsQuery queries[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    queries[i] =
        TapsSums::query_of(p, index, first + first_of_warp + Logits::row(i), Logits::row(i) < rows);
  }
  Logits logits;
  for (int64_t key = 0; key < shape.tokens; key += kKeysPerTile) {
    const Rows<T> keys =
        rows_of_qkv<T>(shape, p.problem.qkv, line, kKey, key, kKeysPerTile, p.is_aligned);
    fill<kWarps * kWarp>(key_tile, keys);
    commit_copies();
    wait_for_copies<0>();
    sync_block();
    if (rows > 0) {
      // Again for each tile: registers that keep them would spill.
      logits.load_queries(query_tile, first_of_warp, p.scales.of_queries);
      logits.template multiply<true>(key_tile, keys.rows);
      int open = 0;  // not used: the statistics tell which queries have keys
      if (bias) {
        logits.add_bias(bias, p.problem.bias, p.scales.of_products, rows, keys.rows, open);
        bias += kKeysPerTile * p.problem.bias.key_stride;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int n = 0; n < Logits::kKeyTiles; ++n) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            if (Logits::column(n) + j >= keys.rows) continue;
            sums.add(p, index, queries[i], key + Logits::column(n) + j, logits.at(i, n, j));
          }
        }
      }
    }
    sync_block();
  }
  sums.write(p, block, kWarps, warp_sums);
}

template <class T>
VIT_KERNEL(kScalarThreads, 2, attention_taps_scalar, const TapsParameters p) {
  using Product = ScalarTile;
  constexpr int kSize = Product::kSize, kPerThread = Product::kPerThread;
  float* const shared = reinterpret_cast<float*>(shared_memory());
  const AttentionShape& shape = p.problem.shape;
  const auto block = static_cast<uint32_t>(block_index());
  const uint32_t index = block / p.query_tiles;
  const Line line = line_of(shape, index);
  const int64_t first = int64_t{block % p.query_tiles} * kSize;
  const Rows<T> rows =
      rows_of_qkv<T>(shape, p.problem.qkv, line, kQuery, first, TapsSums::wanted(p, kSize), false);
  const float* bias = bias_of(p.problem.bias, line);
  if (bias) bias += first * p.problem.bias.query_stride;

  TapsSums sums = {0, 0};
  TapsQuery queries[kPerThread];
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    queries[i] = TapsSums::query_of(p, index, first + Product::row(i), Product::row(i) < rows.rows);
  }
  for (int64_t key = 0; key < shape.tokens; key += kSize) {
    const Rows<T> keys = rows_of_qkv<T>(shape, p.problem.qkv, line, kKey, key, kSize, false);
    ScalarLogits<T> logits;
    logits.multiply(rows, keys, p.scales.of_queries, shared);
    int open = 0;  // not used: the statistics tell which queries have keys
    logits.finish(bias, p.problem.bias, p.scales.of_products, rows.rows, keys.rows, open);
    if (bias) bias += kSize * p.problem.bias.key_stride;
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
#pragma unroll
      for (int j = 0; j < kPerThread; ++j) {
        if (Product::column(j) >= keys.rows) continue;
        sums.add(p, index, queries[i], key + Product::column(j), logits.tile.sums[i][j]);
      }
    }
  }
  sums.write(p, block, Product::kThreads / kWarp,
             shared + Product::kBytes / static_cast<int64_t>(sizeof(float)));
}

// Adds the sums of the query tiles of each line, in their order.
VIT_KERNEL(kScalarThreads, 1, attention_taps_sums, const TapsParameters p) {
  const AttentionTapsProblem& problem = p.problem;
  const AttentionShape& shape = problem.shape;
  const int64_t index = block_index() * kScalarThreads + thread_index();
  if (index >= shape.batch * shape.lines * shape.heads) return;
  float distance = 0, entropy = 0;
  for (uint32_t i = 0; i < p.query_tiles; ++i) {
    const float* of_tile = p.sums + 2 * (index * p.query_tiles + i);
    distance += of_tile[0];
    entropy += of_tile[1];
  }
  if (problem.distance) {
    const auto patches = static_cast<float>(problem.rows * problem.columns);
    static_cast<float*>(problem.distance)[index] = distance / patches;
  }
  if (problem.entropy) {
    const auto tokens = static_cast<float>(shape.tokens > 0 ? shape.tokens : 1);
    static_cast<float*>(problem.entropy)[index] = entropy / tokens;
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_TAPS_H_
