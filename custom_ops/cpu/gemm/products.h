// Products of rows with one panel of packed weights (cc/encoder_problem.h), a class for each way to
// compute them:
//
//   Weight: elements of the packed weights;  Activation: elements of the rows;  Element: what is
//   multiplied at a time.
//   kSumRows: the most rows of one call of multiply.
//   kMostRows: the most rows that a thread multiplies with a panel before it takes the next panel.
//   kTileRows: these rows are computed together.
//   kPerCycle: products and sums in a cycle, about.
//   Panel: the panel as multiply reads it, made by `prepare` once for many rows.
#ifndef CUSTOM_OPS_CPU_GEMM_PRODUCTS_H_
#define CUSTOM_OPS_CPU_GEMM_PRODUCTS_H_

#include "custom_ops/cc/encoder_problem.h"
#include "custom_ops/cpu/scratch.h"
#include "custom_ops/cpu/simd/conversions.h"
#include "custom_ops/cpu/tile.h"

namespace vit {
namespace VIT_ISA {

// Prefetches the next panel into the L2 cache, a few cache lines at a time, while this one is being
// multiplied. Weights are read once in a call, so without this every panel would be waited for.
class NextPanel {
 public:
  // The steps for which tile.h calls `prefetch` once.
  static constexpr int64_t kSteps = 8;

  // `steps`: the number of calls of `prefetch` that the panel is spread over. A null panel is not
  // prefetched.
  NextPanel(const void* panel, int64_t bytes, int64_t steps)
      : next_(static_cast<const char*>(panel)),
        end_(panel ? next_ + bytes : next_),
        bytes_each_(round_up(ceil_divide(bytes, steps > 0 ? steps : 1), 64)) {}

  VIT_INLINE void prefetch() {
    const int64_t left = end_ - next_;
    const char* const after = next_ + (left < bytes_each_ ? left : bytes_each_);
    for (; next_ < after; next_ += 64) __builtin_prefetch(next_, 0, 2);
  }

 private:
  const char *next_, *end_;
  int64_t bytes_each_;
};

// The columns of a tile. Where a panel has more, its columns are multiplied as strips, [64 /
// kStrip, depth, kStrip], so that some rows of a strip are contiguous and stays in the L1 cache. In
// a panel the same numbers are 256 bytes apart, which an L1 cache has few places for.
constexpr int64_t kStrip = kMaxVectors * kLanes<float>;
constexpr bool kHasStrips = kStrip < kPanelColumns;

// sums[kRows, kStrip] (+)= a[kRows, depth] b[depth, kStrip]; depth counts elements, which may be
// Pairs.
template <class E, int kRows>
static void multiply_strip_tile(int64_t depth, const E* a, int64_t a_row, const E* b, float* sums,
                                bool accumulate, NextPanel& next) {
  multiply_tile<E, kRows, kMaxVectors>(depth, a, a_row, 1, b, kStrip, sums, kPanelColumns,
                                       accumulate, next);
}

// The rows of a tile. Its sums, a row of the panel and a number of `a` fill the registers.
constexpr int kHeight = kTileRows[kMaxVectors];

template <class E, int kRows = kHeight>
static auto tile_of(int64_t rows) {
  if constexpr (kRows == 1) {
    return multiply_strip_tile<E, 1>;
  } else {
    return rows == kRows ? multiply_strip_tile<E, kRows> : tile_of<E, kRows - 1>(rows);
  }
}

// sums[rows, kStrip] (+)= a[rows, depth] b[depth, kStrip].
template <class E>
static void multiply_strip(int64_t rows, int64_t depth, const E* a, int64_t a_row, const E* b,
                           float* sums, bool accumulate, NextPanel& next) {
  for (int64_t i = 0; i < rows; i += kHeight) {
    const auto tile = tile_of<E>(rows - i < kHeight ? rows - i : kHeight);
    tile(depth, a + i * a_row, a_row, b, sums + i * kPanelColumns, accumulate, next);
  }
}

// What the products in vector registers have in common: a block of sums stays in the L1 cache.
struct VectorProduct {
  static constexpr int64_t kSumRows = 48, kMostRows = 384, kTileRows = kHeight;
  static constexpr double kPerCycle = 2 * kLanes<float>;

