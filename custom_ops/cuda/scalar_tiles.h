// Products without tensor cores, for float32, float64, and whatever tensor cores do not cover: a
// block of 256 threads computes a tile of 64 x 64 sums, 4 x 4 per thread.
#ifndef CUSTOM_OPS_CUDA_SCALAR_TILES_H_
#define CUSTOM_OPS_CUDA_SCALAR_TILES_H_

#include "custom_ops/cuda/device.h"

namespace vit {

// The type of sums and statistics.
template <class T>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<double> {
  using Type = double;
};

// An element as a summand, and a sum as an element.
template <class Sum, class T>
VIT_DEVICE Sum summand(T x) {
  if constexpr (sizeof(Sum) == 8) {
    return to_double(x);
  } else {
    return to_float(x);
  }
}
template <class T, class Sum>
VIT_DEVICE T element(Sum x) {
  if constexpr (sizeof(T) == 8) {
    return x;
  } else {
    return rounded<T>(static_cast<float>(x));
  }
}

// A tile of 64 x 64 sums. Thread t of 256 holds rows [row(), row() + 4) and the columns column(j),
// so the 16 threads of half a warp hold the same rows.
template <class Sum>
struct ScalarTile {
  static constexpr int kSize = kScalarTile, kThreads = kScalarThreads, kPerThread = 4;
  static constexpr int kDepth = kScalarDepth;
  static constexpr int kPitch = kSize + 1;
  // Shared memory of add_product.
  static constexpr int64_t kBytes = scalar_product_bytes(sizeof(Sum));

  Sum sums[kPerThread][kPerThread];

  static VIT_DEVICE_METHOD int row(int i) { return thread_index() / 16 * kPerThread + i; }
  static VIT_DEVICE_METHOD int column(int j) { return thread_index() % 16 + 16 * j; }

  VIT_DEVICE_METHOD void clear() {
    for (auto& row : sums) {
      for (Sum& sum : row) sum = 0;
    }
  }

  // sums(row, column) += sum over k < depth of a(row, k) b(k, column). a and b are called for rows
  // and columns below kSize, and must return 0 where they have no element. `kByDepth`: neighbours
  // in memory are neighbours in k, for a and for b. All threads of the block call it; `shared` has
  // kBytes and may be used again at once.
  template <bool a_by_depth, bool b_by_depth, class A, class B>
  VIT_DEVICE_METHOD void add_product(int64_t depth, const A& a, const B& b, Sum* shared) {
    Sum* const shared_a = shared;
    Sum* const shared_b = shared + kDepth * kPitch;
    for (int64_t first = 0; first < depth; first += kDepth) {
      for (int i = thread_index(); i < kDepth * kSize; i += kThreads) {
        const int ka = a_by_depth ? i % kDepth : i / kSize,
                  at = a_by_depth ? i / kDepth : i % kSize;
        shared_a[ka * kPitch + at] = first + ka < depth ? a(at, first + ka) : Sum{0};
        const int kb = b_by_depth ? i % kDepth : i / kSize,
                  bt = b_by_depth ? i / kDepth : i % kSize;
        shared_b[kb * kPitch + bt] = first + kb < depth ? b(first + kb, bt) : Sum{0};
      }
      sync_block();
#pragma unroll 4
      for (int k = 0; k < kDepth; ++k) {
        Sum left[kPerThread], right[kPerThread];
        for (int i = 0; i < kPerThread; ++i) left[i] = shared_a[k * kPitch + row(i)];
        for (int j = 0; j < kPerThread; ++j) right[j] = shared_b[k * kPitch + column(j)];
        for (int i = 0; i < kPerThread; ++i) {
          for (int j = 0; j < kPerThread; ++j) sums[i][j] += left[i] * right[j];
        }
      }
      sync_block();
    }
  }
};

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_SCALAR_TILES_H_
