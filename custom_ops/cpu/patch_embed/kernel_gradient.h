// The gradient of the kernel of the patch embedding: X^T dY, with X the matrix of rescaled patches
// and dY the gradient of the patch tokens.
#ifndef CUSTOM_OPS_CPU_PATCH_EMBED_KERNEL_GRADIENT_H_
#define CUSTOM_OPS_CPU_PATCH_EMBED_KERNEL_GRADIENT_H_

#include "custom_ops/cpu/patch_embed/panels.h"

namespace vit {
namespace VIT_ISA {

inline int64_t token_elements(const PatchShape& shape) {
  return shape.batch * shape.tokens() * shape.features;
}

// A unit computes a rectangle of the kernel's gradient and loops over all patches, so the order of
// its sums depends only on the shape.
template <class S>
struct PatchEmbedKernelGradient {
  using T = Accumulator<S>;

  // Maximum size of a rectangle. Larger rectangles need less packing but leave fewer units: the
  // kernel of ViT-B/16 is 4 x 3 rectangles. 384 rows were 4 % faster on one or two threads of a Zen
  // 5.
  static constexpr int64_t kRows = 192;
  static constexpr int64_t kColumnVectors = 256 / kLanes<T>;
  // Elements along the sum that are packed at a time: a panel of them fits in the L1 cache.
  static constexpr int64_t kDepth = 128;

  struct Rectangles {
    Blocking rows, vectors;
    explicit Rectangles(const PatchShape& shape)
        : rows(shape.patch_elements(), kRows),
          vectors(ceil_divide(shape.features, kLanes<T>), kColumnVectors) {}
  };

  static int64_t units(const PatchEmbedGradientProblem& problem) {
    const Rectangles rectangles(problem.shape);
    return rectangles.rows.count * rectangles.vectors.count;
  }

  static double unit_cycles(const PatchEmbedGradientProblem& problem) {
    return product_cycles(problem.shape, units(problem));
  }

  static int64_t scratch_bytes(const PatchEmbedGradientProblem&) {
    return Scratch::bytes<Number<S>>(kDepth * kPack<S> * row_step<S>(kRows)) +
           (kPack<S> == 2 ? Scratch::bytes<Element<S>>(kDepth * kRows) : 0) +
           Scratch::bytes<Element<S>>(kDepth * kMaxVectors * kLanes<T>) +
           Scratch::bytes<T>(kRows * kColumnVectors * kLanes<T>);
  }

  static void run(const PatchEmbedGradientProblem& problem, int64_t begin, int64_t end,
                  void* memory) {
    Scratch scratch(memory);
    Block block;
    block.patches = scratch.take<Number<S>>(kDepth * kPack<S> * row_step<S>(kRows));
    if constexpr (kPack<S> == 2) block.elements = scratch.take<Element<S>>(kDepth * kRows);
    block.panel = scratch.take<Element<S>>(kDepth * kMaxVectors * kLanes<T>);
    block.sums = scratch.take<T>(kRows * kColumnVectors * kLanes<T>);
    const Rectangles rectangles(problem.shape);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t i = unit / rectangles.vectors.count, j = unit % rectangles.vectors.count;
      block.row = rectangles.rows.begin(i);
      block.rows = rectangles.rows.size(i);
      block.column = rectangles.vectors.begin(j) * kLanes<T>;
      block.vectors = rectangles.vectors.size(j);
      run_block(problem, block);
    }
  }

  struct Block {
    int64_t row, rows;         // of the kernel, seen as a matrix
    int64_t column, vectors;
    Number<S>* patches;        // [patches, row_step]
    Element<S>* elements;      // [patches / kPack, rows], if kPack is 2
    Element<S>* panel;         // [patches / kPack, columns]
    T* sums;                   // [rows, vectors * kLanes]
  };

  static void run_block(const PatchEmbedGradientProblem& problem, const Block& block) {
    const PatchShape& shape = problem.shape;
    const S* d_tokens = static_cast<const S*>(problem.d_tokens);
    const int64_t total = patch_rows(shape), columns = block.vectors * kLanes<T>;
    const Blocking depths(elements_of<S>(total), kDepth);
    const Blocking panels(block.vectors, kMaxVectors);
    if (total == 0) {
      for (int64_t i = 0; i < block.rows * columns; ++i) block.sums[i] = T(0);
    }
    for (int64_t d = 0; d < depths.count; ++d) {
      const int64_t patch = depths.begin(d) * kPack<S>, elements = depths.size(d);
      const int64_t most = elements * kPack<S>;
      const int64_t patches = total - patch < most ? total - patch : most;
      pack_patches<S>(problem, patch, patches, block.row, block.row + block.rows,
                      row_step<S>(block.rows), block.patches);
      const Element<S>* left = nullptr;
      int64_t step = 0;
      if constexpr (kPack<S> == 1) {
        left = block.patches;
        step = row_step<S>(block.rows);
      }
#if defined(__AVX512BF16__)
      if constexpr (kPack<S> == 2) {
        pair_rows(block.patches, patches, block.rows, block.elements);
        left = block.elements;
        step = block.rows;
      }
#endif
      for (int64_t p = 0; p < panels.count; ++p) {
        const int64_t column = panels.begin(p) * kLanes<T>;
        const int vectors = static_cast<int>(panels.size(p));
        pack_panel<S>(token_rows(shape, d_tokens, patch), patches, block.column + column, vectors,
                      d_tokens + token_elements(shape), block.panel);
        multiply<Element<S>>(block.rows, vectors, elements, left, 1, step, block.panel,
                             vectors * kLanes<T>, block.sums + column, columns, d > 0);
      }
    }
    S* to = static_cast<S*>(problem.d_kernel) + block.row * shape.features + block.column;
    for (int64_t i = 0; i < block.rows; ++i, to += shape.features) {
      for (int64_t v = 0; v < columns; v += kLanes<T>) {
        store_first(to + v, load(block.sums + i * columns + v), shape.features - block.column - v);
      }
    }
  }

#if defined(__AVX512BF16__)
  // Interleaves the rows of neighbouring patches into Pairs.
  static void pair_rows(const Bfloat16* patches, int64_t count, int64_t columns, Pair* to) {
    const int64_t step = row_step<S>(columns);
    for (int64_t i = 0; i < count; i += 2, patches += 2 * step, to += columns) {
      // Lanes beyond the row are written here, and the next row overwrites them.
      for (int64_t j = 0; j < columns; j += kLanes<float>) {
        Vector<float> second = {};
        if (i + 1 < count) second = load_converted(patches + step + j);
        join_pairs(load_converted(patches + j), second, to + j);
      }
    }
  }
#endif
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PATCH_EMBED_KERNEL_GRADIENT_H_