  // The calls of NextPanel::prefetch in a product.
  template <class E>
  static int64_t steps(int64_t rows, int64_t depth) {
    constexpr int64_t kParts = kPanelColumns / kStrip;
    return rows / kHeight * kParts * (depth / kPackSize<E> / NextPanel::kSteps);
  }
};

// Products of floats.
struct FloatActivations : VectorProduct {
  using Activation = float;
  using Element = float;

  // Panels of bfloat16 have an even number of rows.
  static int64_t strip_rows(int64_t depth) { return round_up(depth, 2); }
  static int64_t strips_bytes(int64_t depth) {
    return strip_rows(depth) * kPanelColumns * static_cast<int64_t>(sizeof(float));
  }
  // Where the number of row k and column j of a panel is in its strips.
  static VIT_INLINE int64_t place(int64_t depth, int64_t k, int64_t j) {
    return j / kStrip * kStrip * strip_rows(depth) + k * kStrip + j % kStrip;
  }

  static void multiply(int64_t rows, int64_t depth, const float* a, int64_t a_row,
                       const float* strips, float* sums, NextPanel& next) {
    const int64_t most = kHasStrips ? kMaxRun : depth;
    for (int64_t k = 0; k < depth; k += most) {
      const int64_t now = depth - k < most ? depth - k : most;
      for (int64_t j = 0; j < kPanelColumns; j += kStrip) {
        multiply_strip(rows, now, a + k, a_row, strips + place(depth, k, j), sums + j, k > 0, next);
      }
    }
  }
};

// float weights.
struct FloatProduct : FloatActivations {
  using Weight = float;

  static int64_t scratch_bytes(int64_t depth) { return kHasStrips ? strips_bytes(depth) : 0; }
  static const float* prepare(const float* panel, int64_t depth, void* scratch) {
    if constexpr (!kHasStrips) return panel;
    float* const to = static_cast<float*>(scratch);
    for (int64_t k = 0; k < depth; ++k, panel += kPanelColumns) {
      for (int64_t j = 0; j < kPanelColumns; j += kLanes<float>) {
        store<float>(to + place(depth, k, j), load<float>(panel + j));
      }
    }
    return to;
  }
};

// bfloat16 weights where there are no fast instructions for them: converted to float, and
// multiplied with activations in float. They need half the memory traffic of float weights.
struct WidenedProduct : FloatActivations {
  using Weight = Bfloat16;

  static int64_t scratch_bytes(int64_t depth) { return strips_bytes(depth); }
  static const float* prepare(const Bfloat16* panel, int64_t depth, void* scratch) {
    float* const to = static_cast<float*>(scratch);
    for (int64_t k = 0; k < depth; k += 2, panel += 2 * kPanelColumns) {
      for (int64_t j = 0; j < kPanelColumns; j += kLanes<float>) {
        const Integers<float> pairs =
            (Integers<float>)load(reinterpret_cast<const float*>(panel + 2 * j));
        store<float>(to + place(depth, k, j), (Vector<float>)(pairs << 16));
        store<float>(to + place(depth, k + 1, j), (Vector<float>)(pairs & ~0xffff));
      }
    }
    return to;
  }
};

#if defined(__AVX512BF16__)
// bfloat16 weights and activations. Rows of an odd depth end with a 0.
struct PairProduct : VectorProduct {
  using Weight = Bfloat16;
  using Activation = Bfloat16;
  using Element = Pair;

  static int64_t scratch_bytes(int64_t) { return 0; }
  static const Pair* prepare(const Bfloat16* panel, int64_t, void*) {
    return reinterpret_cast<const Pair*>(panel);
  }
  static void multiply(int64_t rows, int64_t depth, const Bfloat16* a, int64_t a_row,
                       const Pair* panel, float* sums, NextPanel& next) {
    static_assert(!kHasStrips);
    multiply_strip(rows, ceil_divide(depth, 2), reinterpret_cast<const Pair*>(a), a_row / 2, panel,
                   sums, false, next);
  }
};
#endif

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_GEMM_PRODUCTS_H_
