// Matrix products of small blocks, which take most of the time of attention and patch embedding.
//
// c[i, :] (+)= sum over k of a[i, k] * b[k, :], where the columns are whole vectors. b and c are
// rows of vectors. a is read one number at a time, so it may have any strides.
#ifndef CUSTOM_OPS_CPU_TILE_H_
#define CUSTOM_OPS_CPU_TILE_H_

#include "custom_ops/cpu/simd/vectors.h"

namespace vit {
namespace VIT_ISA {

// The multiplication of an element type. Sum: the type of the sums; Lanes: a vector of elements.
template <class E>
struct Product {
  using Sum = E;
  using Lanes = Vector<E>;
  static VIT_INLINE Lanes load_lanes(const E* p) { return load<E>(p); }
  static VIT_INLINE Lanes spread(E x) { return broadcast<E>(x); }
  static VIT_INLINE Vector<E> add(Vector<E> sum, Lanes a, Lanes b) {
    return multiply_add<E>(a, b, sum);
  }
};
#if defined(__AVX512BF16__)
template <>
struct Product<Pair> {
  using Sum = float;
  using Lanes = __m512i;
  static VIT_INLINE Lanes load_lanes(const Pair* p) { return _mm512_loadu_si512(p); }
  static VIT_INLINE Lanes spread(const Pair& x) {
    int bits;
    __builtin_memcpy(&bits, &x, 4);
    return _mm512_set1_epi32(bits);
  }
  static VIT_INLINE Vector<float> add(Vector<float> sum, Lanes a, Lanes b) {
    return (Vector<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
};
#endif

// The maximum number of vectors in a row of a tile, and the rows of a tile for each number of
// vectors: the most sums that fit in the registers beside one row of b and one number of a.
#if defined(__AVX512F__)
constexpr int kMaxVectors = 4;
constexpr int kTileRows[] = {0, 14, 12, 8, 6};
#elif defined(__AVX2__)
constexpr int kMaxVectors = 2;
constexpr int kTileRows[] = {0, 10, 6};
#else
constexpr int kMaxVectors = 2;
constexpr int kTileRows[] = {0, 8, 4};
#endif

// The maximum number of products that are added in one run. Longer sums are sums of such sums,
// because the rounding error of a sum grows with its length: with 3072 products in one run it was 4
// times the error of TensorFlow.
constexpr int64_t kMaxRun = 256;

// Loads memory into a cache while a tile is multiplied: `prefetch` is called once in kSteps steps
// of the sum. This one loads nothing.
struct NoPrefetch {
  static constexpr int64_t kSteps = kMaxRun;
  VIT_INLINE void prefetch() {}
};

// The loop of all products: c[kRows, kVectors vectors] (+)= a[kRows, depth] b[depth, ...]. Inlined,
// so that strides which are constants stay constants.
template <class E, int kRows, int kVectors, class Prefetch>
VIT_INLINE void multiply_tile(int64_t depth, const E* a, int64_t a_row, int64_t a_step, const E* b,
                              int64_t b_step, typename Product<E>::Sum* c, int64_t c_row,
                              bool accumulate, Prefetch& memory) {
  using P = Product<E>;
  using Sum = typename P::Sum;
  int64_t k = 0;
  do {
    Vector<Sum> sums[kRows][kVectors] = {};
    for (const int64_t end = k + kMaxRun < depth ? k + kMaxRun : depth; k < end;) {
      memory.prefetch();
      const int64_t stop = k + Prefetch::kSteps < end ? k + Prefetch::kSteps : end;
      for (; k < stop; ++k, a += a_step, b += b_step) {
        typename P::Lanes row[kVectors];
#pragma GCC unroll 4
        for (int j = 0; j < kVectors; ++j) row[j] = P::load_lanes(b + j * kLanes<Sum>);
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i) {
          const auto number = P::spread(a[i * a_row]);
#pragma GCC unroll 4
          for (int j = 0; j < kVectors; ++j) sums[i][j] = P::add(sums[i][j], number, row[j]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) {
        Sum* at = c + i * c_row + j * kLanes<Sum>;
        store<Sum>(at, accumulate ? load<Sum>(at) + sums[i][j] : sums[i][j]);
      }
    }
    accumulate = true;
  } while (k < depth);
}

// `count` tiles of the same height, one below the other.
template <class E, int kRows, int kVectors>
static void tiles(int64_t count, int64_t depth, const E* a, int64_t a_row, int64_t a_step,
                  const E* b, int64_t b_step, typename Product<E>::Sum* c, int64_t c_row,
                  bool accumulate) {
  NoPrefetch none;
  for (; count > 0; --count, a += kRows * a_row, c += kRows * c_row) {
    multiply_tile<E, kRows, kVectors>(depth, a, a_row, a_step, b, b_step, c, c_row, accumulate,
                                      none);
  }
}

template <class E>
using Tiles = void (*)(int64_t, int64_t, const E*, int64_t, int64_t, const E*, int64_t,
                       typename Product<E>::Sum*, int64_t, bool);

// The fewest rows, beside 1, that there are tiles for. Few rows are common in lines of few tokens,
// which fill one vector. Elsewhere, as for doubles, such tiles would only make the library larger.
template <class E, int kVectors>
constexpr int kFewestRows = kVectors == 1 && sizeof(E) == 4 ? 1 : kTileRows[kVectors] / 2;

// The function for tiles of `rows` rows, from kFewestRows to the most.
template <class E, int kVectors, int kRows = kTileRows[kVectors]>
VIT_INLINE Tiles<E> find_tiles(int64_t rows) {
  if constexpr (kRows == kFewestRows<E, kVectors>) {
    return tiles<E, kRows, kVectors>;
  } else {
    return rows == kRows ? tiles<E, kRows, kVectors> : find_tiles<E, kVectors, kRows - 1>(rows);
  }
}

template <class E, int kVectors>
static void multiply_columns(int64_t rows, int64_t depth, const E* a, int64_t a_row, int64_t a_step,
                             const E* b, int64_t b_step, typename Product<E>::Sum* c, int64_t c_row,
                             bool accumulate) {
  constexpr int kMost = kTileRows[kVectors];
  if (rows < kFewestRows<E, kVectors>) {
    tiles<E, 1, kVectors>(rows, depth, a, a_row, a_step, b, b_step, c, c_row, accumulate);
    return;
  }
  // Tiles have nearly equal heights: a last tile of one row would be much slower per row.
  const int64_t count = (rows + kMost - 1) / kMost;
  const int64_t height = rows / count, higher = rows % count;
  if (higher) {
    find_tiles<E, kVectors>(height + 1)(higher, depth, a, a_row, a_step, b, b_step, c, c_row,
                                        accumulate);
  }
  const int64_t done = higher * (height + 1);
  find_tiles<E, kVectors>(height)(count - higher, depth, a + done * a_row, a_row, a_step, b, b_step,
                                  c + done * c_row, c_row, accumulate);
}

// c[rows, vectors * kLanes] (+)= a[rows, depth] b[depth, vectors * kLanes], with `vectors` at most
// kMaxVectors. Strides count elements (Pairs for bfloat16, for which depth counts Pairs too).
template <class E>
static void multiply(int64_t rows, int vectors, int64_t depth, const E* a, int64_t a_row,
                     int64_t a_step, const E* b, int64_t b_step, typename Product<E>::Sum* c,
                     int64_t c_row, bool accumulate) {
  switch (vectors) {
    case 1:
      return multiply_columns<E, 1>(rows, depth, a, a_row, a_step, b, b_step, c, c_row, accumulate);
    case 2:
      return multiply_columns<E, 2>(rows, depth, a, a_row, a_step, b, b_step, c, c_row, accumulate);
#if defined(__AVX512F__)
    case 3:
      return multiply_columns<E, 3>(rows, depth, a, a_row, a_step, b, b_step, c, c_row, accumulate);
    case 4:
      return multiply_columns<E, 4>(rows, depth, a, a_row, a_step, b, b_step, c, c_row, accumulate);
#endif
  }
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_TILE_H_
