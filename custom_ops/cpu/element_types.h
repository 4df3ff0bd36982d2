// Selects the kernels that are compiled for an element type.
#ifndef CUSTOM_OPS_CPU_ELEMENT_TYPES_H_
#define CUSTOM_OPS_CPU_ELEMENT_TYPES_H_

#include "custom_ops/cc/dtype.h"
#include "custom_ops/cpu/simd/vectors.h"

namespace vit {
namespace VIT_ISA {

// Kernels<S>::table(), with S the elements of a float type. Ends the process for any other type.
// The file for AVX-512 BF16 has kernels for bfloat16 only: see table_of_current_isa.
template <template <class S> class Kernels>
auto table_of_type(DType type) {
#if defined(__AVX512BF16__)
  if (type == DType::kBfloat16) return Kernels<Bfloat16>::table();
#else
  switch (type) {
    case DType::kFloat64:
      return Kernels<double>::table();
    case DType::kBfloat16:
      return Kernels<Bfloat16>::table();
    case DType::kFloat16:
      return Kernels<Float16>::table();
    case DType::kFloat32:
      return Kernels<float>::table();
    case DType::kUint8:
      break;
  }
#endif
  __builtin_trap();
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ELEMENT_TYPES_H_
