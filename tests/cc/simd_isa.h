// The functions of custom_ops/cpu/simd in a form that a test can call, for every instruction set.
#ifndef TESTS_CC_SIMD_ISA_H_
#define TESTS_CC_SIMD_ISA_H_

#include <stddef.h>
#include <stdint.h>

#include "custom_ops/cpu/isa.h"

namespace vit_test {

// Counts are multiples of 16, the lanes of the widest vector. A vector has `lanes` floats.
struct SimdFunctions {
  int lanes;
  void (*exp2_float)(const float* x, float* result, int64_t count);
  void (*exp2_double)(const double* x, double* result, int64_t count);
  void (*log2_float)(const float* x, float* result, int64_t count);
  void (*log2_double)(const double* x, double* result, int64_t count);
  void (*reciprocal)(const float* x, float* result, int64_t count);
  void (*gelu_tanh)(const float* x, float* result, int64_t count);
  void (*gelu_erf)(const float* x, float* result, int64_t count);
  void (*silu)(const float* x, float* result, int64_t count);
  // Converts whole vectors, and single elements.
  void (*load_bfloat16)(const uint16_t* x, float* result, int64_t count);
  void (*load_bfloat16_one)(const uint16_t* x, float* result, int64_t count);
  void (*load_float16)(const uint16_t* x, float* result, int64_t count);
  void (*load_float16_one)(const uint16_t* x, float* result, int64_t count);
  void (*load_uint8)(const uint8_t* x, float* result, int64_t count);
  void (*store_bfloat16)(const float* x, uint16_t* result, int64_t count);
  void (*store_bfloat16_one)(const float* x, uint16_t* result, int64_t count);
  void (*store_float16)(const float* x, uint16_t* result, int64_t count);
  void (*store_float16_one)(const float* x, uint16_t* result, int64_t count);
  // The rounding of AVX-512 BF16 for one vector, and for two vectors as [lanes, 2]; null if not
  // available.
  void (*store_rounded)(const float* x, uint16_t* result, int64_t count);
  void (*store_pairs)(const float* low, const float* high, uint16_t* result);
  // Copies the first `count` elements of a vector, from and to memory that has no more.
  void (*copy_first_float)(const float* x, float* result, int64_t count);
  void (*copy_first_double)(const double* x, double* result, int64_t count);
  void (*copy_first_bfloat16)(const uint16_t* x, uint16_t* result, int64_t count);
  void (*copy_first_float16)(const uint16_t* x, uint16_t* result, int64_t count);
  // Transposes a square of `lanes` rows (half of them for double) in place.
  void (*transpose_float)(float* square);
  void (*transpose_double)(double* square);
  float (*add_lanes_float)(const float* x);
  double (*add_lanes_double)(const double* x);
  void (*maximum_float)(const float* a, const float* b, float* result);

  static constexpr vit::Isa kMost = vit::Isa::kAmx;
  template <vit::Isa isa>
  static SimdFunctions of();
};

}  // namespace vit_test

#endif  // TESTS_CC_SIMD_ISA_H_
