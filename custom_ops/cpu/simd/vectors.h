// Vectors of the instruction set that this file is compiled for, in GCC's vector extension.
//
// A file that includes this one is compiled once for every instruction set, with -DVIT_ISA=<name>.
// All its definitions lie in namespace vit::<name>. Such a file may include only <immintrin.h>,
// <stdint.h>, <stddef.h> and headers of this project: the linker keeps one copy of each inline
// function of the standard library for the whole program, and that copy might use AVX-512.
#ifndef CUSTOM_OPS_CPU_SIMD_VECTORS_H_
#define CUSTOM_OPS_CPU_SIMD_VECTORS_H_

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <stdint.h>

#include "custom_ops/cc/dtype.h"
#include "custom_ops/cpu/isa.h"

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

// For functions that the compiler would copy into each caller, which makes the library much larger.
#if defined(__clang__)
#define VIT_NOINLINE __attribute__((noinline))
#else
#define VIT_NOINLINE __attribute__((noinline, noclone))
#endif

namespace vit {
namespace VIT_ISA {

// The instruction set that this file is compiled for.
#if defined(__AMX_BF16__)
constexpr Isa kIsa = Isa::kAmx;
#elif defined(__AVX512BF16__)
constexpr Isa kIsa = Isa::kAvx512Bf16;
#elif defined(__AVX512F__)
constexpr Isa kIsa = Isa::kAvx512;
#elif defined(__AVX2__)
constexpr Isa kIsa = Isa::kAvx2;
#else
constexpr Isa kIsa = Isa::kBaseline;
#endif

// Types of elements in memory that C++ has no number type for.
struct Bfloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

// Two neighbouring bfloat16, which one instruction multiplies and adds (tile.h). Code that only
// moves Pairs treats their bits as a vector of floats.
struct Pair {
  Bfloat16 first, second;
};

// Numbers in an element: 2 for Pairs, as VNNI instructions take them.
template <class E>
constexpr int64_t kPackSize = 1;
template <>
inline constexpr int64_t kPackSize<Pair> = 2;

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

// The number of elements in a vector.
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

// a * b + c, with one rounding if there is an instruction for it. Compilers also fuse a product and
// a sum, but not everywhere: use this function where several places must compute the same bits.
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

// Returns b in lanes where a or b is NaN.
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

// The sum of all lanes, always added in the same order.
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

// GCC 12 and later have the shuffle of clang. A test defines VIT_GCC_11 to compile the older form.
#if defined(VIT_GCC_11) || (defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 12)
#define VIT_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, decltype(a < b){__VA_ARGS__})
#else
#define VIT_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif

// Interleaves the lanes of the lower halves, or of the upper halves, of two vectors: a0 b0 a1 b1
// ...
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

// Transposes the square of kLanes vectors, in log2(kLanes) rounds that interleave row i with row i
// + kLanes / 2.
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

#endif  // CUSTOM_OPS_CPU_SIMD_VECTORS_H_
