// Packs rows of tensors for the products of tile.h, and unpacks results.
#ifndef CUSTOM_OPS_CPU_PACK_H_
#define CUSTOM_OPS_CPU_PACK_H_

#include "custom_ops/cpu/simd/conversions.h"

namespace vit {
namespace VIT_ISA {

// Rows of a tensor, `step` elements apart, with `gap` more elements after every `period` rows.
template <class S>
struct Rows {
  S* at;
  int64_t step, left, period, gap;

  VIT_INLINE void next() {
    at += step;
    if (--left == 0) {
      at += gap;
      left = period;
    }
  }
};

template <class S>
VIT_INLINE Rows<S> equal_rows(S* at, int64_t step) {
  return {at, step, INT64_MAX, INT64_MAX, 0};
}

// Copies rows of `size` elements, `step` elements apart, as numbers into rows without gaps. It may
// write up to one vector beyond the end.
template <class S, class T = Accumulator<S>>
static VIT_NOINLINE void pack_rows(const S* from, int64_t step, int64_t rows, int64_t size, T* to) {
  for (int64_t i = 0; i < rows; ++i, from += step, to += size) {
    int64_t j = 0;
    for (; j + kLanes<T> <= size; j += kLanes<T>) store<T>(to + j, load_converted(from + j));
    if (j < size) store<T>(to + j, load_first(from + j, size - j));
  }
}

// Transposes the same rows: to[j * columns + i] = from[i * step + j]; columns beyond `rows` are 0.
// `columns` is a multiple of kLanes.
template <class S, class T = Accumulator<S>>
static VIT_NOINLINE void pack_columns(const S* from, int64_t step, int64_t rows, int64_t size,
                                      T* to, int64_t columns) {
  constexpr int kCount = kLanes<T>;
  for (int64_t i = 0; i < columns; i += kCount) {
    for (int64_t j = 0; j < size; j += kCount) {
      Vector<T> block[kCount];
      for (int r = 0; r < kCount; ++r) {
        block[r] = i + r < rows ? load_first(from + (i + r) * step + j, size - j) : Vector<T>{};
      }
      transpose<T>(block);
      for (int r = 0; r < kCount && j + r < size; ++r) {
        store<T>(to + (j + r) * columns + i, block[r]);
      }
    }
  }
}

// Transposes rows of numbers into columns of elements, [size / kPackSize<E>, columns].
template <class E, class S>
static void pack_elements(const S* from, int64_t step, int64_t rows, int64_t size, E* to,
                          int64_t columns) {
  constexpr int64_t kPack = kPackSize<E>;
  if constexpr (kPack == 1) {
    pack_columns(from, step, rows, size, to, columns);
  } else {
    pack_columns(reinterpret_cast<const E*>(from), step / kPack, rows, size / kPack,
                 static_cast<float*>(static_cast<void*>(to)), columns);
  }
}

// Packs rows of numbers as rows of elements for the right side of a product, [rows / kPackSize<E>,
// padded]. Numbers of neighbouring rows form an element. `padded` is a whole number of vectors; the
// padding is 0.
template <class E, class S>
static VIT_NOINLINE void pack_right(const S* from, int64_t step, int64_t rows, int64_t size, E* to,
                                    int64_t padded) {
  if constexpr (kPackSize<E> == 1) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < padded; j += kLanes<E>) {
        store<E>(to + i * padded + j, load_first(from + i * step + j, size - j));
      }
    }
  } else {
    const Bfloat16 zero = {0};
    for (int64_t i = 0; i < rows; i += 2, from += 2 * step, to += padded) {
      const bool both = i + 1 < rows;
      int64_t j = 0;
#if defined(__AVX512BF16__)
      for (; j + 16 <= size; j += 16) {
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(from + j)));
        __m512i high = _mm512_setzero_si512();
        if (both) high = (__m512i)load_converted(from + step + j);
        _mm512_storeu_si512(to + j, _mm512_or_si512(low, high));
      }
#endif
      for (; j < size; ++j) to[j] = {from[j], both ? from[step + j] : zero};
      for (; j < padded; ++j) to[j] = {zero, zero};
    }
  }
}

// Writes zeros to row i of the result of pack_right.
template <class E>
static void clear_right(E* to, int64_t padded, int64_t i) {
  to += i / kPackSize<E> * padded;
  for (int64_t j = 0; j < padded; ++j) {
    if constexpr (kPackSize<E> == 1) {
      to[j] = E{};
    } else {
      (i % 2 ? to[j].second : to[j].first) = Bfloat16{};
    }
  }
}

// Writes zeros to the columns of a block that are not open, even where they hold NaN.
template <class T>
static void clear_columns(T* to, int64_t columns, int64_t rows, Integers<T> open) {
  for (int64_t j = 0; j < rows; ++j) {
    store<T>(to + j * columns, open ? load(to + j * columns) : Vector<T>{});
  }
}

// The inverse of pack_columns: to[i * step + j] = from[j * columns + i] * factors[i / kLanes], for
// i < rows.
template <class S, class T = Accumulator<S>>
static VIT_NOINLINE void unpack_columns(const T* from, int64_t columns, const Vector<T>* factors,
                                        S* to, int64_t step, int64_t rows, int64_t size) {
  constexpr int kCount = kLanes<T>;
  for (int64_t i = 0; i < rows; i += kCount) {
    const Vector<T> factor = factors[i / kCount];
    for (int64_t j = 0; j < size; j += kCount) {
      Vector<T> block[kCount];
      for (int r = 0; r < kCount; ++r) {
        block[r] = j + r < size ? load<T>(from + (j + r) * columns + i) * factor : Vector<T>{};
      }
      transpose<T>(block);
      for (int r = 0; r < kCount && i + r < rows; ++r) {
        store_first(to + (i + r) * step + j, block[r], size - j);
      }
    }
  }
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PACK_H_
