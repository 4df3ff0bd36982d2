// Tiles of 16-bit elements in shared memory, and the operands that tensor cores take from them.
#ifndef CUSTOM_OPS_CUDA_TENSOR_TILES_H_
#define CUSTOM_OPS_CUDA_TENSOR_TILES_H_

#include <string.h>

#include "custom_ops/cuda/device.h"

namespace vit {

// Rows of `kColumns` elements, a multiple of 16. The 8 elements between rows put the 8 rows that
// load_matrices reads at a time into different banks of shared memory, for every multiple of 16.
template <class T, int kRows, int kColumns>
struct Tile {
  static_assert(sizeof(T) == 2 && kRows % 16 == 0 && kColumns % 16 == 0);
  static constexpr int kPitch = kColumns + 8;
  static constexpr int64_t kBytes = int64_t{kRows} * kPitch * 2;

  T* elements;

  VIT_DEVICE_METHOD T* at(int row, int column) const { return elements + row * kPitch + column; }

  // The operand a of multiply_add: rows [row, row + 16), columns [column, column + 16).
  VIT_DEVICE_METHOD void load_a(int row, int column, uint32_t (&a)[4]) const {
    const int lane = lane_index();
    load_matrices<false>(at(row + lane % 16, column + lane / 16 * 8), a);
  }

  // The operand a of a product with the transposed tile: rows [row, row + 16) of the tile are the
  // columns of a, columns [column, column + 16) the rows of a.
  VIT_DEVICE_METHOD void load_a_of_transposed(int row, int column, uint32_t (&a)[4]) const {
    const int lane = lane_index();
    load_matrices<true>(at(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8), a);
  }

  // The operand b of two multiply_add, for a product with the transposed tile: rows
  // [row, row + 16) of the tile are the columns of b. The first product takes b[0] and b[1], the
  // second, for the next 8 columns, b[2] and b[3].
  VIT_DEVICE_METHOD void load_b_of_transposed(int row, int column, uint32_t (&b)[4]) const {
    const int lane = lane_index();
    load_matrices<false>(at(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8), b);
  }

  // The same for a product with the tile: rows [row, row + 16) of the tile are the rows of b,
  // columns [column, column + 16) the columns of the two.
  VIT_DEVICE_METHOD void load_b(int row, int column, uint32_t (&b)[4]) const {
    const int lane = lane_index();
    load_matrices<true>(at(row + lane % 16, column + lane / 16 * 8), b);
  }
};

// Rows in the memory of the GPU that a tile is filled from.
template <class T>
struct Rows {
  const T* data;     // the first row
  int64_t stride;    // elements between rows
  int rows;          // rows that exist
  int filled;        // rows of the tile that are written, with zeros behind `rows`
  int columns;       // elements of a row; the tile gets zeros behind
  bool is_aligned;   // whether data, stride and columns are multiples of 16 bytes
};

// Starts to copy the columns of aligned rows from kFirst on. A thread copies the same columns of
// several rows, so it needs few registers for addresses: a power of two of octets (8 elements),
// then the rest.
template <int kFirst, class T, int kRows, int kColumns>
VIT_DEVICE void copy_columns(const Tile<T, kRows, kColumns>& tile, const Rows<T>& from,
                             int threads) {
  constexpr int kLeft = (kColumns - kFirst) / 8;
  constexpr int kOctets = kLeft >= 16 ? 16 : kLeft >= 8 ? 8 : kLeft >= 4 ? 4 : 2;
  const int first = thread_index() / kOctets, step = threads / kOctets;
  const int column = kFirst + thread_index() % kOctets * 8;
  const int rows = column < from.columns ? from.rows : 0;
  const T* source = from.data + first * from.stride + column;
  T* target = tile.at(first, column);
#pragma unroll 1
  for (int row = first; row < from.filled; row += step) {
    const bool valid = row < rows;
    // An address that is not read must still be one of the array.
    copy_async(target, valid ? source : from.data, valid);
    source += step * from.stride;
    target += step * Tile<T, kRows, kColumns>::kPitch;
  }
  if constexpr (kLeft > kOctets) copy_columns<kFirst + 8 * kOctets>(tile, from, threads);
}

// Starts to fill a tile; all `threads` threads of the block call it. If the rows are aligned the
// copies are asynchronous (and not committed); otherwise they are done when the block is synced.
template <class T, int kRows, int kColumns>
VIT_DEVICE void fill(const Tile<T, kRows, kColumns>& tile, const Rows<T>& from, int threads) {
  if (from.is_aligned) return copy_columns<0>(tile, from, threads);
  for (int i = thread_index(); i < from.filled * kColumns; i += threads) {
    const int row = i / kColumns, column = i % kColumns;
    const bool valid = row < from.rows && column < from.columns;
    *tile.at(row, column) = valid ? from.data[row * from.stride + column] : rounded<T>(0.0f);
  }
}
template <int kThreads, class T, int kRows, int kColumns>
VIT_DEVICE void fill(const Tile<T, kRows, kColumns>& tile, const Rows<T>& from) {
  fill(tile, from, kThreads);
}

// Two elements times a power of two.
template <class T>
VIT_DEVICE uint32_t scaled_pair(uint32_t pair, float factor) {
  static_assert(sizeof(T) == 2);
  T elements[2];
  memcpy(elements, &pair, sizeof pair);
  return packed<T>(to_float(elements[0]) * factor, to_float(elements[1]) * factor);
}

// Writes two elements, at an address that is a multiple of 4 bytes.
template <class T>
VIT_DEVICE void store_pair(T* to, uint32_t pair) {
  struct __attribute__((may_alias)) Pair {
    uint32_t bits;
  };
  *reinterpret_cast<Pair*>(to) = {pair};
}

// Copies rows of a tile, from `row` on, to `to`, which has the layout of `rows` (whose data are not
// used). The threads of one warp call it.
template <class T, int kRows, int kColumns>
VIT_DEVICE void copy_rows(const Tile<T, kRows, kColumns>& tile, int row, const Rows<T>& rows,
                          T* to) {
  struct __attribute__((may_alias, aligned(16))) Chunk {
    uint32_t bits[4];
  };
  const int each = rows.is_aligned ? 8 : 1, count = rows.columns / each;
  for (int i = lane_index(); i < rows.rows * count; i += kWarp) {
    const int at = i / count, column = i % count * each;
    T* const target = to + at * rows.stride + column;
    if (rows.is_aligned) {
      *reinterpret_cast<Chunk*>(target) =
          *reinterpret_cast<const Chunk*>(tile.at(row + at, column));
    } else {
      *target = *tile.at(row + at, column);
    }
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_TENSOR_TILES_H_
