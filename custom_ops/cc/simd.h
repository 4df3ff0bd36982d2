// Vectors of the instruction set that this file is compiled for, in GCC's vector extension.
//
// A file that includes this is compiled once for every instruction set, with -DVIT_ISA=<name>; all
// it defines lies in namespace vit::<name>. Such a file may include <immintrin.h>, <stdint.h>,
// <stddef.h> and our own headers only: of an inline function of the standard library the linker
// keeps one copy for the whole program, and it might keep the one with AVX-512.
#ifndef CUSTOM_OPS_CC_SIMD_H_
#define CUSTOM_OPS_CC_SIMD_H_

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "custom_ops/cc/kernel.h"

#ifndef VIT_ISA
#define VIT_ISA baseline
#endif

#if defined(__AVX512F__)
#define VIT_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VIT_VECTOR_BYTES 32
#else
#define VIT_VECTOR_BYTES 16
#endif

#define VIT_INLINE inline __attribute__((always_inline))

namespace vit {
namespace VIT_ISA {

// Elements in memory that are not numbers of C++.
struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// Two neighbouring bfloat16, which one instruction multiplies and adds (tile.h). As long as pairs are
// only moved about, a vector of floats holds their bits.
struct Pair {
  Bfloat16 first, second;
};

template <class E>
constexpr int64_t kNumbersIn = 1;
template <>
inline constexpr int64_t kNumbersIn<Pair> = 2;

template <class T>
struct VectorOf;
template <>
struct VectorOf<float> {
  typedef float type __attribute__((vector_size(VIT_VECTOR_BYTES)));
  typedef float unaligned __attribute__((vector_size(VIT_VECTOR_BYTES), aligned(4), may_alias));
  typedef int32_t integers __attribute__((vector_size(VIT_VECTOR_BYTES)));
};
template <>
struct VectorOf<double> {
  typedef double type __attribute__((vector_size(VIT_VECTOR_BYTES)));
  typedef double unaligned __attribute__((vector_size(VIT_VECTOR_BYTES), aligned(8), may_alias));
  typedef int64_t integers __attribute__((vector_size(VIT_VECTOR_BYTES)));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
using Integers = typename VectorOf<T>::integers;

// Elements in a vector.
template <class T>
constexpr int kLanes = VIT_VECTOR_BYTES / static_cast<int>(sizeof(T));

template <class T>
VIT_INLINE Vector<T> load(const T* p) {
  return *reinterpret_cast<const typename VectorOf<T>::unaligned*>(p);
}

template <class T>
VIT_INLINE void store(T* p, Vector<T> x) {
  *reinterpret_cast<typename VectorOf<T>::unaligned*>(p) = x;
}

template <class T>
VIT_INLINE Vector<T> broadcast(T x) {
  return x - Vector<T>{};
}

// a * b + c, with one rounding where there is an instruction for it. Compilers make one of a product
// and a sum too, but not everywhere: this is for what has to get the same bits in several places.
template <class T>
VIT_INLINE Vector<T> multiply_add(Vector<T> a, Vector<T> b, Vector<T> c) {
  return a * b + c;
}
#if defined(__AVX512F__)
template <>
VIT_INLINE Vector<float> multiply_add<float>(Vector<float> a, Vector<float> b, Vector<float> c) {
  return (Vector<float>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
template <>
VIT_INLINE Vector<double> multiply_add<double>(Vector<double> a, Vector<double> b,
                                               Vector<double> c) {
  return (Vector<double>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
}
#elif defined(__FMA__) && defined(__AVX2__)
template <>
VIT_INLINE Vector<float> multiply_add<float>(Vector<float> a, Vector<float> b, Vector<float> c) {
  return (Vector<float>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
template <>
VIT_INLINE Vector<double> multiply_add<double>(Vector<double> a, Vector<double> b,
                                               Vector<double> c) {
  return (Vector<double>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
}
#endif

// b where a or b is NaN.
template <class T>
VIT_INLINE Vector<T> maximum(Vector<T> a, Vector<T> b) {
  return a > b ? a : b;
}
#if defined(__AVX512F__)
template <>
VIT_INLINE Vector<float> maximum<float>(Vector<float> a, Vector<float> b) {
  return (Vector<float>)_mm512_max_ps((__m512)a, (__m512)b);
}
template <>
VIT_INLINE Vector<double> maximum<double>(Vector<double> a, Vector<double> b) {
  return (Vector<double>)_mm512_max_pd((__m512d)a, (__m512d)b);
}
#endif

// The vector with x in all its lanes is passed as x: constants then stay in registers.
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

// 2^x for x <= 127 (1023): within 1 unit in the last place of a normal result (0.51 measured for the
// reduced argument; the rest is the rounding of the sums); 0 for -inf and below the normal numbers at
// the latest at their half; NaN for NaN.
#if defined(__AVX512F__)
VIT_INLINE Vector<float> exp2(Vector<float> x) {
  x = maximum<float>(broadcast<float>(-150.0f), x);  // -inf - -inf would be NaN below
  const __m512 whole = _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
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
// The bits of 2^n are those of (n + bias) << mantissa; adding 1.5 * 2^mantissa rounds to an integer
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

// log2 of positive, finite, normal numbers, within 2 units in the last place or 2^-24 (2^-53): with
// z = (m - 1) / (m + 1) of the mantissa m in [sqrt(1/2), sqrt(2)), log(m) = 2 z (1 + z^2/3 + ...).
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
  constexpr T kDouble[] = {kScale,      kScale / 3,  kScale / 5,  kScale / 7,  kScale / 9,
                           kScale / 11, kScale / 13, kScale / 15, kScale / 17, kScale / 19,
                           kScale / 21};
  Vector<T> sum;
  if constexpr (kIsFloat) {
    sum = polynomial<T>(z2, kFloat);
  } else {
    sum = polynomial<T>(z2, kDouble);
  }
  return __builtin_convertvector(exponent, Vector<T>) + z * sum;
}

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
  // Subnormal halves are multiples of 2^-24; elsewhere the exponent moves by 112.
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

// Elements of S in memory as vectors of T and back; T is double for doubles and float for the rest.
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
  return (Vector<float>)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
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

// The first `count` lanes; the others are 0 and what lies behind is not read.
template <class S>
VIT_INLINE Vector<Accumulator<S>> load_first(const S* p, int64_t count) {
  using T = Accumulator<S>;
  if (count >= kLanes<T>) return load_converted(p);
  T lanes[kLanes<T>] = {};
  for (int64_t i = 0; i < count; ++i) lanes[i] = convert(p[i]);
  return load<T>(lanes);
}

// Writes the first `count` lanes only.
template <class S>
VIT_INLINE void store_first(S* p, Vector<Accumulator<S>> x, int64_t count) {
  using T = Accumulator<S>;
  if (count >= kLanes<T>) {
    store_converted(p, x);
    return;
  }
  T lanes[kLanes<T>];
  store<T>(lanes, x);
  for (int64_t i = 0; i < count; ++i) convert_to(lanes[i], p + i);
}

#if defined(__AVX512BF16__)
// The numbers rounded, with the quick instruction: it takes numbers below the normal ones as 0.
VIT_INLINE void store_rounded(Bfloat16* p, Vector<float> x) {
  const __m256bh rounded = _mm512_cvtneps_pbh((__m512)x);
  __builtin_memcpy(p, &rounded, 32);
}

// Pairs of the numbers of two vectors, rounded likewise; `p` points to 16 pairs.
VIT_INLINE void store_pairs(void* p, Vector<float> low, Vector<float> high) {
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  // Element 2 i is i of the low half, element 2 i + 1 is i of the high half.
  const __m512i order = _mm512_add_epi32(
      _mm512_set1_epi32(0x00100000),
      _mm512_mullo_epi32(_mm512_set1_epi32(0x00010001),
                         _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
  _mm512_storeu_si512(p, _mm512_permutexvar_epi16(order, halves));
}
#endif

// The sum of all lanes, always in the same order.
template <class T>
VIT_INLINE T add_lanes(Vector<T> x) {
  T lanes[kLanes<T>];
  store<T>(lanes, x);
#pragma GCC unroll 4
  for (int width = kLanes<T> / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

// GCC has clang's form since 12. A test defines VIT_GCC_11 to use the other one.
#if defined(VIT_GCC_11) || (defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12)
#define VIT_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype(a < b){__VA_ARGS__})
#else
#define VIT_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif

// Lanes of two vectors in turn: a0 b0 a1 b1 ..., the lower half or the upper half of them.
template <class V>
VIT_INLINE V zip_low(V a, V b) {
  if constexpr (sizeof(V) / sizeof(a[0]) == 16) {
    return VIT_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  } else if constexpr (sizeof(V) / sizeof(a[0]) == 8) {
    return VIT_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
  } else if constexpr (sizeof(V) / sizeof(a[0]) == 4) {
    return VIT_SHUFFLE(a, b, 0, 4, 1, 5);
  } else {
    return VIT_SHUFFLE(a, b, 0, 2);
  }
}
template <class V>
VIT_INLINE V zip_high(V a, V b) {
  if constexpr (sizeof(V) / sizeof(a[0]) == 16) {
    return VIT_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  } else if constexpr (sizeof(V) / sizeof(a[0]) == 8) {
    return VIT_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  } else if constexpr (sizeof(V) / sizeof(a[0]) == 4) {
    return VIT_SHUFFLE(a, b, 2, 6, 3, 7);
  } else {
    return VIT_SHUFFLE(a, b, 1, 3);
  }
}

// Transposes the square of kLanes vectors: log2(kLanes) rounds that zip row i with row i + kLanes / 2.
template <class T>
VIT_INLINE void transpose(Vector<T> (&rows)[kLanes<T>]) {
  constexpr int kCount = kLanes<T>;
#pragma GCC unroll 4
  for (int width = 1; width < kCount; width *= 2) {
    Vector<T> next[kCount];
#pragma GCC unroll 8
    for (int i = 0; i < kCount / 2; ++i) {
      next[2 * i] = zip_low(rows[i], rows[i + kCount / 2]);
      next[2 * i + 1] = zip_high(rows[i], rows[i + kCount / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kCount; ++i) rows[i] = next[i];
  }
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CC_SIMD_H_
