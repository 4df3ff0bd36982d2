// Patch embedding forward: cc/patch_embed_problem.h defines the problem, panels.h the blocks.
#ifndef CUSTOM_OPS_CPU_PATCH_EMBED_FORWARD_H_
#define CUSTOM_OPS_CPU_PATCH_EMBED_FORWARD_H_

#include "custom_ops/cpu/patch_embed/panels.h"

namespace vit {
namespace VIT_ISA {

template <class S>
struct ForwardOperands {
  using T = Accumulator<S>;

  static int64_t depth(const PatchShape& shape) { return shape.patch_elements(); }
  static int64_t columns(const PatchShape& shape) { return shape.features; }

  static void pack_rows(const PatchEmbedForwardProblem& problem, int64_t row, int64_t rows,
                        Number<S>* to) {
    const int64_t count = depth(problem.shape);
    pack_patches<S>(problem, row, rows, 0, count, row_step<S>(count), to);
  }

  static void pack_kernel(const PatchEmbedForwardProblem& problem, const Panel& panel,
                          int64_t first, int64_t count, Element<S>* to) {
    const S* kernel = static_cast<const S*>(problem.kernel);
    const int64_t features = problem.shape.features;
    pack_panel<S>(equal_rows(kernel + first * features, features), count, panel.column,
                  panel.vectors, kernel + depth(problem.shape) * features, to);
  }

  // tokens = sums + bias + position.
  static void write(const PatchEmbedForwardProblem& problem, int64_t row, int64_t rows,
                    const Panel& panel, const T* sums) {
    const PatchShape& shape = problem.shape;
    const int64_t column = panel.column;
    const int vectors = panel.vectors;
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

template <class S>
using PatchEmbedForward = PanelKernel<S, PatchEmbedForwardProblem, ForwardOperands<S>>;

// Writes the prefix tokens; a unit is an image.
template <class S>
struct PatchEmbedPrefix {
  using T = Accumulator<S>;

  static int64_t units(const PatchEmbedForwardProblem& problem) {
    return problem.shape.prefix ? problem.shape.batch : 0;
  }

  static double unit_cycles(const PatchEmbedForwardProblem& problem) {
    return static_cast<double>(problem.shape.prefix) * static_cast<double>(problem.shape.features) /
               4 +
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
