#include "custom_ops/cc/encoder_problem.h"

namespace vit {

int64_t packed_size(DType type, int64_t depth, int64_t columns) {
  const int64_t pack = 4 / size_of(type);
  const int64_t panels = (columns + kPanelColumns - 1) / kPanelColumns;
  return panels * ((depth + pack - 1) / pack) * kPanelColumns * pack;
}

int64_t fc1_columns(Activation activation, int64_t mlp_size) {
  return activation == Activation::kSwiglu ? 2 * mlp_size : mlp_size;
}

int64_t encoder_weights_size(DType type, int64_t width, int64_t mlp_size, Activation activation) {
  return packed_size(type, width, 3 * width) + packed_size(type, width, width) +
         packed_size(type, width, fc1_columns(activation, mlp_size)) +
         packed_size(type, mlp_size, width);
}

int64_t encoder_biases_size(int64_t width, int64_t mlp_size, Activation activation) {
  return 5 * width + fc1_columns(activation, mlp_size);
}

int64_t qk_norm_size(int64_t head_size) { return 4 * head_size; }

}  // namespace vit
