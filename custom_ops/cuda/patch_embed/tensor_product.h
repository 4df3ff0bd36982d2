// A tile of a product on tensor cores.
#ifndef CUSTOM_OPS_CUDA_PATCH_EMBED_TENSOR_PRODUCT_H_
#define CUSTOM_OPS_CUDA_PATCH_EMBED_TENSOR_PRODUCT_H_

#include "custom_ops/cuda/patch_embed/octets.h"
#include "custom_ops/cuda/patch_embed/places.h"
#include "custom_ops/cuda/tensor_tiles.h"

namespace vit {

// Sums of 128 x 128; each of 8 warps has 64 x 32 of them. Operands are two tiles of kTensorDepth:
// products run with one while the next one arrives. An `Operands` has
//   start(step)         starts the asynchronous copies of a step
//   load(step, half)    loads half of what is not copied asynchronously to registers
//   store(step, half)   stores it
//   load_a(step, row, depth, a), load_b(step, column, depth, b)   for multiply_add
// and kUnrolledHalves, 1 or 2, with which the compiler needs no more registers than there are.
template <class T>
struct TensorSums {
  static constexpr int kRowsOfWarp = 64, kColumnsOfWarp = 32;
  static constexpr int kRowSteps = kRowsOfWarp / 16, kColumnSteps = kColumnsOfWarp / 8;
  // Rows of floats in shared memory, for for_octets: threads read different banks, and two write to
  // each bank.
  static constexpr int kPitch = kColumnsOfWarp + 4;
  static constexpr int64_t kBytes = kTensorThreads / kWarp * 16 * kPitch * 4;

  float sums[kRowSteps][kColumnSteps][4] = {};

  static VIT_DEVICE_METHOD int first_row() { return thread_index() / kWarp % 2 * kRowsOfWarp; }
  static VIT_DEVICE_METHOD int first_column() {
    return thread_index() / kWarp / 2 * kColumnsOfWarp;
  }

  // Adds the products of steps [0, steps). All threads of the block call it; shared memory may be
  // used again at once.
  template <class Operands>
  VIT_DEVICE_METHOD void add(Operands& operands, int steps) {
    for (int step = -1; step < steps; ++step) {
      const bool has_next = step + 1 < steps;
      if (step >= 0) {
        wait_for_copies<0>();
        sync_block();
      }
      if (has_next) {
        operands.start(step + 1);
        commit_copies();
      }
#pragma unroll(Operands::kUnrolledHalves)
      for (int half = 0; half < 2; ++half) {
        if (has_next) operands.load(step + 1, half);
        if (step >= 0) add_step(operands, step, half * kTensorDepth / 2);
        if (has_next) operands.store(step + 1, half);
      }
    }
    sync_block();
  }

  // Calls visit(row, column, values) for groups of 8 neighbours in a row, with places in the tile.
  // `shared` has kBytes.
  template <class Visit>
  VIT_DEVICE_METHOD void for_octets(float* shared, const Visit& visit) const {
    float* const own = shared + thread_index() / kWarp * 16 * kPitch;
    const int lane = lane_index();
#pragma unroll
    for (int i = 0; i < kRowSteps; ++i) {
      sync_warp();
#pragma unroll
      for (int j = 0; j < kColumnSteps; ++j) {
        float* const to = own + lane / 4 * kPitch + j * 8 + lane % 4 * 2;
        to[0] = sums[i][j][0];
        to[1] = sums[i][j][1];
        to[8 * kPitch] = sums[i][j][2];
        to[8 * kPitch + 1] = sums[i][j][3];
      }
      sync_warp();
#pragma unroll
      for (int half = 0; half < 16; half += 8) {
        const int row = half + lane / 4, column = lane % 4 * kOctet;
        float values[kOctet];
        load_octet(own + row * kPitch + column, kOctet, true, values);
        visit(first_row() + i * 16 + row, first_column() + column, values);
      }
    }
  }

 private:
  template <class Operands>
  VIT_DEVICE_METHOD void add_step(const Operands& operands, int step, int depth) {
    static_assert(kTensorDepth == 32);
    uint32_t b[kColumnSteps / 2][4];
#pragma unroll
    for (int j = 0; j < kColumnSteps / 2; ++j) {
      operands.load_b(step, first_column() + j * 16, depth, b[j]);
    }
#pragma unroll
    for (int i = 0; i < kRowSteps; ++i) {
      uint32_t a[4];
      operands.load_a(step, first_row() + i * 16, depth, a);
#pragma unroll
      for (int j = 0; j < kColumnSteps / 2; ++j) {
        multiply_add<T>(a, b[j][0], b[j][1], sums[i][2 * j]);
        multiply_add<T>(a, b[j][2], b[j][3], sums[i][2 * j + 1]);
      }
    }
  }
};

// Two tiles, for even and odd steps.
template <class T, int kRows, int kColumns>
struct TilePair {
  using One = Tile<T, kRows, kColumns>;
  static constexpr int64_t kBytes = 2 * One::kBytes;

  char* memory;

  VIT_DEVICE_METHOD One of(int step) const {
    return {reinterpret_cast<T*>(memory + step % 2 * One::kBytes)};
  }
};

// The elements of a row of `columns` that are left, at most `count`.
VIT_DEVICE int left_of(int64_t columns, int64_t first, int count) {
  const int64_t left = columns - first;
  return left < count ? static_cast<int>(left < 0 ? 0 : left) : count;
}

// Up to `rows` rows of the kernel from `row` on, with up to `columns` columns from `column` on.
template <class T, class Parameters>
VIT_DEVICE Rows<T> rows_of_kernel(const Parameters& p, int64_t row, int rows, int64_t column,
                                  int columns) {
  const int64_t features = p.grid.features;
  return {static_cast<const T*>(p.problem.kernel) + row * features + column,
          features,
          left_of(p.grid.elements, row, rows),
          rows,
          left_of(features, column, columns),
          p.has_aligned_kernel};
}

// Starts to fill a tile with the tokens at `places`, from feature `first` on, like fill().
template <class T, int kRows, int kColumns>
VIT_DEVICE void fill_with_tokens(const Tile<T, kRows, kColumns>& tile, const T* tokens,
                                 const int64_t* places, int64_t first, int64_t features,
                                 bool is_aligned) {
  const int columns = left_of(features, first, kColumns);
  if (is_aligned) {
    constexpr int kInRow = kColumns / kOctet;
#pragma unroll
    for (int i = thread_index(); i < kRows * kInRow; i += kTensorThreads) {
      const int row = i / kInRow, column = i % kInRow * kOctet;
      const bool valid = places[row] != kNoPlace && column < columns;
      const T* source = valid ? tokens + places[row] + first + column : tokens;
      copy_async(tile.at(row, column), source, valid);
    }
    return;
  }
  for (int i = thread_index(); i < kRows * kColumns; i += kTensorThreads) {
    const int row = i / kColumns, column = i % kColumns;
    const bool valid = places[row] != kNoPlace && column < columns;
    *tile.at(row, column) = valid ? tokens[places[row] + first + column] : rounded<T>(0.0f);
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_PATCH_EMBED_TENSOR_PRODUCT_H_
