// Element types by their definition, with arithmetic instead of the bit operations of the kernels:
// slow but simple.
#ifndef TESTS_CC_NUMBERS_H_
#define TESTS_CC_NUMBERS_H_

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "custom_ops/cc/dtype.h"

namespace vit_test {

// A binary format of 16 bits: a sign, an exponent, and below it the mantissa.
struct Format {
  int mantissa, bias;
};
constexpr Format kHalf = {10, 15};
constexpr Format kBfloat = {7, 127};

inline double decode(Format format, uint16_t bits) {
  const int mantissa = bits & ((1 << format.mantissa) - 1);
  const int exponent = (bits & 0x7fff) >> format.mantissa;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 2 * format.bias + 1) return mantissa ? NAN : sign * HUGE_VAL;
  const double one = exponent ? 1 << format.mantissa : 0;
  const int scale = (exponent ? exponent : 1) - format.bias - format.mantissa;
  return sign * ldexp(one + mantissa, scale);
}

// Rounds to nearest, ties to even. A NaN becomes a NaN of the same sign.
inline uint16_t encode(Format format, double x) {
  const int sign = signbit(x) ? 0x8000 : 0;
  const int infinity = (2 * format.bias + 1) << format.mantissa;
  if (isnan(x)) return static_cast<uint16_t>(sign | infinity | 1 << (format.mantissa - 1));
  if (isinf(x)) return static_cast<uint16_t>(sign | infinity);
  if (x == 0) return static_cast<uint16_t>(sign);
  int exponent = ilogb(x);
  if (exponent < 1 - format.bias) exponent = 1 - format.bias;
  // The value in units of the last place. If it is rounded up to the next power of two, the carry
  // increases the exponent, up to infinity.
  const int units = static_cast<int>(nearbyint(ldexp(fabs(x), format.mantissa - exponent)));
  const int64_t bits =
      (static_cast<int64_t>(exponent + format.bias - 1) << format.mantissa) + units;
  return static_cast<uint16_t>(sign | (bits < infinity ? bits : infinity));
}

inline double load_number(vit::DType type, const void* from) {
  uint16_t bits;
  float single;
  double number;
  switch (type) {
    case vit::DType::kFloat32:
      memcpy(&single, from, 4);
      return static_cast<double>(single);
    case vit::DType::kBfloat16:
      memcpy(&bits, from, 2);
      return decode(kBfloat, bits);
    case vit::DType::kFloat16:
      memcpy(&bits, from, 2);
      return decode(kHalf, bits);
    case vit::DType::kFloat64:
      memcpy(&number, from, 8);
      return number;
    case vit::DType::kUint8:
      return *static_cast<const uint8_t*>(from);
  }
  return NAN;
}

inline void store_number(vit::DType type, double x, void* to) {
  const uint16_t bits = type == vit::DType::kBfloat16  ? encode(kBfloat, x)
                        : type == vit::DType::kFloat16 ? encode(kHalf, x)
                                                       : uint16_t{0};
  const float single = static_cast<float>(x);
  const uint8_t byte = type == vit::DType::kUint8 ? static_cast<uint8_t>(x) : uint8_t{0};
  switch (type) {
    case vit::DType::kFloat32:
      memcpy(to, &single, 4);
      break;
    case vit::DType::kBfloat16:
    case vit::DType::kFloat16:
      memcpy(to, &bits, 2);
      break;
    case vit::DType::kFloat64:
      memcpy(to, &x, 8);
      break;
    case vit::DType::kUint8:
      memcpy(to, &byte, 1);
      break;
  }
}

inline double rounded_to(vit::DType type, double x) {
  double bits = 0;
  store_number(type, x, &bits);
  return load_number(type, &bits);
}

// Half a unit in the last place of 1; `smallest` is the same for the smallest numbers.
inline double unit(vit::DType type) {
  switch (type) {
    case vit::DType::kFloat32:
      return 0x1p-24;
    case vit::DType::kBfloat16:
      return 0x1p-8;
    case vit::DType::kFloat16:
      return 0x1p-11;
    case vit::DType::kFloat64:
      return 0x1p-53;
    case vit::DType::kUint8:
      return 0;
  }
  return 0;
}
inline double smallest(vit::DType type) {
  return type == vit::DType::kFloat16 ? 0x1p-25 : 0x1p-126;
}

// The type that sums are kept in.
inline vit::DType accumulator(vit::DType type) {
  return type == vit::DType::kFloat64 ? type : vit::DType::kFloat32;
}

inline const char* name(vit::DType type) {
  const char* names[] = {"float32", "bfloat16", "float16", "float64", "uint8"};
  return names[static_cast<int>(type)];
}

constexpr vit::DType kFloatTypes[] = {vit::DType::kFloat32, vit::DType::kBfloat16,
                                      vit::DType::kFloat16, vit::DType::kFloat64};

}  // namespace vit_test

#endif  // TESTS_CC_NUMBERS_H_
