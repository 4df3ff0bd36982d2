// Packs both sides of the products: pixels of patches as rows of numbers, and panels of the
// right-hand side.
//
// The rows of the matrix of patches are all patches of a batch, in the order of the tokens. Its
// columns are the elements of a patch, channel fastest. The matrix is never stored as a whole:
// blocks of it are read from the images, or written to them.
#ifndef CUSTOM_OPS_CPU_PATCH_EMBED_PACK_H_
#define CUSTOM_OPS_CPU_PATCH_EMBED_PACK_H_

#include "custom_ops/cc/patch_embed_problem.h"
#include "custom_ops/cpu/pack.h"
#include "custom_ops/cpu/tile.h"

namespace vit {
namespace VIT_ISA {

// The multiplication of kernels of type S: as Elements of tile.h, each of kPack Numbers, which are
// neighbours along the sum.
template <class S>
struct OperandsOf {
  using Number = Accumulator<S>;
  using Element = Accumulator<S>;
};
#if defined(__AVX512BF16__)
template <>
struct OperandsOf<Bfloat16> {
  using Number = Bfloat16;
  using Element = Pair;
};
#endif
template <class S>
using Number = typename OperandsOf<S>::Number;
template <class S>
using Element = typename OperandsOf<S>::Element;
template <class S>
constexpr int64_t kPack = kPackSize<Element<S>>;

// The Elements that hold `count` numbers; unused numbers of the last one are 0.
template <class S>
constexpr int64_t elements_of(int64_t count) {
  return ceil_divide(count, kPack<S>);
}

// The patches of a whole batch.
inline int64_t patch_rows(const PatchShape& shape) { return shape.batch * shape.patches(); }

// The rows of patch tokens in the tokens [batch, prefix + patches, features], from patch `row` of
// the batch on.
template <class S>
VIT_INLINE Rows<S> token_rows(const PatchShape& shape, S* tokens, int64_t row) {
  const int64_t patches = shape.patches(), features = shape.features;
  const int64_t token = row / patches * shape.tokens() + shape.prefix + row % patches;
  return {tokens + token * features, features, patches - row % patches, patches,
          shape.prefix * features};
}

// The rows of patches in a table [prefix + patches, features], from patch `row` of the batch on.
template <class S>
VIT_INLINE Rows<S> table_rows(const PatchShape& shape, S* table, int64_t row) {
  const int64_t patches = shape.patches(), features = shape.features;
  return {table + (shape.prefix + row % patches) * features, features, patches - row % patches,
          patches, -patches * features};
}

// Splits the rows [row, row + rows) and columns [column, column_end) of the matrix of patches into
// stretches that are contiguous in the images, and calls visit(pixel, row, column, count) for each:
// `count` elements from element `pixel` on. Image rows are read from left to right.
template <class Visit>
VIT_INLINE void for_pixels(const PatchShape& shape, int64_t row, int64_t rows, int64_t column,
                           int64_t column_end, const Visit& visit) {
  const int64_t side = shape.patch_size * shape.channels;  // elements of one pixel row of a patch
  const int64_t line = shape.width * shape.channels;
  const int64_t row_end = row + rows;
  while (row < row_end) {
    const int64_t x = row % shape.columns();
    const int64_t y = row / shape.columns();  // counted over all images
    const int64_t most = shape.columns() - x;
    const int64_t count = row_end - row < most ? row_end - row : most;
    const int64_t top = y / shape.rows() * shape.height + y % shape.rows() * shape.patch_size;
    for (int64_t from = column, to; from < column_end; from = to) {
      to = from - from % side + side;
      if (to > column_end) to = column_end;
      const int64_t pixel = (top + from / side) * line + x * side + from % side;
      for (int64_t i = 0; i < count; ++i) visit(pixel + i * side, row + i, from, to - from);
    }
    row += count;
  }
}

// Keeps the compiler from fusing x, a product, with a following sum into one rounding. So rescaled
// pixels are the same for all instruction sets and in the reference.
template <class X>
VIT_INLINE X rounded(X x) {
#if defined(__x86_64__)
  __asm__("" : "+x"(x));
#elif defined(__aarch64__)
  __asm__("" : "+w"(x));
#else
  __asm__("" : "+m"(x));
#endif
  return x;
}

// Stores a sum or a rescaled pixel, rounded to S, as a number or a vector of numbers.
template <class S, class W>
VIT_INLINE void put_number(W x, Number<S>* to) {
  S narrow;
  convert_to(static_cast<Accumulator<S>>(x), &narrow);
  if constexpr (kPack<S> == 1) {
    *to = convert(narrow);
  } else {
    __builtin_memcpy(to, &narrow, sizeof narrow);  // later read as part of an Element
  }
}
template <class S>
VIT_INLINE void put_numbers(Vector<Accumulator<S>> x, Number<S>* to) {
#if defined(__AVX512BF16__)
  if constexpr (kPack<S> == 2) return store_rounded(to, x);
#endif
  if constexpr (kPack<S> == 1 && sizeof(S) == sizeof(Number<S>)) {
    store_converted(to, x);
  } else if constexpr (kPack<S> == 1) {
    S narrow[kLanes<float>];
    store_converted(narrow, x);
    store<float>(to, load_converted(narrow));
  }
}

// Numbers between rows of patches. Each row has room for one more vector, because rows are written
// in whole vectors.
template <class S>
constexpr int64_t row_step(int64_t columns) {
  return round_up(columns, kPack<S>) + kLanes<Accumulator<S>>;
}

template <class S>
constexpr int64_t row_bytes(int64_t columns) {
  return row_step<S>(columns) * static_cast<int64_t>(sizeof(Number<S>));
}

#if defined(__AVX512BF16__)
// Combines the bfloat16 of two rows, which lie in the upper halves of floats, into Pairs (first,
// second).
VIT_INLINE void join_pairs(Vector<float> first, Vector<float> second, Pair* to) {
  const __m512i low = _mm512_srli_epi32((__m512i)first, 16);
  _mm512_storeu_si512(to, _mm512_or_si512(low, (__m512i)second));
}
#endif

// Loads a vector from p, but only the elements before `end`; further lanes are 0.
template <class S>
VIT_INLINE Vector<Accumulator<S>> load_before(const S* p, const S* end) {
  const int64_t count = end - p;
  return load_first(p, count < 0 ? 0 : count);
}

// Reads pixels of type I as numbers for kernels of type S.
template <class I, class S>
struct Pixels {
  using Wide = decltype(Accumulator<I>{} + Accumulator<S>{});

