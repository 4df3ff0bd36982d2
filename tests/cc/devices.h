// The CPU, where scenarios for CPUs and GPUs run. gpu_scratch.h has the GPU.
#ifndef TESTS_CC_DEVICES_H_
#define TESTS_CC_DEVICES_H_

#include "tests/cc/check.h"
#include "tests/cc/memory.h"

namespace vit_test {

struct Cpu {
  static constexpr bool kIsGpu = false;
  // The types that kernels compute with, and the types of images.
  static constexpr auto& kTypes = kFloatTypes;
  static constexpr vit::DType kImageTypes[] = {vit::DType::kUint8, vit::DType::kFloat32,
                                               vit::DType::kBfloat16, vit::DType::kFloat16,
                                               vit::DType::kFloat64};
  // Elements that tensors are shifted by where alignment does not matter.
  static constexpr int kShift = 1;
  static const char* name() { return isa(); }
  // What runs and their `execution` take.
  static vit::ParallelFor where() { return vit::serial(); }
  // Calls body() with each instruction set.
  template <class Body>
  static void for_each(const Body& body) {
    for_each_isa(body);
  }
  // Several threads run the units in other orders: see threads.h.
  template <class Body>
  static void in_reverse(const Body&) {}
};

}  // namespace vit_test

#endif  // TESTS_CC_DEVICES_H_
