// Operands of the products of warpgroups: rows of heads in shared memory, and 16 rows of each warp
// in registers.
#ifndef CUSTOM_OPS_CUDA_WARPGROUP_TILES_H_
#define CUSTOM_OPS_CUDA_WARPGROUP_TILES_H_

#include "custom_ops/cuda/tensor_tiles.h"

namespace vit {

VIT_DEVICE int smaller(int a, int b) { return a < b ? a : b; }

template <int number>
struct Constant {
  static constexpr int value = number;
};

// Rows of heads in shared memory. Octet (8 elements) number c of row r begins at byte
// c * pitch + 16 r. The pitch is an odd multiple of 16, so that the octets of a row lie in
// different banks of shared memory.
template <class T, int kHead>
struct LineRows {
  static_assert(sizeof(T) == 2 && kHead % 16 == 0);
  static constexpr int kOctets = kHead / 8;

  char* data;
  int pitch;

  // The operand b of a product with the transposed rows; columns from `column` on.
  VIT_DEVICE_METHOD SharedMatrices transposed(int column) const {
    return SharedMatrices::at(data, pitch, 128).further(column / 8 * pitch);
  }
  // The operand b of a product with 16 rows from `row` on.
  VIT_DEVICE_METHOD SharedMatrices rows(int row) const {
    return SharedMatrices::at(data, 128, pitch).further(row * 16);
  }
};

// Rows of heads in the memory of the GPU: two arrays, whose rows go to two of shared memory.
template <class T, int kHead>
struct LineCopy {
  static constexpr int kOctets = LineRows<T, kHead>::kOctets;

  LineRows<T, kHead> to[2];
  const T* from[2];
  int64_t stride[2];
  int count, columns;    // that exist; zeros take the place of the others

    // Starts to copy `rows` rows from `first` on. The threads of a warpgroup call it.
  VIT_DEVICE_METHOD void start(int first, int rows) const {
    start_octets<0, 8>(first, rows);
    if constexpr (kOctets > 8) start_octets<8, kOctets - 8>(first, rows);
  }

  // The octets from kFirst on: neighboring threads take octets of one row. Several copies follow
  // each other without a branch, because a copy takes long to read the registers of its addresses.
  template <int kFirst, int kCount>
  VIT_DEVICE_METHOD void start_octets(int first, int rows) const {
    constexpr int kTogether = 4;
    constexpr int kStep = kWarpgroup / kCount;
    const int thread = thread_index() % kWarpgroup, octet = kFirst + thread % kCount;
    const bool has_columns = octet * 8 < columns;
#pragma unroll 1
    for (int row = thread / kCount; row < rows; row += kTogether * kStep) {
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        const int at = row + j * kStep;
        const bool valid = first + at < count && has_columns;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          // An address that is not read must still be one of the array.
          const T* const source = from[i] + (valid ? (first + at) * stride[i] + octet * 8 : 0);
          if (at < rows) copy_async(to[i].data + octet * to[i].pitch + at * 16, source, valid);
        }
      }
    }
  }
};

// Two products, added.
template <class T>
VIT_DEVICE float pair_product(uint32_t one, uint32_t other) {
  T a[2], b[2];
  memcpy(a, &one, sizeof one);
  memcpy(b, &other, sizeof other);
  return fused_product(to_float(a[1]), to_float(b[1]), to_float(a[0]) * to_float(b[0]));
}

// Reads two numbers, aligned to 8 bytes.
VIT_DEVICE void load_pair(const float* from, float (&pair)[2]) {
  uint32_t words[2];
  load_words<2>(from, words);
  memcpy(pair, words, sizeof words);
}

// Rounds sums to the operands a of products with 16 columns of them each.
template <class T, int kPieces>
VIT_DEVICE void pack(const float (&sums)[2 * kPieces][4], uint32_t (&a)[kPieces][4]) {
#pragma unroll
  for (int n = 0; n < 2 * kPieces; ++n) {
    a[n / 2][n % 2 * 2] = packed<T>(sums[n][0], sums[n][1]);
    a[n / 2][n % 2 * 2 + 1] = packed<T>(sums[n][2], sums[n][3]);
  }
}

// Exchanges words between the four threads of a row: thread i gives words[j] to thread j, and gets
// its words[i].
VIT_DEVICE void transpose_words(uint32_t (&words)[4]) {
  const int lane = lane_index();
#pragma unroll
  for (int mask = 1; mask <= 2; mask *= 2) {
    const bool is_high = lane & mask;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & mask) continue;
      const uint32_t sent = is_high ? words[i] : words[i + mask];
      const uint32_t got = shuffle_xor(sent, mask);
      (is_high ? words[i] : words[i + mask]) = got;
    }
  }
}

// The operand a of products with 16 rows per warp.
template <class T, int kHead>
struct WarpRows {
  uint32_t a[kHead / 16][4];

