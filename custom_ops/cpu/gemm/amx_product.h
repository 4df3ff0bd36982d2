// Products with the tile registers of Intel AMX: see products.h.
#ifndef CUSTOM_OPS_CPU_GEMM_AMX_PRODUCT_H_
#define CUSTOM_OPS_CPU_GEMM_AMX_PRODUCT_H_

#include "custom_ops/cpu/gemm/products.h"

#if defined(__AMX_BF16__)

namespace vit {
namespace VIT_ISA {

// GCC 12 may move stores behind the instructions that load tiles and shapes, because it does not
// know that they read memory.
VIT_INLINE void finish_stores() { asm volatile("" ::: "memory"); }

// The shapes of the tile registers. Tiles 0 to 3 are sums of 2 x 2 tiles, 4 and 5 hold rows, 6 and
// 7 hold weights.
class AmxShapes {
 public:
  // `first` and `second`: the rows of the upper and lower tiles, at most 16.
  AmxShapes(int64_t first, int64_t second) {
    for (int i = 0; i < 8; ++i) {
      const int64_t rows = i >= 6 ? 16 : (i < 4 ? i >= 2 : i == 5) ? second : first;
      shapes_.rows[i] = static_cast<uint8_t>(rows);
      shapes_.row_bytes[i] = rows ? 64 : 0;
    }
    finish_stores();
    _tile_loadconfig(&shapes_);
  }

 private:
  struct {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } shapes_;
};

// bfloat16 weights and activations, 32 x 32 sums at a time.
struct AmxProduct {
  using Weight = Bfloat16;
  using Activation = Bfloat16;
  using Element = Bfloat16;
  static constexpr int64_t kSumRows = 256, kMostRows = 256, kTileRows = 32;
  static constexpr double kPerCycle = 256;

  // A tile register holds 16 rows of 32 numbers.
  static constexpr int64_t kRows = 16, kDepth = 32;
  // 64 columns of this depth take half the L1 cache, and are used for all rows. 256 was as fast,
  // 384 5 % slower (ViT-B/16, batch 1 and 8, Intel Xeon, 2026-11-23).
  static constexpr int64_t kMaxDepth = 192;

  template <class E>
  static int64_t steps(int64_t rows, int64_t depth) {
    return ceil_divide(rows, 2 * kRows) * 2 * (depth / kDepth);
  }
  static int64_t scratch_bytes(int64_t) { return 0; }
  static const Bfloat16* prepare(const Bfloat16* panel, int64_t, void*) { return panel; }

  static void multiply(int64_t rows, int64_t depth, const Bfloat16* a, int64_t a_row,
                       const Bfloat16* panel, float* sums, NextPanel& next) {
    finish_stores();
    const int64_t in_tiles = depth / kDepth * kDepth;
    const int64_t rest = rows % (2 * kRows), whole = rows - rest;
    const int64_t first = rest < kRows ? rest : kRows;
    for (int64_t k = 0; k < in_tiles; k += kMaxDepth) {
      const int64_t count = in_tiles - k < kMaxDepth ? in_tiles - k : kMaxDepth;
      const Bfloat16* b = panel + k * kPanelColumns;
      if (whole) {
        const AmxShapes shapes(kRows, kRows);
        for (int64_t i = 0; i < whole; i += 2 * kRows) {
          multiply_tiles<2>(count, a + i * a_row + k, a_row, b, sums + i * kPanelColumns, k > 0,
                            next);
        }
      }
      if (!rest) continue;
      const AmxShapes shapes(first, rest - first);
      const Bfloat16* last = a + whole * a_row + k;
      float* last_sums = sums + whole * kPanelColumns;
      if (rest > kRows) {
        multiply_tiles<2>(count, last, a_row, b, last_sums, k > 0, next);
      } else {
        multiply_tiles<1>(count, last, a_row, b, last_sums, k > 0, next);
      }
    }
    // Threads without tile state are switched faster.
    _tile_release();
    if (in_tiles < depth) {
      multiply_strip(rows, ceil_divide(depth - in_tiles, 2),
                     reinterpret_cast<const Pair*>(a + in_tiles), a_row / 2,
                     reinterpret_cast<const Pair*>(panel + in_tiles * kPanelColumns), sums,
                     in_tiles > 0, next);
    }
  }

 private:
  // kTiles tiles of rows, against the 64 columns of a panel.
  template <int kTiles>
  static VIT_INLINE void multiply_tiles(int64_t depth, const Bfloat16* a, int64_t a_row,
                                        const Bfloat16* b, float* sums, bool accumulate,
                                        NextPanel& next) {
    constexpr int64_t kStride = kPanelColumns * 4;  // bytes of a row of weights, and of sums
    const Bfloat16* a_below = a + kRows * a_row;
    float* below = sums + kRows * kPanelColumns;
    for (int half = 0; half < 2; ++half, b += kPanelColumns, sums += 32, below += 32) {
      if (accumulate) {
        _tile_loadd(0, sums, kStride);
        _tile_loadd(1, sums + 16, kStride);
        if constexpr (kTiles == 2) {
          _tile_loadd(2, below, kStride);
          _tile_loadd(3, below + 16, kStride);
        }
      } else {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (kTiles == 2) {
          _tile_zero(2);
          _tile_zero(3);
        }
      }
      for (int64_t k = 0; k < depth; k += kDepth) {
        const Bfloat16* weights = b + k * kPanelColumns;
        next.prefetch();
        _tile_loadd(4, a + k, a_row * 2);
        _tile_loadd(6, weights, kStride);
        _tile_loadd(7, weights + 32, kStride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kTiles == 2) {
          _tile_loadd(5, a_below + k, a_row * 2);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
      }
      _tile_stored(0, sums, kStride);
      _tile_stored(1, sums + 16, kStride);
      if constexpr (kTiles == 2) {
        _tile_stored(2, below, kStride);
        _tile_stored(3, below + 16, kStride);
      }
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // __AMX_BF16__

#endif  // CUSTOM_OPS_CPU_GEMM_AMX_PRODUCT_H_
