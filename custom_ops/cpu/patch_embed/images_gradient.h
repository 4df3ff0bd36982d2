// The gradient of the images. With W the kernel and dY the gradient of the patch tokens, that of
// the rescaled patches is dY W^T.
#ifndef CUSTOM_OPS_CPU_PATCH_EMBED_IMAGES_GRADIENT_H_
#define CUSTOM_OPS_CPU_PATCH_EMBED_IMAGES_GRADIENT_H_

#include "custom_ops/cpu/patch_embed/panels.h"

namespace vit {
namespace VIT_ISA {

// The gradient of the images, where patches read them. A unit owns some elements of some patches.
template <class S>
struct PatchEmbedImagesGradient {
  using T = Accumulator<S>;

  static MatrixBlocking blocks_of(const PatchEmbedGradientProblem& problem) {
    return MatrixBlocking(patch_rows(problem.shape), row_bytes<S>(problem.shape.features),
                  problem.shape.patch_elements(), kLanes<T>);
  }

  static int64_t units(const PatchEmbedGradientProblem& problem) {
    return blocks_of(problem).units();
  }

  static double unit_cycles(const PatchEmbedGradientProblem& problem) {
    return product_cycles(problem.shape, units(problem));
  }

  static int64_t scratch_bytes(const PatchEmbedGradientProblem& problem) {
    const int64_t rows = blocks_of(problem).most_rows();
    return Scratch::bytes<Number<S>>(rows * row_step<S>(problem.shape.features)) +
           Scratch::bytes<Element<S>>(kMaxDepth * kMaxVectors * kLanes<T>) +
           Scratch::bytes<T>(rows * kMaxVectors * kLanes<T>);
  }

  static void run(const PatchEmbedGradientProblem& problem, int64_t begin, int64_t end,
                  void* memory) {
    const PatchShape& shape = problem.shape;
    const MatrixBlocking blocks = blocks_of(problem);
    const int64_t depth = shape.features, elements = shape.patch_elements();
    const S* kernel = static_cast<const S*>(problem.kernel);
    Scratch scratch(memory);
    Number<S>* tokens = scratch.take<Number<S>>(blocks.most_rows() * row_step<S>(depth));
    Element<S>* panel = scratch.take<Element<S>>(kMaxDepth * kMaxVectors * kLanes<T>);
    T* sums = scratch.take<T>(blocks.most_rows() * kMaxVectors * kLanes<T>);

    int64_t packed = -1;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t block = unit / blocks.vectors.count, panel_index = unit % blocks.vectors.count;
      const int64_t row = blocks.rows.begin(block), rows = blocks.rows.size(block);
      if (packed != block) {
        pack_tokens(problem, row, rows, tokens);
        packed = block;
      }
      const int64_t column = blocks.vectors.begin(panel_index) * kLanes<T>;
      const int vectors = static_cast<int>(blocks.vectors.size(panel_index));
      const int64_t columns = vectors * kLanes<T>;
      const int64_t used = elements - column < columns ? elements - column : columns;
      const auto pack = [&](int64_t first, int64_t count, Element<S>* to) {
        pack_transposed(kernel + column * depth + first, depth, used, count, to, columns);
      };
      multiply_panel<S>(rows, vectors, depth, tokens, row_step<S>(depth), pack, panel, sums);
      unpack_patches(problem, row, rows, column, column + used, sums, columns);
    }
  }

  static void pack_tokens(const PatchEmbedGradientProblem& problem, int64_t row, int64_t rows,
                          Number<S>* to) {
    const PatchShape& shape = problem.shape;
    Rows<const S> from = token_rows(shape, static_cast<const S*>(problem.d_tokens), row);
    for (int64_t i = 0; i < rows; ++i, from.next(), to += row_step<S>(shape.features)) {
      for (int64_t j = 0; j < shape.features; j += kLanes<T>) {
        put_numbers<S>(load_first(from.at + j, shape.features - j), to + j);
      }
    }
  }

  // `rows` rows of the kernel that lie `step` apart, `count` numbers of each, as columns; further
  // columns are 0.
  static void pack_transposed(const S* from, int64_t step, int64_t rows, int64_t count,
                              Element<S>* to, int64_t columns) {
    if constexpr (kPack<S> == 1) {
      pack_columns<S>(from, step, rows, count, to, columns);
    }
#if defined(__AVX512BF16__)
    if constexpr (kPack<S> == 2) {
      constexpr int kCount = kLanes<float>;  // of pairs
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

  // d_images = sums * scale.
  static void unpack_patches(const PatchEmbedGradientProblem& problem, int64_t row, int64_t rows,
                             int64_t column, int64_t column_end, const T* sums, int64_t columns) {
    switch (problem.image_type) {
      case DType::kBfloat16:
        return unpack<Bfloat16>(problem, row, rows, column, column_end, sums, columns);
      case DType::kFloat16:
        return unpack<Float16>(problem, row, rows, column, column_end, sums, columns);
      case DType::kFloat64:
        return unpack<double>(problem, row, rows, column, column_end, sums, columns);
      case DType::kUint8:  // has no gradient
      case DType::kFloat32:
        return unpack<float>(problem, row, rows, column, column_end, sums, columns);
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PATCH_EMBED_IMAGES_GRADIENT_H_
