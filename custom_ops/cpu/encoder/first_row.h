// Attention of token 0 only.
#ifndef CUSTOM_OPS_CPU_ENCODER_FIRST_ROW_H_
#define CUSTOM_OPS_CPU_ENCODER_FIRST_ROW_H_

#include "custom_ops/cpu/attention/logits.h"
#include "custom_ops/cpu/encoder/encoder_kernels.h"
#include "custom_ops/cpu/scratch.h"
#include "custom_ops/cpu/simd/conversions.h"
#include "custom_ops/cpu/simd/math.h"

namespace vit {
namespace VIT_ISA {

// A unit is a head of an image.
template <class Activation>
struct FirstRowAttention {
  static int64_t units(const FirstRowProblem& problem) { return problem.batch * problem.heads; }

  static double unit_cycles(const FirstRowProblem& problem) {
    return static_cast<double>(problem.tokens) * static_cast<double>(problem.head_size) / 4 + 100;
  }

  static int64_t scratch_bytes(const FirstRowProblem& problem) {
    return 2 * Scratch::bytes<float>(problem.head_size) + Scratch::bytes<float>(problem.tokens);
  }

  static void run(const FirstRowProblem& problem, int64_t begin, int64_t end, void* memory) {
    const int64_t size = problem.head_size, tokens = problem.tokens;
    const int64_t width = problem.heads * size, step = 3 * width;
    Scratch scratch(memory);
    float* const query = scratch.take<float>(size);
    float* const sums = scratch.take<float>(size);
    float* const weights = scratch.take<float>(tokens);
    // Logits in units of log2.
    const float scale = static_cast<float>(kLog2E * problem.scale);
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t image = unit / problem.heads, head = unit % problem.heads;
      const Activation* q =
          static_cast<const Activation*>(problem.qkv) + image * tokens * step + head * size;
      const Activation* key = q + width;
      const Activation* value = key + width;
      for (int64_t j = 0; j < size; j += kLanes<float>) {
        store<float>(query + j, load_first(q + j, size - j) * scale);
        store<float>(sums + j, Vector<float>{});
      }
      float largest = -__builtin_inff();
      for (int64_t i = 0; i < tokens; ++i, key += step) {
        Vector<float> sum = {};
        for (int64_t j = 0; j < size; j += kLanes<float>) {
          sum += load(query + j) * load_first(key + j, size - j);
        }
        weights[i] = add_lanes<float>(sum);
        largest = weights[i] > largest ? weights[i] : largest;
      }
      float total = 0;
      for (int64_t i = 0; i < tokens; i += kLanes<float>) {
        store<float>(weights + i, exp2(load(weights + i) - largest));
        const int64_t count = tokens - i < kLanes<float> ? tokens - i : kLanes<float>;
        for (int64_t j = 0; j < count; ++j) total += weights[i + j];
      }
      for (int64_t i = 0; i < tokens; ++i, value += step) {
        const float weight = weights[i];
        for (int64_t j = 0; j < size; j += kLanes<float>) {
          store<float>(sums + j, load(sums + j) + weight * load_first(value + j, size - j));
        }
      }
      Activation* out = static_cast<Activation*>(problem.out) + image * width + head * size;
      for (int64_t j = 0; j < size; j += kLanes<float>) {
        store_first(out + j, load(sums + j) * (1 / total), size - j);
      }
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ENCODER_FIRST_ROW_H_
