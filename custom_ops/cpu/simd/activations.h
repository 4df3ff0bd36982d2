// Activations of vectors: GELU, x times the normal distribution function, and SiLU, x times the
// logistic function, and derivatives. As in TensorFlow, infinity gives infinity, and minus infinity
// gives NaN, its product with 0.
#ifndef CUSTOM_OPS_CPU_SIMD_ACTIVATIONS_H_
#define CUSTOM_OPS_CPU_SIMD_ACTIVATIONS_H_

#include "custom_ops/cpu/simd/math.h"

namespace vit {
namespace VIT_ISA {

// 1 / x for normal x whose reciprocal is normal, within 2 units in the last place.
VIT_INLINE Vector<float> reciprocal(Vector<float> x) {
#if defined(__AVX512F__)
  // One step of Newton's method doubles the 14 bits of the estimate; a division takes 16 cycles.
  const Vector<float> estimate = (Vector<float>)_mm512_rcp14_ps((__m512)x);
  return estimate * (2.0f - x * estimate);
#else
  return 1.0f / x;
#endif
}

// x / (1 + 2^exponent). From 2^126 on the reciprocal would not be a normal number; x is multiplied
// by 0 then.
VIT_INLINE Vector<float> times_logistic(Vector<float> x, Vector<float> exponent) {
  const Vector<float> most = broadcast<float>(126.0f);
  const Vector<float> part = reciprocal(1.0f + exp2(exponent < most ? exponent : most));
  return x * (exponent > most ? Vector<float>{} : part);
}

// The tanh form, x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))).
VIT_INLINE Vector<float> gelu_tanh(Vector<float> x) {
  // -2 sqrt(2 / pi) / log(2), and that times 0.044715.
  return times_logistic(x, x * (-2.3022081986f - 0.1029432397f * (x * x)));
}

// x / (1 + exp(-x)).
VIT_INLINE Vector<float> silu(Vector<float> x) { return times_logistic(x, x * -1.4426950409f); }

// Minimax for log2(erfc(z) exp(z^2) / t) in t = 1 / (1 + z / 2), for z from 0 to 7: the relative
// error of erfc is 9e-8. Beyond 7, erfc is below 1e-22.
constexpr float kErfcLog2[] = {-1.82484210f, 1.42515695f, 0.685268283f, -0.536880970f, 1.67786407f,
                               -3.20134473f, 2.66410375f, -1.05329370f, 0.163968220f};

// The exact form: for x >= 0 it is x - x erfc(x / sqrt(2)) / 2, else x erfc(-x / sqrt(2)) / 2.
VIT_INLINE Vector<float> gelu_erf(Vector<float> x) {
  const Vector<float> z = (x < 0.0f ? -x : x) * 0.70710678f;
  const Vector<float> t = reciprocal(1.0f + 0.5f * z);
  // x * x and not 2 z * z: the rounding of z would count twice.
  const Vector<float> exponent = polynomial<float>(t, kErfcLog2) - x * x * 0.72134752f;
  const Vector<float> lower = x * (0.5f * t * exp2(exponent));
  // Above 16, `lower` is less than half a unit in the last place of x; of infinity it is NaN.
  const Vector<float> upper = x > 16.0f ? x : x - lower;
  return x < 0.0f ? lower : upper;
}

// Beyond these the slopes of GELU are 0 or 1 in float; x^3 stays small, so that no inf times 0
// appears. NaN stays NaN.
VIT_INLINE Vector<float> within(Vector<float> x, float most) {
  x = x > most ? broadcast(most) : x;
  return x < -most ? broadcast(-most) : x;
}

// The derivative of gelu_tanh: with the logistic function s of y = 2 sqrt(2 / pi) (x + 0.044715
// x^3) it is s + x s (1 - s) y'.
VIT_INLINE Vector<float> gelu_tanh_slope(Vector<float> x) {
  x = within(x, 9.5f);
  const Vector<float> square = x * x;
  const Vector<float> power = exp2(x * (-2.3022081986f - 0.1029432397f * square));
  const Vector<float> s = reciprocal(1.0f + power);
  const Vector<float> slope = 1.5957691216f + 0.2140644488f * square;
  return s + x * slope * (s * s * power);
}

// The derivative of gelu_erf: the normal distribution function plus x times the normal density.
VIT_INLINE Vector<float> gelu_erf_slope(Vector<float> x) {
  x = within(x, 13.0f);
  const Vector<float> z = (x < 0.0f ? -x : x) * 0.70710678f;
  const Vector<float> t = reciprocal(1.0f + 0.5f * z);
  const Vector<float> exponent = x * x * -0.72134752f;
  const Vector<float> lower = 0.5f * t * exp2(polynomial<float>(t, kErfcLog2) + exponent);
  const Vector<float> share = x < 0.0f ? lower : 1.0f - lower;
  return share + x * (0.39894228f * exp2(exponent));
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_SIMD_ACTIVATIONS_H_
