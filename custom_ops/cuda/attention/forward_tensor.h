// Attention forward on tensor cores (Dao, 2023, FlashAttention-2): a warp keeps its queries, their
// running softmax and their sums in registers, while all warps of the block go through the keys and
// values of the line in shared memory.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_FORWARD_TENSOR_H_
#define CUSTOM_OPS_CUDA_ATTENTION_FORWARD_TENSOR_H_

#include "custom_ops/cuda/attention/tensor_logits.h"

namespace vit {

struct ForwardTensorParameters {
  AttentionForwardProblem problem;
  KernelScales scales;
  // Numbers that the kernel would have to compute from the problem.
  int tokens, query_tiles;  // of a line
  int threads;  // of the block
  int64_t stride, width;  // elements of qkv between tokens, and between q, k and v
  bool is_qkv_aligned, is_out_aligned;
};

// 32 queries per warp: each operand that is read from shared memory serves two products, because
// reading would take longer than multiplying otherwise. With heads of 128 elements the registers
// suffice for 16.
template <class T, int kSize>
struct ForwardWarp {
  static constexpr int kRowTiles = kSize == 128 ? 1 : 2, kQueries = 16 * kRowTiles;
  static constexpr int kKeys = kForwardKeys<kSize>;
  static constexpr int kRows = 2 * kRowTiles, kColumnTiles = kSize / 8;

  TensorLogits<T, kSize, kRowTiles, kKeys> logits;
  float sums[kRowTiles][kColumnTiles][4];  // of values, in the layout of the logits
  // Per row. `totals` cover only the keys of this thread until finish_totals.
  float maxima[kRows], totals[kRows];
  int open;

  VIT_DEVICE_METHOD void clear() {
#pragma unroll
    for (auto& of_rows : sums) {
#pragma unroll
      for (auto& of_columns : of_rows) {
#pragma unroll
        for (float& sum : of_columns) sum = 0;
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      maxima[i] = -infinity();
      totals[i] = 0;
    }
    open = 0;
  }

  // Replaces the logits by weights exp2((logit - maximum) * factor), and rescales totals and sums
  // to the new maxima (the running softmax).
  template <bool kIsLast>
  VIT_DEVICE_METHOD void weigh(int count, float factor) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float highest = maxima[i];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        highest = fmaxf(highest, fmaxf(logits.at(i, n, 0), logits.at(i, n, 1)));
      }
      highest = fmaxf(highest, shuffle_xor(highest, 1));
      highest = fmaxf(highest, shuffle_xor(highest, 2));
      // In a row of -inf only, 0 keeps the weights at 0 instead of NaN.
      const float shift = highest == -infinity() ? 0 : highest;
      const float rescale = fast_power_of_two((maxima[i] - shift) * factor);
      maxima[i] = highest;
      float total = totals[i] * rescale;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
        if (kIsLast && n % 2 == 0 && 8 * n >= count) break;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float weight = fast_power_of_two((logits.at(i, n, j) - shift) * factor);
          logits.at(i, n, j) = weight;
          total += weight;
        }
      }
      totals[i] = total;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) sums[i / 2][n][i % 2 * 2 + j] *= rescale;
      }
    }
  }

  // sums += weights * values.
  template <bool kIsLast>
  VIT_DEVICE_METHOD void add_values(const Tile<T, kKeys, kSize>& values, int count) {
#pragma unroll
    for (int k = 0; k < kKeys / 8; k += 2) {
      if (kIsLast && 8 * k >= count) break;
      uint32_t weights[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const auto& pair = logits.values[m][k + i / 2];
          weights[m][i] = packed<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; n += 2) {
        uint32_t b[4];
        values.load_b(8 * k, 8 * n, b);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add<T>(weights[m], b[0], b[1], sums[m][n]);
          multiply_add<T>(weights[m], b[2], b[3], sums[m][n + 1]);
        }
      }
    }
  }

  // A tile of keys; from there on `count` exist. `bias`: see TensorLogits::add_bias.
  template <bool kHasBias, bool kIsLast>
  VIT_DEVICE_METHOD void add_keys(const Tile<T, kKeys, kSize>& keys,
                                  const Tile<T, kKeys, kSize>& values, int count,
                                  const ForwardTensorParameters& p, const float* bias, int rows) {
    logits.template multiply<kIsLast>(keys, count);
    if constexpr (kHasBias) {
      logits.add_bias(bias, p.problem.bias, p.scales.of_products, rows, count, open);
    }
    weigh<kIsLast>(count, p.scales.of_exponents);
    add_values<kIsLast>(values, count);
  }

  // Adds the totals of the threads of a row, writes the statistics of the rows that exist, and
  // divides the sums.
  template <bool kHasBias>
  VIT_DEVICE_METHOD void finish(float* statistics, int64_t tokens, int rows, float of_largest) {
    if constexpr (kHasBias) {
      open |= shuffle_xor(open, 1);
      open |= shuffle_xor(open, 2);
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float total = totals[i];
      total += shuffle_xor(total, 1);
      total += shuffle_xor(total, 2);
      const bool has_keys = !kHasBias || open >> i & 1;
      if (lane_index() % 4 == 0 && logits.row(i) < rows) {
        write_statistics(statistics, tokens, logits.row(i), has_keys, maxima[i] * of_largest,
                         total);
      }
      const float inverse = 1 / total;
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& sum = sums[i / 2][n][i % 2 * 2 + j];
          // The sum of a query without keys may be NaN.
          sum = has_keys ? sum * inverse : 0;
        }
      }
    }
  }

  // Writes the sums to rows of a tile in shared memory, from `row` on.
  template <int kTileRows>
  VIT_DEVICE_METHOD void store(const Tile<T, kTileRows, kSize>& tile, int row) const {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        const float* pair = &sums[i / 2][n][i % 2 * 2];
        store_pair(tile.at(row + logits.row(i), logits.column(n)), packed<T>(pair[0], pair[1]));
      }
    }
  }
};

