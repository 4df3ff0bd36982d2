// LayerNorm of one row.
#ifndef CUSTOM_OPS_CPU_NORMALIZE_H_
#define CUSTOM_OPS_CPU_NORMALIZE_H_

#include "custom_ops/cpu/simd/conversions.h"

namespace vit {
namespace VIT_ISA {

// The sum of function(x). Two sums at a time: an addition takes 4 cycles.
template <class Function>
VIT_INLINE float sum_of_row(const float* from, int64_t width, Function function) {
  constexpr int64_t kLane = kLanes<float>;
  Vector<float> even = {}, odd = {};
  int64_t j = 0;
  for (; j + 2 * kLane <= width; j += 2 * kLane) {
    even += function(load(from + j));
    odd += function(load(from + j + kLane));
  }
  for (; j < width; j += kLane) {
    Vector<float> x = function(load_first(from + j, width - j));
    for (int64_t i = width - j; i < kLane; ++i) x[i] = 0;
    even += x;
  }
  return add_lanes<float>(even + odd);
}

struct RowStatistics {
  float mean, factor;  // factor = 1 / sqrt(variance + epsilon)
};

VIT_INLINE RowStatistics statistics_of_row(const float* from, int64_t width, float epsilon) {
  const float count = static_cast<float>(width);
  const float mean = sum_of_row(from, width, [](Vector<float> x) { return x; }) / count;
  // The mean is subtracted first: the difference of two sums of squares would cancel.
  const auto square = [mean](Vector<float> x) { return (x - mean) * (x - mean); };
  const float variance = sum_of_row(from, width, square) / count;
  return {mean, 1 / __builtin_sqrtf(variance + epsilon)};
}

// to = (from - mean) / sqrt(variance + epsilon) * scale + bias; `to` may be `from`. A null scale
// means no scale and no bias.
template <class Output>
VIT_INLINE RowStatistics normalize_row(const float* from, int64_t width, float epsilon,
                                       const float* scale, const float* bias, Output* to) {
  const RowStatistics found = statistics_of_row(from, width, epsilon);
  for (int64_t j = 0; j < width; j += kLanes<float>) {
    Vector<float> x = (load_first(from + j, width - j) - found.mean) * found.factor;
    if (scale) x = x * load_first(scale + j, width - j) + load_first(bias + j, width - j);
    store_first(to + j, x, width - j);
  }
  return found;
}

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_NORMALIZE_H_
