// Products without tensor cores, for float32 and whatever tensor cores do not cover: a block of 256
// threads computes a tile of 64 x 64 sums, 4 x 4 per thread. Sums are float.
#ifndef CUSTOM_OPS_CUDA_SCALAR_TILES_H_
#define CUSTOM_OPS_CUDA_SCALAR_TILES_H_

#include "custom_ops/cuda/device.h"

namespace vit {

// A tile of 64 x 64 sums. Thread t of 256 holds rows [row(), row() + 4) and the columns column(j),
// so the 16 threads of half a warp hold the same rows.
struct ScalarTile {
  static constexpr int kSize = kScalarTile, kThreads = kScalarThreads, kPerThread = 4;
  static constexpr int kDepth = kScalarDepth;
  static constexpr int kPitch = kSize + 1;
  // Shared memory of add_product.
  static constexpr int64_t kBytes = kScalarProductBytes;

  float sums[kPerThread][kPerThread];

  static VIT_DEVICE_METHOD int row(int i) { return thread_index() / 16 * kPerThread + i; }
  static VIT_DEVICE_METHOD int column(int j) { return thread_index() % 16 + 16 * j; }

  VIT_DEVICE_METHOD void clear() {
    for (auto& row : sums) {
      for (float& sum : row) sum = 0;
    }
  }

  // sums(row, column) += sum over k < depth of a(row, k) b(k, column). a and b are called for rows
  // and columns below kSize, and must return 0 where they have no element. `kByDepth`: neighbours
  // in memory are neighbours in k, for a and for b. All threads of the block call it; `shared` has
  // kBytes and may be used again at once.
  template <bool a_by_depth, bool b_by_depth, class A, class B>
  VIT_DEVICE_METHOD void add_product(int64_t depth, const A& a, const B& b, float* shared) {
    float* const shared_a = shared;
    float* const shared_b = shared + kDepth * kPitch;
    for (int64_t first = 0; first < depth; first += kDepth) {
      for (int i = thread_index(); i < kDepth * kSize; i += kThreads) {
        const int ka = a_by_depth ? i % kDepth : i / kSize,
                  at = a_by_depth ? i / kDepth : i % kSize;
        shared_a[ka * kPitch + at] = first + ka < depth ? a(at, first + ka) : 0.0f;
        const int kb = b_by_depth ? i % kDepth : i / kSize,
                  bt = b_by_depth ? i / kDepth : i % kSize;
        shared_b[kb * kPitch + bt] = first + kb < depth ? b(first + kb, bt) : 0.0f;
      }
      sync_block();
#pragma unroll 4
      for (int k = 0; k < kDepth; ++k) {
        float left[kPerThread], right[kPerThread];
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
