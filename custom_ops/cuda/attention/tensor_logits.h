// Logits on tensor cores. Forward, gradients and taps multiply elements of 16 bits in the same
// order, 16 columns of q and k at a time, so that they get the same bits.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_TENSOR_LOGITS_H_
#define CUSTOM_OPS_CUDA_ATTENTION_TENSOR_LOGITS_H_

#include "custom_ops/cuda/attention/scalar_logits.h"

namespace vit {

// The logits of a warp: 16 * kRowTiles queries, whose q stay in registers, and kKeys keys.
// Of the tile of rows m, a thread holds the rows row(2 m) and row(2 m + 1), and of the keys
// [8 n, 8 n + 8) the two from column(n) on:
//   values[m][n]: (row(2 m), column(n)), the next column, (row(2 m + 1), column(n)), the next.
template <class T, int kSize, int kRowTiles, int kKeys = kKeysPerTile>
struct TensorLogits {
  static constexpr int kRows = 2 * kRowTiles, kSteps = kSize / 16, kKeyTiles = kKeys / 8;

  uint32_t queries[kRowTiles][kSteps][4];
  float values[kRowTiles][kKeyTiles][4];

  static VIT_DEVICE_METHOD int row(int i) { return i / 2 * 16 + i % 2 * 8 + lane_index() / 4; }
  static VIT_DEVICE_METHOD int column(int n) { return 8 * n + lane_index() % 4 * 2; }

  // Element j = 0 or 1 of the columns from column(n) on, in row i.
  VIT_DEVICE_METHOD float& at(int i, int n, int j) { return values[i / 2][n][i % 2 * 2 + j]; }

  template <int kTileRows>
  VIT_DEVICE_METHOD void load_queries(const Tile<T, kTileRows, kSize>& tile, int first,
                                      float factor) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int k = 0; k < kSteps; ++k) tile.load_a(first + 16 * m, 16 * k, queries[m][k]);
    }
    if (factor == 1) return;
#pragma unroll
    for (auto& of_tile : queries) {
#pragma unroll
      for (auto& of_step : of_tile) {
#pragma unroll
        for (uint32_t& pair : of_step) pair = scaled_pair<T>(pair, factor);
      }
    }
  }

  // values = q k^T for the keys of the tile. Of the last tile of a line, `count` keys exist: the
  // others get -inf, and groups of 16 without keys are not computed.
  template <bool kIsLast>
  VIT_DEVICE_METHOD void multiply(const Tile<T, kKeys, kSize>& keys, int count) {
#pragma unroll
    for (auto& of_rows : values) {
#pragma unroll
      for (auto& of_keys : of_rows) {
#pragma unroll
        for (float& value : of_keys) value = 0;
      }
    }
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 2) {
        if (kIsLast && 8 * n >= count) break;
        uint32_t b[4];
        keys.load_b_of_transposed(8 * n, 16 * k, b);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add<T>(queries[m][k], b[0], b[1], values[m][n]);
          multiply_add<T>(queries[m][k], b[2], b[3], values[m][n + 1]);
        }
      }
    }
    if constexpr (kIsLast) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int i = 0; i < 2 * kRows; ++i) {
          if (column(n) + i % 2 >= count) at(i / 2, n, i % 2) = -infinity();
        }
      }
    }
  }

  // values = values * scale + bias. `bias` belongs to the first row of the warp and the first key
  // of the tile; `rows` and `keys` from there on exist. Sets the bit i of `open` if row i has a
  // bias other than -inf.
  VIT_DEVICE_METHOD void add_bias(const float* bias, const AttentionBias& strides, float scale,
                                  int64_t rows, int keys, int& open) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (row(i) >= rows) continue;
      const float* of_row = bias + row(i) * strides.query_stride;
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          if (column(n) + j >= keys) continue;
          const float added = of_row[(column(n) + j) * strides.key_stride];
          at(i, n, j) = fused_product(at(i, n, j), scale, added);
          if (added != -infinity()) open |= 1 << i;
        }
      }
    }
  }
};

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_TENSOR_LOGITS_H_
