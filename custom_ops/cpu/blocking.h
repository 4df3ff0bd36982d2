// Splits ranges into blocks.
#ifndef CUSTOM_OPS_CPU_BLOCKING_H_
#define CUSTOM_OPS_CPU_BLOCKING_H_

#include "custom_ops/cpu/simd/vectors.h"

namespace vit {
namespace VIT_ISA {

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return ceil_divide(a, b) * b; }

// A range split into blocks of nearly equal size, of at most `max_size`.
struct Blocking {
  int64_t total, count;
  Blocking(int64_t total, int64_t max_size) : total(total), count(ceil_divide(total, max_size)) {}
  int64_t begin(int64_t i) const {
    return total / count * i + (i < total % count ? i : total % count);
  }
  int64_t size(int64_t i) const { return begin(i + 1) - begin(i); }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_BLOCKING_H_
