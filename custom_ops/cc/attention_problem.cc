#include "custom_ops/cc/attention_problem.h"

#include <float.h>
#include <math.h>

namespace vit {

AttentionShape sequence_shape(int64_t batch, int64_t tokens, int64_t heads, int64_t head_size) {
  return {batch, 1, tokens, heads, head_size, tokens, 0, 1};
}

AttentionShape grid_shape(int64_t batch, int64_t rows, int64_t columns, int64_t heads,
                          int64_t head_size, int axis) {
  if (axis == 1) return {batch, columns, rows, heads, head_size, rows * columns, 1, columns};
  return {batch, rows, columns, heads, head_size, rows * columns, columns, 1};
}

double default_attention_scale(int64_t head_size) {
  return 1 / sqrt(static_cast<double>(head_size));
}

double query_factor(double scale) {
  if (scale >= 1) return 1;
  int exponent;
  frexp(scale, &exponent);  // scale is in [2^(exponent - 1), 2^exponent)
  return ldexp(1, exponent > -31 ? exponent - 1 : -32);
}

bool is_attention_scale(DType type, double scale) {
  const bool is_double = type == DType::kFloat64;
  return scale >= (is_double ? DBL_MIN : double{FLT_MIN}) &&
         scale <= (is_double ? DBL_MAX : double{FLT_MAX}) / 2;
}

}  // namespace vit
