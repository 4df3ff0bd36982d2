// The execution of launchers under the emulation of gpu_emulation.h, with the scratch memory of
// memory.h.
#ifndef TESTS_CC_GPU_SCRATCH_H_
#define TESTS_CC_GPU_SCRATCH_H_

#include <vector>

#include "custom_ops/cuda/execution.h"
#include "tests/cc/memory.h"

namespace vit_test {

// Holds the scratch memory of calls, as a stream does until their work is done.
struct Gpu {
  mutable std::vector<void*> pieces;

  Gpu() = default;
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu() {
    for (void* piece : pieces) release_scratch(piece);
  }
};

inline vit::CudaExecution execution(const Gpu& gpu) {
  const auto allocate = [](void* allocator, int64_t bytes) {
    void* const piece = allocate_scratch(bytes);
    if (piece) static_cast<std::vector<void*>*>(allocator)->push_back(piece);
    return piece;
  };
  return {nullptr, allocate, &gpu.pieces};
}

}  // namespace vit_test

#endif  // TESTS_CC_GPU_SCRATCH_H_
