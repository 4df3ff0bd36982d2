// What happens to queries and keys between their projection and attention, head by head.
#ifndef CUSTOM_OPS_CPU_GEMM_HEADS_H_
#define CUSTOM_OPS_CPU_GEMM_HEADS_H_

#include "custom_ops/cpu/gemm/dense.h"
#include "custom_ops/cpu/normalize.h"

namespace vit {
namespace VIT_ISA {

// Rotates the pairs of element i and element i + size / 2. A row has size / 2 cosines, then sines.
VIT_INLINE void rotate(const float* row, int64_t size, float* x) {
  const int64_t half = size / 2;
  for (int64_t j = 0; j < half; j += kLanes<float>) {
    const int64_t count = half - j;
    const Vector<float> cosines = load_first(row + j, count);
    const Vector<float> sines = load_first(row + half + j, count);
    const Vector<float> first = load_first(x + j, count);
    const Vector<float> second = load_first(x + half + j, count);
    store_first(x + j, first * cosines - second * sines, count);
    store_first(x + half + j, second * cosines + first * sines, count);
  }
}

// Normalizes and rotates, in place, a head of a token. `head` counts queries and then keys.
VIT_INLINE void transform_head(const HeadTransform& transform, int64_t head, int64_t token,
                               float* x) {
  const int64_t size = transform.head_size;
  if (transform.norm) {
    const float* const scale = transform.norm + (head < transform.heads ? 0 : 2 * size);
    normalize_row(x, size, transform.epsilon, scale, scale + size, x);
  }
  const int64_t row = token - transform.first_rotated;
  if (transform.rotary && row >= 0) rotate(transform.rotary + row * size, size, x);
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_GEMM_HEADS_H_
