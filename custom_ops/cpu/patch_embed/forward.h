// Patch embedding forward: see cc/patch_embed.h for what, panels.h for how blocks lie.
#ifndef CUSTOM_OPS_CPU_PATCH_EMBED_FORWARD_H_
#define CUSTOM_OPS_CPU_PATCH_EMBED_FORWARD_H_

#include "custom_ops/cpu/patch_embed/panels.h"

namespace vit {
namespace VIT_ISA {

template <class S>
struct PatchEmbedForward {
  using T = Accumulator<S>;

  static MatrixBlocking blocks_of(const PatchEmbedForwardProblem& problem) {
    return MatrixBlocking(patch_rows(problem.shape), row_bytes<S>(problem.shape.patch_elements()),
                  problem.shape.features, kLanes<T>);
  }

  static int64_t units(const PatchEmbedForwardProblem& problem) {
    return blocks_of(problem).units();
  }

  static double unit_cycles(const PatchEmbedForwardProblem& problem) {
    return product_cycles(problem.shape, units(problem));
  }

  static int64_t scratch_bytes(const PatchEmbedForwardProblem& problem) {
    const int64_t rows = blocks_of(problem).most_rows();
    return Scratch::bytes<Number<S>>(rows * row_step<S>(problem.shape.patch_elements())) +
           Scratch::bytes<Element<S>>(kMaxDepth * kMaxVectors * kLanes<T>) +
           Scratch::bytes<T>(rows * kMaxVectors * kLanes<T>);
  }

  static void run(const PatchEmbedForwardProblem& problem, int64_t begin, int64_t end,
                  void* memory) {
    const PatchShape& shape = problem.shape;
    const MatrixBlocking blocks = blocks_of(problem);
    const int64_t depth = shape.patch_elements(), features = shape.features;
    const S* kernel = static_cast<const S*>(problem.kernel);
    Scratch scratch(memory);
    Number<S>* patches = scratch.take<Number<S>>(blocks.most_rows() * row_step<S>(depth));
    Element<S>* panel = scratch.take<Element<S>>(kMaxDepth * kMaxVectors * kLanes<T>);
    T* sums = scratch.take<T>(blocks.most_rows() * kMaxVectors * kLanes<T>);

    int64_t packed = -1;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t block = unit / blocks.vectors.count, panel_index = unit % blocks.vectors.count;
      const int64_t row = blocks.rows.begin(block), rows = blocks.rows.size(block);
      if (packed != block) {
        pack_patches<S>(problem, row, rows, 0, depth, patches);
        packed = block;
      }
      const int64_t column = blocks.vectors.begin(panel_index) * kLanes<T>;
      const int vectors = static_cast<int>(blocks.vectors.size(panel_index));
      const auto pack = [&](int64_t first, int64_t count, Element<S>* to) {
        pack_panel<S>(equal_rows(kernel + first * features, features), count, column, vectors,
                      kernel + depth * features, to);
      };
      multiply_panel<S>(rows, vectors, depth, patches, row_step<S>(depth), pack, panel, sums);
      write_tokens(problem, row, rows, column, vectors, sums);
    }
  }

  // tokens = sums + bias + position.
  static void write_tokens(const PatchEmbedForwardProblem& problem, int64_t row, int64_t rows,
                           int64_t column, int vectors, const T* sums) {
    const PatchShape& shape = problem.shape;
    Vector<T> bias[kMaxVectors];
    for (int v = 0; v < vectors; ++v) {
      const int64_t at = column + v * kLanes<T>;
      bias[v] = load_first(static_cast<const S*>(problem.bias) + at, shape.features - at);
    }
    Rows<S> tokens = token_rows(shape, static_cast<S*>(problem.tokens), row);
    Rows<const S> position{};
    if (problem.position) {
      position = table_rows(shape, static_cast<const S*>(problem.position), row);
    }
    for (int64_t i = 0; i < rows; ++i, tokens.next()) {
      for (int v = 0; v < vectors; ++v, sums += kLanes<T>) {
        const int64_t at = column + v * kLanes<T>, count = shape.features - at;
        Vector<T> added = bias[v];
        if (problem.position) added += load_first(position.at + at, count);
        store_first(tokens.at + at, load(sums) + added, count);
      }
      if (problem.position) position.next();
    }
  }
};

// The tokens before the patches; a unit is an image.
template <class S>
struct PatchEmbedPrefix {
  using T = Accumulator<S>;

  static int64_t units(const PatchEmbedForwardProblem& problem) {
    return problem.shape.prefix ? problem.shape.batch : 0;
  }

  static double unit_cycles(const PatchEmbedForwardProblem& problem) {
    return static_cast<double>(problem.shape.prefix) *
               static_cast<double>(problem.shape.features) / 4 +
           500;
  }

  static int64_t scratch_bytes(const PatchEmbedForwardProblem&) { return 0; }

  static void run(const PatchEmbedForwardProblem& problem, int64_t begin, int64_t end, void*) {
    const int64_t count = problem.shape.prefix * problem.shape.features;
    const S* prefix = static_cast<const S*>(problem.prefix);
    const S* position = static_cast<const S*>(problem.position);
    for (int64_t b = begin; b < end; ++b) {
      S* to = static_cast<S*>(problem.tokens) + b * problem.shape.tokens() * problem.shape.features;
      for (int64_t i = 0; i < count; i += kLanes<T>) {
        Vector<T> x = load_first(prefix + i, count - i);
        if (position) x += load_first(position + i, count - i);
        store_first(to + i, x, count - i);
      }
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PATCH_EMBED_FORWARD_H_
