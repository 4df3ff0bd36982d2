// What the warps of the kernels of backward_tensor.h do: sums of gradients in registers, from tiles
// in shared memory.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_ROWS_H_
#define CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_ROWS_H_

#include "custom_ops/cuda/attention_gradient/logit_gradients.h"

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
VIT_DEVICE void write_gradient(const GradientParameters& p, const Line& line, Part part,
                               int64_t token, const float (&sums)[kTiles][kHead / 8][4],
                               float factor, const Tile<T, kRows, kHead>& shared, int row) {
  const int lane = lane_index();
  sync_warp();  // Other threads of the warp may still read these rows.
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
                                  const TokenTile<T, kHead>& values, const GradientScales& scales,
                                  const TileBias& bias) {
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
                                  const TileStatistics& statistics, const GradientScales& scales,
                                  const TileBias& bias) {
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
            return LogitPlace{query, key + i / 2 * 8, statistics.at(0, query),
                              statistics.at(1, query), statistics.at(2, query)};
          },
          p, ds);
      add_rows<T, kHead>(p, d_out, row, d_values);
      add_rows<T, kHead>(ds, queries, row, d_keys);
    }
  }

  VIT_DEVICE_METHOD void write(const GradientParameters& p, const Line& line, int64_t token,
                               const TokenTile<T, kHead>& shared_keys,
                               const TokenTile<T, kHead>& shared_values) const {
    write_gradient<T, kHead, 1>(p, line, kKey, token, d_keys, p.scale, shared_keys, first);
    write_gradient<T, kHead, 1>(p, line, kValue, token, d_values, 1, shared_values, first);
  }
};

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_ROWS_H_