// Starts to fill tiles with the keys from number `first` on and with their values. `data`: the
// first of these keys.
template <class T, int kSize>
VIT_DEVICE void fill_keys_and_values(T* tiles, const T* data, int first,
                                     const ForwardTensorParameters& p) {
  constexpr int kKeys = kForwardKeys<kSize>;
  using KeyTile = Tile<T, kKeys, kSize>;
  const int left = p.tokens - first, count = left < kKeys ? left : kKeys;
  Rows<T> rows = {data,
                  p.stride,
                  count,
                  used_rows(count),
                  static_cast<int>(p.problem.shape.head_size),
                  p.is_qkv_aligned};
  const KeyTile key_tile{tiles};
  fill(key_tile, rows, p.threads);
  rows.data += p.width;  // v follows k
  fill(KeyTile{key_tile.at(kKeys, 0)}, rows, p.threads);
}

template <class T, int kSize, bool kHasBias>
VIT_KERNEL((kSize == 128 ? 256 : 128), (kSize == 128 ? 1 : 2), attention_forward_tensor,
           const ForwardTensorParameters p) {
  using Warp = ForwardWarp<T, kSize>;
  constexpr int kKeys = Warp::kKeys;
  using KeyTile = Tile<T, kKeys, kSize>;
  using QueryTile = Tile<T, 128, kSize>;
  // Two tiles of keys and of values: while the warps use one of each, the next arrive in the other.
  // The queries pass through the second ones, the output through the first ones.
  T* const shared = reinterpret_cast<T*>(shared_memory());
  constexpr int kTile = static_cast<int>(KeyTile::kBytes) / 2;
  const AttentionShape& shape = p.problem.shape;
  const auto block = static_cast<int>(block_index());
  const int index = block / p.query_tiles;
  const Line line = line_of(shape, index);
  const int queries = p.threads / kWarp * Warp::kQueries;  // of the block
  const int first = block % p.query_tiles * queries;
  const int row = thread_index() / kWarp * Warp::kQueries;  // of the warp in the block
  // The rows of the warp that exist; without any it is idle.
  const int rows = rows_from(shape, first + row, Warp::kQueries);

  const T* keys = static_cast<const T*>(p.problem.qkv) + offset_in_qkv(shape, line, 0, kKey);
  const QueryTile query_tile{shared + 2 * kTile};
  fill(query_tile,
       rows_of_qkv<T>(shape, p.problem.qkv, line, kQuery, first, queries, p.is_qkv_aligned),
       p.threads);
  fill_keys_and_values<T, kSize>(shared, keys, 0, p);
  commit_copies();
  const float* bias = bias_of(p.problem.bias, line);
  if constexpr (kHasBias) bias += (first + row) * p.problem.bias.query_stride;

  Warp warp;
  warp.clear();
  wait_for_copies<0>();
  sync_block();
  warp.logits.load_queries(query_tile, row, p.scales.of_queries);
  for (int key = 0, tile = 0; key < p.tokens; key += kKeys, tile ^= 2) {
    if (key > 0) wait_for_copies<0>();
    // The tiles that arrived are there for all warps, and all warps are done with the others.
    sync_block();
    const int left = p.tokens - key;
    if (left > kKeys) {
      keys += kKeys * p.stride;
      fill_keys_and_values<T, kSize>(shared + (tile ^ 2) * kTile, keys, key + kKeys, p);
      commit_copies();
    }
    if (rows == 0) continue;
    const KeyTile k{shared + tile * kTile}, v{shared + tile * kTile + kTile};
    if constexpr (kHasBias) {
      warp.template add_keys<true, true>(k, v, left, p, bias, rows);
      bias += kKeys * p.problem.bias.key_stride;
    } else if (left >= kKeys) {
      warp.template add_keys<false, false>(k, v, left, p, bias, rows);
    } else {
      warp.template add_keys<false, true>(k, v, left, p, bias, rows);
    }
  }
  sync_block();
  if (rows == 0) return;
  float* statistics = statistics_of(p.problem.statistics, shape, index) + first + row;
  warp.template finish<kHasBias>(statistics, shape.tokens, rows, p.scales.of_largest);
  warp.store(QueryTile{shared}, row);
  sync_warp();
  const Rows<T> out =
      rows_of_out<T>(shape, p.problem.out, line, first + row, Warp::kQueries, p.is_out_aligned);
  copy_rows(QueryTile{shared}, row, out,
            static_cast<T*>(p.problem.out) + offset_in_out(shape, line, first + row));
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_FORWARD_TENSOR_H_
