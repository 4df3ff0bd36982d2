// The GPU of gpu_emulation.h as a device of scenarios, with the scratch memory of memory.h.
#ifndef TESTS_CC_GPU_SCRATCH_H_
#define TESTS_CC_GPU_SCRATCH_H_

#include <vector>

#include "custom_ops/cuda/cuda_execution.h"
#include "tests/cc/gpu_emulation.h"
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

  // As of Cpu in devices.h.
  static constexpr bool kIsGpu = true;
  static constexpr vit::DType kTypes[] = {vit::DType::kFloat32, vit::DType::kBfloat16,
                                          vit::DType::kFloat16};
  static constexpr vit::DType kImageTypes[] = {vit::DType::kUint8, vit::DType::kFloat32,
                                               vit::DType::kBfloat16, vit::DType::kFloat16};
  // 0: other tensors are read without vectors.
  static constexpr int kShift = 0;
  static const char* name() { return "GPU"; }
  static Gpu where() { return {}; }
  template <class Body>
  static void for_each(const Body& body) {
    body();
  }
  // Calls body() with the last block and warp first.
  template <class Body>
  static void in_reverse(const Body& body) {
    set_reversed(true);
    body();
    set_reversed(false);
  }
};

inline vit::CudaExecution execution(const Gpu& gpu) {
  const auto allocate = [](void* allocator, int64_t bytes) {
    EXPECT(bytes > 0, "an empty piece of scratch is allocated");
    void* const piece = allocate_scratch(bytes);
    if (piece) static_cast<std::vector<void*>*>(allocator)->push_back(piece);
    return piece;
  };
  return {nullptr, allocate, &gpu.pieces};
}

}  // namespace vit_test

#endif  // TESTS_CC_GPU_SCRATCH_H_
