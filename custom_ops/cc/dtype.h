// Element types of tensors. The kernels of every device include the headers of this folder. Like
// the headers of custom_ops/cpu they include neither TensorFlow nor the C++ standard library (see
// custom_ops/cpu/simd/vectors.h).
#ifndef CUSTOM_OPS_CC_DTYPE_H_
#define CUSTOM_OPS_CC_DTYPE_H_

#include <stdint.h>

// For the functions of headers that files for an instruction set include (custom_ops/cpu/simd). The
// linker would keep one copy of such a function for the whole program, perhaps one with AVX-512.
#define VIT_INLINE inline __attribute__((always_inline))

namespace vit {

// Element type of tensors in memory. Sums are kept in float, or in double for kFloat64.
enum class DType : int { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2, kFloat64 = 3, kUint8 = 4 };

VIT_INLINE constexpr int64_t size_of(DType type) {
  return type == DType::kFloat64 ? 8 : type == DType::kFloat32 ? 4 : type == DType::kUint8 ? 1 : 2;
}

}  // namespace vit

#endif  // CUSTOM_OPS_CC_DTYPE_H_
