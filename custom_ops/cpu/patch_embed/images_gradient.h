// The gradient of the images. With W the kernel and dY the gradient of the patch tokens, the
// gradient of the rescaled patches is dY W^T.
#ifndef CUSTOM_OPS_CPU_PATCH_EMBED_IMAGES_GRADIENT_H_
#define CUSTOM_OPS_CPU_PATCH_EMBED_IMAGES_GRADIENT_H_

#include "custom_ops/cpu/patch_embed/panels.h"

namespace vit {
namespace VIT_ISA {

template <class S>
struct ImagesGradientOperands {
  using T = Accumulator<S>;

  static int64_t depth(const PatchShape& shape) { return shape.features; }
  static int64_t columns(const PatchShape& shape) { return shape.patch_elements(); }

  static void pack_rows(const PatchEmbedGradientProblem& problem, int64_t row, int64_t rows,
                        Number<S>* to) {
    const PatchShape& shape = problem.shape;
    Rows<const S> from = token_rows(shape, static_cast<const S*>(problem.d_tokens), row);
    for (int64_t i = 0; i < rows; ++i, from.next(), to += row_step<S>(shape.features)) {
      for (int64_t j = 0; j < shape.features; j += kLanes<T>) {
        put_numbers<S>(load_first(from.at + j, shape.features - j), to + j);
      }
    }
  }

  static void pack_kernel(const PatchEmbedGradientProblem& problem, const Panel& panel,
                          int64_t first, int64_t count, Element<S>* to) {
    const S* kernel = static_cast<const S*>(problem.kernel);
    const int64_t features = problem.shape.features;
    pack_transposed(kernel + panel.column * features + first, features,
                    used_columns(problem.shape, panel), count, to, panel.vectors * kLanes<T>);
  }

  // d_images = sums * scale, in the pixels that patches cover.
  static void write(const PatchEmbedGradientProblem& problem, int64_t row, int64_t rows,
                    const Panel& panel, const T* sums) {
    const int64_t column = panel.column, columns = panel.vectors * kLanes<T>;
    const int64_t column_end = column + used_columns(problem.shape, panel);
    switch (problem.image_type) {
      case DType::kBfloat16:
        return unpack<Bfloat16>(problem, row, rows, column, column_end, sums, columns);
      case DType::kFloat16:
        return unpack<Float16>(problem, row, rows, column, column_end, sums, columns);
      case DType::kFloat64:
        return unpack<double>(problem, row, rows, column, column_end, sums, columns);
      case DType::kFloat32:
        return unpack<float>(problem, row, rows, column, column_end, sums, columns);
      case DType::kUint8:  // has no gradient
        __builtin_trap();
    }
  }

  // The number of columns of the panel that are elements of a patch.
  static int64_t used_columns(const PatchShape& shape, const Panel& panel) {
    const int64_t columns = panel.vectors * kLanes<T>, left = shape.patch_elements() - panel.column;
    return left < columns ? left : columns;
  }

  // Transposes `rows` rows of the kernel, `step` elements apart, `count` numbers each, into
  // columns. Further columns are 0.
  static void pack_transposed(const S* from, int64_t step, int64_t rows, int64_t count,
                              Element<S>* to, int64_t columns) {
    if constexpr (kPack<S> == 1) {
      pack_columns<S>(from, step, rows, count, to, columns);
    }
#if defined(__AVX512BF16__)
    if constexpr (kPack<S> == 2) {
      constexpr int kCount = kLanes<float>;  // counts pairs
      for (int64_t i = 0; i < columns; i += kCount) {
        for (int64_t j = 0; j < count; j += 2 * kCount) {
          const int64_t rest = count - j;
          const __mmask32 mask = rest >= 32 ? ~__mmask32{0} : (__mmask32{1} << rest) - 1;
          Vector<float> block[kCount];
          for (int r = 0; r < kCount; ++r) {
            block[r] = i + r < rows ? (Vector<float>)_mm512_maskz_loadu_epi16(
                                          mask, from + (i + r) * step + j)
                                    : Vector<float>{};
          }
          transpose<float>(block);
          for (int r = 0; r < kCount && j + 2 * r < count; ++r) {
            _mm512_storeu_si512(to + (j / 2 + r) * columns + i, (__m512i)block[r]);
          }
        }
      }
    }
#endif
  }

  template <class I>
  static void unpack(const PatchEmbedGradientProblem& problem, int64_t row, int64_t rows,
                     int64_t column, int64_t column_end, const T* sums, int64_t columns) {
    using Wide = decltype(Accumulator<I>{} + T{});
    I* images = static_cast<I*>(problem.d_images);
    const Wide scale = static_cast<Wide>(problem.scale);
    for_pixels(problem.shape, row, rows, column, column_end,
               [=](int64_t pixel, int64_t at_row, int64_t at_column, int64_t count) {
                 const T* from = sums + (at_row - row) * columns + at_column - column;
                 I* to = images + pixel;
                 if constexpr (sizeof(Wide) == sizeof(float)) {
                   for (int64_t i = 0; i < count; i += kLanes<float>) {
                     store_first(to + i, load(from + i) * scale, count - i);
                   }
                 } else {
                   for (int64_t i = 0; i < count; ++i) {
                     const Wide x = static_cast<Wide>(from[i]) * scale;
                     convert_to(static_cast<Accumulator<I>>(x), to + i);
                   }
                 }
               });
  }
};

// The gradient of the images, in the pixels that patches cover. A unit computes some elements of
// some patches.
template <class S>
using PatchEmbedImagesGradient =
    PanelKernel<S, PatchEmbedGradientProblem, ImagesGradientOperands<S>>;

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PATCH_EMBED_IMAGES_GRADIENT_H_
