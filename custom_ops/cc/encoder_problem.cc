#include "custom_ops/cc/encoder_problem.h"

namespace vit {

int64_t packed_size(DType type, int64_t depth, int64_t columns) {
  const int64_t pack = 4 / size_of(type);
  const int64_t panels = (columns + kPanelColumns - 1) / kPanelColumns;
  return panels * ((depth + pack - 1) / pack) * kPanelColumns * pack;
}

int64_t encoder_weights_size(DType type, int64_t width, int64_t mlp_size) {
  return packed_size(type, width, 3 * width) + packed_size(type, width, width) +
         packed_size(type, width, mlp_size) + packed_size(type, mlp_size, width);
}

int64_t encoder_biases_size(int64_t width, int64_t mlp_size) { return 5 * width + mlp_size; }

}  // namespace vit
