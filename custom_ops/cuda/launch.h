// The size of a launch on a GPU: plain numbers, which host code computes and tests check.
#ifndef CUSTOM_OPS_CUDA_LAUNCH_H_
#define CUSTOM_OPS_CUDA_LAUNCH_H_

#include <stdint.h>

#include "custom_ops/cc/dtype.h"

namespace vit {

// What every GPU from sm_80 on can launch. How much shared memory a block may have depends on the
// GPU: most_shared_bytes in cuda_execution.h.
constexpr int64_t kMaxBlocks = 0x7fffffff;
constexpr int kMaxThreads = 1024;

// Blocks are numbered along one dimension, whose limit is far above the limits of the other two.
struct LaunchShape {
  int64_t blocks;
  int threads;           // per block, a multiple of 32
  int64_t shared_bytes;  // dynamic shared memory per block
};

// Whether a GPU can run it whose blocks may have so many bytes of shared memory. Work that is too
// large for one launch does not fit the memory of a GPU.
constexpr bool is_launchable(const LaunchShape& shape, int64_t most_shared) {
  return shape.blocks > 0 && shape.blocks <= kMaxBlocks && shape.threads > 0 &&
         shape.threads <= kMaxThreads && shape.threads % 32 == 0 && shape.shared_bytes >= 0 &&
         shape.shared_bytes <= most_shared;
}

// The threads of a warpgroup, four warps, and the tokens that it owns at a time.
constexpr int kWarpgroup = 128, kWarpgroupRows = 64;

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Kernels without tensor cores: threads of a block, sums in each direction of its tile, and how
// many products of each it adds at a time (ScalarTile).
constexpr int kScalarThreads = 256, kScalarTile = 64, kScalarDepth = 16;

// Bytes of a sum of products, a float, of ScalarTile::add_product, and of a tile of sums. In shared
// memory an element more per row puts the rows into different banks.
constexpr int64_t kSumBytes = 4;
constexpr int64_t kScalarProductBytes = 2 * kScalarDepth * (kScalarTile + 1) * kSumBytes;
constexpr int64_t kScalarTileBytes = kScalarTile * (kScalarTile + 1) * kSumBytes;

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_LAUNCH_H_
