// Exponentials and logarithms of vectors.
#ifndef CUSTOM_OPS_CPU_SIMD_MATH_H_
#define CUSTOM_OPS_CPU_SIMD_MATH_H_

#include "custom_ops/cpu/simd/vectors.h"

namespace vit {
namespace VIT_ISA {

// Evaluates a polynomial. x comes as a vector that holds it in all lanes, so that constants stay in
// registers.
template <class T, int kCount>
VIT_INLINE Vector<T> polynomial(Vector<T> x, const T (&coefficients)[kCount]) {
  Vector<T> sum = broadcast<T>(coefficients[kCount - 1]);
#pragma GCC unroll 16
  for (int i = kCount - 2; i >= 0; --i) sum = sum * x + coefficients[i];
  return sum;
}

// Minimax for 2^x on [-1/2, 1/2] with value 1 at 0: relative error 2.6e-9 and 1.8e-17.
constexpr float kExp2Float[] = {1.0f,
                                0.693147214967884963f,
                                0.240226527828761768f,
                                0.0555031055120698058f,
                                0.00961769297614318723f,
                                0.00134066438474800602f,
                                0.000155946770151054106f};
constexpr double kExp2Double[] = {1.0,
                                  0.693147180559945697,
                                  0.24022650695910098,
                                  0.0555041086647903945,
                                  0.00961812910760700262,
                                  0.00133335581534399697,
                                  0.000154035304415718501,
                                  0.0000152527273851897748,
                                  1.32154426754528552e-6,
                                  1.01806476605730693e-7,
                                  7.07257039454079943e-9,
                                  4.07807178609287042e-10};

// 2^x for x <= 127 (1023 for double). Normal results are within 1 unit in the last place (0.51
// measured for the reduced argument; the rest is the rounding of the sums). -inf gives 0, NaN gives
// NaN. A result below the smallest normal number may be replaced by 0.
#if defined(__AVX512F__)
VIT_INLINE Vector<float> exp2(Vector<float> x) {
  x = maximum<float>(broadcast<float>(-150.0f), x);  // -inf - -inf would be NaN below
  const __m512 whole =
      _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vector<float> result = polynomial<float>(x - (Vector<float>)whole, kExp2Float);
  return (Vector<float>)_mm512_scalef_ps((__m512)result, whole);
}
VIT_INLINE Vector<double> exp2(Vector<double> x) {
  x = maximum<double>(broadcast<double>(-1080.0), x);
  const __m512d whole =
      _mm512_roundscale_pd((__m512d)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vector<double> result = polynomial<double>(x - (Vector<double>)whole, kExp2Double);
  return (Vector<double>)_mm512_scalef_pd((__m512d)result, whole);
}
#else
// The bits of 2^n equal (n + bias) << mantissa; adding 1.5 * 2^mantissa rounds to an integer
// and leaves it in the low bits.
template <class T, class Integer, int kCount>
VIT_INLINE Vector<T> exp2_by_bits(Vector<T> x, int mantissa, Integer bias, T magic,
                                  const T (&coefficients)[kCount]) {
  const T lowest = static_cast<T>(1 - bias);  // the exponent of the smallest normal number
  const Vector<T> inside = x < lowest ? broadcast<T>(lowest) : x;
  const Vector<T> shifted = inside + magic;
  const Vector<T> whole = shifted - magic;
  const Integers<T> exponent = ((Integers<T>)shifted + bias) << mantissa;
  const Vector<T> result = polynomial<T>(inside - whole, coefficients) * (Vector<T>)exponent;
  return x < lowest ? Vector<T>{} : result;
}
VIT_INLINE Vector<float> exp2(Vector<float> x) {
  return exp2_by_bits<float, int32_t>(x, 23, 127, 12582912.0f, kExp2Float);
}
VIT_INLINE Vector<double> exp2(Vector<double> x) {
  return exp2_by_bits<double, int64_t>(x, 52, 1023, 6755399441055744.0, kExp2Double);
}
#endif

// The square root, rounded correctly; of negative numbers NaN.
VIT_INLINE Vector<float> square_root(Vector<float> x) {
#if defined(__AVX512F__)
  return (Vector<float>)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
  return (Vector<float>)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__)
  return (Vector<float>)_mm_sqrt_ps((__m128)x);
#else
  for (int i = 0; i < kLanes<float>; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// log2 of positive, finite, normal numbers, within 2 units in the last place or 2^-24 (2^-53 for
// double). With the mantissa m in [sqrt(1/2), sqrt(2)) and z = (m - 1) / (m + 1), log(m) = 2 z (1 +
// z^2/3 + ...).
template <class T>
VIT_INLINE Vector<T> log2(Vector<T> x) {
  constexpr bool kIsFloat = sizeof(T) == 4;
  constexpr int kMantissa = kIsFloat ? 23 : 52;
  using Int = decltype(Integers<T>{}[0] + 0);
  constexpr Int kHalfRoot = kIsFloat ? Int(0x3f3504f3) : Int(0x3fe6a09e667f3bcd);  // sqrt(1/2)
  const Integers<T> bits = (Integers<T>)x;
  const Integers<T> exponent = (bits - kHalfRoot) >> kMantissa;
  const Vector<T> m = (Vector<T>)(bits - (exponent << kMantissa));
  const Vector<T> z = (m - T(1)) / (m + T(1));
  const Vector<T> z2 = z * z;
  constexpr T kScale = T(2.88539008177792681472);  // 2 / log(2)
  constexpr T kFloat[] = {kScale, kScale / 3, kScale / 5, kScale / 7, kScale / 9};
  constexpr T kDouble[] = {kScale,      kScale / 3,  kScale / 5,  kScale / 7,
                           kScale / 9,  kScale / 11, kScale / 13, kScale / 15,
                           kScale / 17, kScale / 19, kScale / 21};
  Vector<T> sum;
  if constexpr (kIsFloat) {
    sum = polynomial<T>(z2, kFloat);
  } else {
    sum = polynomial<T>(z2, kDouble);
  }
  return __builtin_convertvector(exponent, Vector<T>) + z * sum;
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_SIMD_MATH_H_
