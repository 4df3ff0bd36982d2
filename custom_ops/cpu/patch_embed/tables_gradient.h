// The gradients of the bias, the prefix and the position.
#ifndef CUSTOM_OPS_CPU_PATCH_EMBED_TABLES_GRADIENT_H_
#define CUSTOM_OPS_CPU_PATCH_EMBED_TABLES_GRADIENT_H_

#include "custom_ops/cc/patch_embed_problem.h"
#include "custom_ops/cpu/blocking.h"
#include "custom_ops/cpu/simd/conversions.h"

namespace vit {
namespace VIT_ISA {

// Computes a sum of many vectors as a sum of partial sums, which reduces the rounding error.
template <class T>
class LongSum {
 public:
  VIT_INLINE void add(Vector<T> x) {
    partial_ += x;
    if (++count_ % kRun) return;
    total_ += partial_;
    partial_ = Vector<T>{};
  }
  VIT_INLINE Vector<T> value() const { return total_ + partial_; }

 private:
  static constexpr int64_t kRun = 16;
  Vector<T> total_ = {}, partial_ = {};
  int64_t count_ = 0;
};

// The gradients of bias, prefix and position. A unit computes some of their columns.
template <class S>
struct PatchEmbedTablesGradient {
  using T = Accumulator<S>;

  static constexpr int64_t kColumns = 128 / static_cast<int64_t>(sizeof(T));

  static int64_t units(const PatchEmbedGradientProblem& problem) {
    return ceil_divide(problem.shape.features, kColumns);
  }

  // The cycles to read all tokens.
  static double unit_cycles(const PatchEmbedGradientProblem& problem) {
    const PatchShape& shape = problem.shape;
    return static_cast<double>(shape.batch) * static_cast<double>(shape.tokens()) *
               static_cast<double>(shape.features) / 4 / static_cast<double>(units(problem)) +
           500;
  }

  static int64_t scratch_bytes(const PatchEmbedGradientProblem&) { return 0; }

  static void run(const PatchEmbedGradientProblem& problem, int64_t begin, int64_t end, void*) {
    const PatchShape& shape = problem.shape;
    const int64_t features = shape.features, tokens = shape.tokens();
    const int64_t last = end * kColumns < features ? end * kColumns : features;
    for (int64_t column = begin * kColumns; column < last; column += kLanes<T>) {
      const S* d_tokens = static_cast<const S*>(problem.d_tokens) + column;
      const int64_t count = features - column;
      const auto write = [=](void* table, int64_t row, Vector<T> sum) {
        if (table) store_first(static_cast<S*>(table) + row * features + column, sum, count);
      };
      LongSum<T> bias;
      for (int64_t token = 0; token < tokens; ++token) {
        LongSum<T> sum;
        for (int64_t b = 0; b < shape.batch; ++b) {
          sum.add(load_first(d_tokens + (b * tokens + token) * features, count));
        }
        write(problem.d_position, token, sum.value());
        if (token < shape.prefix) {
          write(problem.d_prefix, token, sum.value());
        } else {
          bias.add(sum.value());
        }
      }
      write(problem.d_bias, 0, bias.value());
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_PATCH_EMBED_TABLES_GRADIENT_H_
