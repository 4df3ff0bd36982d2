// Normalizes and rotates queries and keys in memory, where the epilogue of their projection cannot:
// a panel has parts of heads.
#ifndef CUSTOM_OPS_CPU_ENCODER_HEAD_ROWS_H_
#define CUSTOM_OPS_CPU_ENCODER_HEAD_ROWS_H_

#include "custom_ops/cpu/encoder/encoder_kernels.h"
#include "custom_ops/cpu/gemm/heads.h"
#include "custom_ops/cpu/scratch.h"

namespace vit {
namespace VIT_ISA {

// A unit is a row.
template <class Activation>
struct HeadRows {
  static int64_t units(const HeadRowsProblem& problem) { return problem.rows; }

  static double unit_cycles(const HeadRowsProblem& problem) {
    const int64_t elements = (problem.end - problem.begin) * problem.transform.head_size;
    return static_cast<double>(elements) / 2 + 50;
  }

  static int64_t scratch_bytes(const HeadRowsProblem& problem) {
    return Scratch::bytes<float>(problem.transform.head_size);
  }

  static void run(const HeadRowsProblem& problem, int64_t begin, int64_t end, void* memory) {
    const int64_t size = problem.transform.head_size;
    Scratch scratch(memory);
    float* const numbers = scratch.take<float>(size);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t token = row % problem.transform.tokens;
      Activation* const from = static_cast<Activation*>(problem.qkv) + row * problem.stride;
      for (int64_t head = problem.begin; head < problem.end; ++head) {
        Activation* const x = from + head * size;
        for (int64_t j = 0; j < size; j += kLanes<float>) {
          store<float>(numbers + j, load_first(x + j, size - j));
        }
        transform_head(problem.transform, head, token, numbers);
        for (int64_t j = 0; j < size; j += kLanes<float>) {
          store_first(x + j, load(numbers + j), size - j);
        }
      }
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ENCODER_HEAD_ROWS_H_
