// Converts elements in memory to numbers and vectors, and back.
#ifndef CUSTOM_OPS_CPU_SIMD_CONVERSIONS_H_
#define CUSTOM_OPS_CPU_SIMD_CONVERSIONS_H_

#include "custom_ops/cpu/simd/vectors.h"

namespace vit {
namespace VIT_ISA {

// Conversions of one element.
VIT_INLINE float to_float(Bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float result;
  __builtin_memcpy(&result, &bits, 4);
  return result;
}
VIT_INLINE float to_float(Float16 x) {
#if defined(__F16C__)
  return _cvtsh_ss(x.bits);
#else
  // Subnormal halves are multiples of 2^-24; for normal ones 112 is added to the exponent.
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t rest = x.bits & 0x7fff;
  uint32_t bits = sign | ((rest << 13) + (112u << 23));
  if (rest >= 0x7c00) bits += 112u << 23;  // Inf and NaN
  float result;
  if (rest < 0x0400) {
    result = static_cast<float>(rest) * 0x1p-24f;
    return sign ? -result : result;
  }
  __builtin_memcpy(&result, &bits, 4);
  return result;
#endif
}
VIT_INLINE Bfloat16 to_bfloat16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if (x != x) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
VIT_INLINE Float16 to_float16(float x) {
#if defined(__F16C__)
  return {static_cast<uint16_t>(_cvtss_sh(x, 0))};
#else
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (bits >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};  // 65520 and above
  if (bits < 0x38800000) {  // below 2^-14: a multiple of 2^-24, rounded by an addition
    float absolute;
    __builtin_memcpy(&absolute, &bits, 4);
    const float shifted = absolute + 0.5f;  // the last place of [0.5, 1) is 2^-24
    uint32_t rounded;
    __builtin_memcpy(&rounded, &shifted, 4);
    return {static_cast<uint16_t>(sign | (rounded - 0x3f000000))};
  }
  const uint32_t rounded = bits + 0xfff + ((bits >> 13) & 1) - (112u << 23);
  return {static_cast<uint16_t>(sign | (rounded >> 13))};
#endif
}

// Converts elements of S in memory to vectors of T and back; T is double for doubles and float
// otherwise.
template <class S>
struct AccumulatorOf {
  using type = float;
};
template <>
struct AccumulatorOf<double> {
  using type = double;
};
template <class S>
using Accumulator = typename AccumulatorOf<S>::type;

VIT_INLINE float convert(float x) { return x; }
VIT_INLINE double convert(double x) { return x; }
VIT_INLINE float convert(Bfloat16 x) { return to_float(x); }
VIT_INLINE float convert(Float16 x) { return to_float(x); }
VIT_INLINE float convert(uint8_t x) { return static_cast<float>(x); }
VIT_INLINE float convert(Pair x) {
  float bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}
VIT_INLINE void convert_to(float x, float* p) { *p = x; }
VIT_INLINE void convert_to(double x, double* p) { *p = x; }
VIT_INLINE void convert_to(float x, Bfloat16* p) { *p = to_bfloat16(x); }
VIT_INLINE void convert_to(float x, Float16* p) { *p = to_float16(x); }

VIT_INLINE Vector<float> load_converted(const float* p) { return load(p); }
VIT_INLINE Vector<double> load_converted(const double* p) { return load(p); }
VIT_INLINE void store_converted(float* p, Vector<float> x) { store(p, x); }
VIT_INLINE void store_converted(double* p, Vector<double> x) { store(p, x); }
VIT_INLINE Vector<float> load_converted(const Pair* p) {
  Vector<float> bits;
  __builtin_memcpy(&bits, p, sizeof(bits));
  return bits;
}
#if defined(__AVX512F__)
VIT_INLINE Vector<float> load_converted(const Bfloat16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return (Vector<float>)_mm512_slli_epi32(wide, 16);
}
VIT_INLINE Vector<float> load_converted(const Float16* p) {
  return (Vector<float>)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
}
VIT_INLINE Vector<float> load_converted(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128((const __m128i*)p);
  return (Vector<float>)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}
VIT_INLINE void store_converted(Bfloat16* p, Vector<float> x) {
  const __m512i bits = (__m512i)x;
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
  const __m512i high = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(high));
}
VIT_INLINE void store_converted(Float16* p, Vector<float> x) {
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
}
#else
template <class S>
VIT_INLINE Vector<float> load_converted(const S* p) {
  Vector<float> x;
  for (int i = 0; i < kLanes<float>; ++i) x[i] = convert(p[i]);
  return x;
}
template <class S>
VIT_INLINE void store_converted(S* p, Vector<float> x) {
  for (int i = 0; i < kLanes<float>; ++i) convert_to(x[i], p + i);
}
#endif

// Loads or stores the first `count` lanes, fewer than all of them. Not inlined: rows that end
// within a vector are rare, and the code is large.
template <class S>
static VIT_NOINLINE Vector<Accumulator<S>> load_some(const S* p, int64_t count) {
  using T = Accumulator<S>;
  T lanes[kLanes<T>] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = convert(p[i]);
  return load<T>(lanes);
}
template <class S>
static VIT_NOINLINE void store_some(S* p, Vector<Accumulator<S>> x, int64_t count) {
  using T = Accumulator<S>;
  T lanes[kLanes<T>];
  store<T>(lanes, x);
  for (int64_t i = 0; i < count; ++i) convert_to(lanes[i], p + i);
}

// Loads the first `count` lanes; the others are 0. Reads nothing beyond `count`.
template <class S>
VIT_INLINE Vector<Accumulator<S>> load_first(const S* p, int64_t count) {
  return count >= kLanes<Accumulator<S>> ? load_converted(p) : load_some(p, count);
}

// Writes only the first `count` lanes.
template <class S>
VIT_INLINE void store_first(S* p, Vector<Accumulator<S>> x, int64_t count) {
  if (count >= kLanes<Accumulator<S>>) {
    store_converted(p, x);
  } else {
    store_some(p, x, count);
  }
}

#if defined(__AVX512BF16__)
// Rounds with the instruction of AVX-512 BF16, which replaces subnormal numbers by 0.
VIT_INLINE void store_rounded(Bfloat16* p, Vector<float> x) {
  const __m256bh rounded = _mm512_cvtneps_pbh((__m512)x);
  __builtin_memcpy(p, &rounded, 32);
}

// Multiplies both numbers of 16 Pairs by a power of two.
VIT_INLINE void scale_pairs(Pair* p, float factor) {
  const __m512i pairs = _mm512_loadu_si512(p);
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const Vector<float> first = (Vector<float>)_mm512_slli_epi32(pairs, 16) * factor;
  const Vector<float> second = (Vector<float>)_mm512_and_si512(pairs, upper) * factor;
  _mm512_storeu_si512(p, _mm512_or_si512(_mm512_srli_epi32((__m512i)first, 16),
                                         _mm512_and_si512((__m512i)second, upper)));
}

// Stores the numbers of two vectors as 16 Pairs at `p`, with the same rounding.
VIT_INLINE void store_pairs(void* p, Vector<float> low, Vector<float> high) {
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  // Element 2 i is element i of the low half, element 2 i + 1 is element i of the high half.
  const __m512i order = _mm512_add_epi32(
      _mm512_set1_epi32(0x00100000),
      _mm512_mullo_epi32(_mm512_set1_epi32(0x00010001),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
  _mm512_storeu_si512(p, _mm512_permutexvar_epi16(order, halves));
}
#endif

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_SIMD_CONVERSIONS_H_