  // Starts to copy the rows from `row` on to `tile`, which no other warp uses. Rows that do not
  // exist, and columns, are zeros.
  static VIT_DEVICE_METHOD void start_copy(const Tile<T, 16, kHead>& tile, const Rows<T>& from,
                                           int row) {
    constexpr int kOctets = kHead / 8;
#pragma unroll
    for (int i = 0; i < 16 * kOctets; i += kWarp) {
      const int at = (i + lane_index()) / kOctets, column = (i + lane_index()) % kOctets * 8;
      const bool valid = row + at < from.rows && column < from.columns;
      copy_async(tile.at(at, column),
                 valid ? from.data + (row + at) * from.stride + column : from.data, valid);
    }
    commit_copies();
  }
  // Reads the tile; the copies of this thread have arrived.
  VIT_DEVICE_METHOD void load(const Tile<T, 16, kHead>& tile) {
    sync_warp();
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) tile.load_a(0, 16 * k, a[k]);
    sync_warp();
  }

  // Reads the rows from `row` on: a thread reads 16 bytes at a time. Rows that do not exist, and
  // columns, are zeros. The elements are in place after arrange().
  VIT_DEVICE_METHOD void fetch(const Rows<T>& from, int row) {
    constexpr int kOctets = kHead / 8;
    const int part = lane_index() % 4;
    const T* const first = from.data + (row + lane_index() / 4) * from.stride;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool exists = row + lane_index() / 4 + 8 * i < from.rows;
      const T* const of_row = first + 8 * i * from.stride;
#pragma unroll
      for (int n = 0; n + 4 <= kOctets; n += 4) {
        uint32_t words[4] = {0, 0, 0, 0};
        if (exists && 8 * (n + part) < from.columns) load_words<4>(of_row + 8 * (n + part), words);
#pragma unroll
        for (int j = 0; j < 4; ++j) a[(n + j) / 2][(n + j) % 2 * 2 + i] = words[j];
      }
#pragma unroll
      for (int n = kOctets / 4 * 4; n < kOctets; ++n) {
        uint32_t word = 0;
        if (exists && 8 * n < from.columns) load_words<1>(of_row + 8 * n + 2 * part, &word);
        a[n / 2][n % 2 * 2 + i] = word;
      }
    }
  }
  VIT_DEVICE_METHOD void arrange() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n + 4 <= kHead / 8; n += 4) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) words[j] = a[(n + j) / 2][(n + j) % 2 * 2 + i];
        transpose_words(words);
#pragma unroll
        for (int j = 0; j < 4; ++j) a[(n + j) / 2][(n + j) % 2 * 2 + i] = words[j];
      }
    }
  }

  // The sum of the products of a row with the row of `other`, for rows g and g + 8, g = lane / 4.
  // The elements of both are arranged, or of both not.
  VIT_DEVICE_METHOD void multiply_rows(const WarpRows& other, float (&products)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float sum = 0;
#pragma unroll
      for (int k = 0; k < kHead / 16; ++k) {
        sum += pair_product<T>(a[k][i], other.a[k][i]);
        sum += pair_product<T>(a[k][i + 2], other.a[k][i + 2]);
      }
      sum += shuffle_xor(sum, 1);
      products[i] = sum + shuffle_xor(sum, 2);
    }
  }

  // Multiplies the elements by a power of two.
  VIT_DEVICE_METHOD void scale(float factor) {
#pragma unroll
    for (auto& of_step : a) {
#pragma unroll
      for (uint32_t& pair : of_step) pair = scaled_pair<T>(pair, factor);
    }
  }
};

// Starts sums = a (the first 16 kPieces rows of b)^T.
template <int kPieces, class T, int kHead>
VIT_DEVICE void start_row_products(const WarpRows<T, kHead>& a, const LineRows<T, kHead>& b,
                                   float (&sums)[2 * kPieces][4]) {
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
    start_products<T, 16 * kPieces, false>(a.a[k], b.transposed(16 * k), sums, k > 0);
  }
}

// Starts sums = a (the first 16 kPieces rows of b), added to the sums if `add`. `a` has 16 columns
// in each element; the first kPieces elements count.
template <int kPieces, class T, int kHead, int kMost>
VIT_DEVICE void start_weighted_rows(const uint32_t (&a)[kMost][4], const LineRows<T, kHead>& b,
                                    float (&sums)[kHead / 8][4], bool add) {
#pragma unroll
  for (int i = 0; i < kPieces; ++i) {
    start_products<T, kHead, true>(a[i], b.rows(16 * i), sums, add || i > 0);
  }
}

// Calls `body` with the number of pieces as a Constant, if there are any: `pieces`, at most kMost.
template <int kMost, class Body>
VIT_DEVICE void for_pieces(int pieces, const Body& body) {
  if constexpr (kMost > 0) {
    if (pieces < kMost) return for_pieces<kMost - 1>(pieces, body);
    body(Constant<kMost>{});
  }
}

// Writes sums * factor to the rows from `row` on that exist: 16 bytes per thread where four threads
// have 64 bytes of a row.
template <class T, int kHead>
VIT_DEVICE void store_rows(const float (&sums)[kHead / 8][4], const float (&factors)[2],
                           const Rows<T>& to, T* data, int row) {
  const int part = lane_index() % 4;
  T* const first = data + (row + lane_index() / 4) * to.stride;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const bool exists = row + lane_index() / 4 + 8 * i < to.rows;
    T* const of_row = first + 8 * i * to.stride;
    const auto word = [&](int n) {
      return packed<T>(sums[n][2 * i] * factors[i], sums[n][2 * i + 1] * factors[i]);
    };
#pragma unroll
    for (int n = 0; n + 4 <= kHead / 8; n += 4) {
      uint32_t words[4] = {word(n), word(n + 1), word(n + 2), word(n + 3)};
      transpose_words(words);
      if (exists && 8 * (n + part) < to.columns) {
        store_words<4>(of_row + 8 * (n + part), words);
      }
    }
#pragma unroll
    for (int n = kHead / 32 * 4; n < kHead / 8; ++n) {
      const uint32_t own = word(n);
      if (exists && 8 * n < to.columns) store_pair(of_row + 8 * n + 2 * part, own);
    }
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_WARPGROUP_TILES_H_