  // Packs rows [row, row + rows) and columns [column, column_end) of the matrix of patches,
  // rescaled.
  static void pack(const PatchEmbedProblem& problem, int64_t row, int64_t rows, int64_t column,
                   int64_t column_end, int64_t step, Number<S>* to) {
    const PatchShape& shape = problem.shape;
    const I* images = static_cast<const I*>(problem.images);
    const I* end = images + shape.batch * shape.height * shape.width * shape.channels;
    const Wide scale = static_cast<Wide>(problem.scale), offset = static_cast<Wide>(problem.offset);
    for_pixels(shape, row, rows, column, column_end,
               [=](int64_t pixel, int64_t at_row, int64_t at_column, int64_t count) {
                 rescale(images + pixel, count, end, scale, offset,
                         to + (at_row - row) * step + at_column - column);
               });
  }

  // Writes whole vectors. The surplus numbers are overwritten by the next stretch of the row, or
  // lie in the room behind the row.
  static VIT_INLINE void rescale(const I* from, int64_t count, const I* end, Wide scale,
                                 Wide offset, Number<S>* to) {
    if constexpr (sizeof(Wide) == sizeof(float)) {
      for (int64_t i = 0; i < count; i += kLanes<float>) {
        put_numbers<S>(rounded(load_before(from + i, end) * scale) + offset, to + i);
      }
    } else {
      for (int64_t i = 0; i < count; ++i) {
        put_number<S>(rounded(static_cast<Wide>(convert(from[i])) * scale) + offset, to + i);
      }
    }
  }
};

// Packs rows, `step` numbers apart, from images of any type. `step` is at least row_step. If the
// last Element of a row has an unused number, it is 0.
template <class S>
static void pack_patches(const PatchEmbedProblem& problem, int64_t row, int64_t rows,
                         int64_t column, int64_t column_end, int64_t step, Number<S>* to) {
  switch (problem.image_type) {
    case DType::kUint8:
      Pixels<uint8_t, S>::pack(problem, row, rows, column, column_end, step, to);
      break;
    case DType::kBfloat16:
      Pixels<Bfloat16, S>::pack(problem, row, rows, column, column_end, step, to);
      break;
    case DType::kFloat16:
      Pixels<Float16, S>::pack(problem, row, rows, column, column_end, step, to);
      break;
    case DType::kFloat32:
      Pixels<float, S>::pack(problem, row, rows, column, column_end, step, to);
      break;
    case DType::kFloat64:
      Pixels<double, S>::pack(problem, row, rows, column, column_end, step, to);
      break;
  }
  const int64_t count = column_end - column;
  if (count % kPack<S>) {
    for (int64_t i = 0; i < rows; ++i) put_number<S>(0.0f, to + i * step + count);
  }
}

// Packs `count` rows of the right-hand side, from `column` on, as Elements for tile.h: [elements of
// count, vectors * kLanes]. `end` is the end of the tensor. Columns may extend beyond a row; they
// then hold numbers of another row, or 0.
template <class S>
static void pack_panel(Rows<const S> rows, int64_t count, int64_t column, int vectors, const S* end,
                       Element<S>* to) {
  using T = Accumulator<S>;
  if constexpr (kPack<S> == 1) {
    for (int64_t i = 0; i < count; ++i, rows.next()) {
      const S* from = rows.at + column;
      if (end - from >= vectors * kLanes<T>) {
        for (int v = 0; v < vectors; ++v, to += kLanes<T>) {
          store<T>(to, load_converted(from + v * kLanes<T>));
        }
      } else {
        for (int v = 0; v < vectors; ++v, to += kLanes<T>) {
          store<T>(to, load_before(from + v * kLanes<T>, end));
        }
      }
    }
  }
#if defined(__AVX512BF16__)
  if constexpr (kPack<S> == 2) {
    for (int64_t i = 0; i < count; i += 2, rows.next()) {
      const S* first = rows.at + column;
      rows.next();
      const S* second = i + 1 < count ? rows.at + column : end;
      for (int v = 0; v < vectors; ++v, to += kLanes<T>) {
        join_pairs(load_before(first + v * kLanes<T>, end),
                   load_before(second + v * kLanes<T>, end), to);
      }
    }
  }
#endif
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PATCH_EMBED_PACK_H_
