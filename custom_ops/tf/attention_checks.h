// Checks of the attention ops, for fully or partially known shapes.
#ifndef CUSTOM_OPS_TF_ATTENTION_CHECKS_H_
#define CUSTOM_OPS_TF_ATTENTION_CHECKS_H_

#include <optional>
#include <vector>

#include "custom_ops/cc/attention.h"
#include "custom_ops/tf/arrays.h"

namespace vit {

inline absl::Status check_qkv(const Dims& qkv, int64_t heads, int64_t axis) {
  TF_RETURN_IF_ERROR(check_rank("qkv", qkv, axis ? "[B, R, C, 3 D]" : "[B, N, 3 D]"));
  const int64_t width = qkv.back();
  if (width < 0 || (width > 0 && width % 3 == 0 && width / 3 % heads == 0)) return absl::OkStatus();
  return invalid("qkv has shape ", text(qkv), ", whose last dimension must be a positive multiple ",
                 "of 3 * num_heads, with num_heads = ", heads, ".");
}

// [B, H, N, N], or [B, lines, H, n, n] with an axis.
inline Dims logits_dims(const Dims& qkv, int64_t heads, int64_t axis) {
  if (axis == 0) return {qkv[0], heads, qkv[1], qkv[1]};
  return {qkv[0], qkv[3 - axis], heads, qkv[axis], qkv[axis]};
}

// [B, H, 2, N], or [B, lines, H, 2, n] with an axis. Size: int64_t, or DimensionHandle in a shape
// function, where unknown dimensions keep the handles of qkv.
template <class Size>
std::vector<Size> statistics_dims(const std::vector<Size>& qkv, Size heads, Size two,
                                  int64_t axis) {
  if (axis == 0) return {qkv[0], heads, two, qkv[1]};
  return {qkv[0], qkv[3 - axis], heads, two, qkv[axis]};
}

inline absl::Status check_bias(const Dims& bias, const Dims& logits) {
  bool fits = bias.size() <= logits.size();
  for (size_t i = 1; fits && i <= bias.size(); ++i) {
    const int64_t have = bias[bias.size() - i];
    fits = have == 1 || may_equal(have, logits[logits.size() - i]);
  }
  if (fits) return absl::OkStatus();
  return invalid("bias has shape ", text(bias), ", which does not broadcast to ",
                 logits.size() == 4 ? "[B, H, N, N] = " : "[B, lines, H, n, n] = ", text(logits),
                 ".");
}

struct AttentionAttributes {
  int64_t heads, axis;
  tensorflow::DataType type;
  bool has_bias;
  std::optional<double> scale;  // no value: 1 / sqrt(head_size)
};

// Context: OpKernelConstruction, InferenceContext, or a class with the same function GetAttr.
template <typename Context>
absl::Status get_attributes(Context* c, AttentionAttributes* attributes) {
  tensorflow::DataType accumulator = tensorflow::DT_INVALID;
  tensorflow::DataTypeVector bias;
  std::vector<float> scale;
  TF_RETURN_IF_ERROR(c->GetAttr("num_heads", &attributes->heads));
  TF_RETURN_IF_ERROR(c->GetAttr("axis", &attributes->axis));
  TF_RETURN_IF_ERROR(c->GetAttr("T", &attributes->type));
  TF_RETURN_IF_ERROR(c->GetAttr("Tacc", &accumulator));
  TF_RETURN_IF_ERROR(c->GetAttr("Tbias", &bias));
  TF_RETURN_IF_ERROR(c->GetAttr("scale", &scale));
  // TensorFlow checks this and the type itself, but other runtimes do not.
  if (attributes->heads < 1) {
    return invalid("num_heads must be at least 1. Received: ", attributes->heads, ".");
  }
  if (attributes->axis < 0 || attributes->axis > 2) {
    return invalid("axis must be 1 or 2, or 0 for attention along all tokens. Received: ",
                   attributes->axis, ".");
  }
  if ((attributes->type == tensorflow::DT_DOUBLE) != (accumulator == tensorflow::DT_DOUBLE)) {
    return invalid("Tacc must be double if T is double, and else float. Received: T = ",
                   tensorflow::DataTypeString(attributes->type),
                   ", Tacc = ", tensorflow::DataTypeString(accumulator), ".");
  }
  if (!is_float(attributes->type)) {
    return invalid("T must be float, double, bfloat16 or half. Received: ",
                   tensorflow::DataTypeString(attributes->type), ".");
  }
  attributes->has_bias = !bias.empty();
  if (bias.size() > 1 || (attributes->has_bias && bias[0] != accumulator)) {
    return invalid("bias must be a list of none or one tensor of type Tacc = ",
                   tensorflow::DataTypeString(accumulator),
                   ". Received: ", tensorflow::DataTypeSliceString(bias), ".");
  }
  attributes->scale.reset();
  if (!scale.empty()) attributes->scale = sum_of(scale);
  if (attributes->scale && !is_attention_scale(dtype_of(attributes->type), *attributes->scale)) {
    return invalid("scale must be finite and above 0 as ", tensorflow::DataTypeString(accumulator),
                   ", or an empty list for 1 / sqrt(head_size). Received: ", *attributes->scale,
                   ".");
  }
  return absl::OkStatus();
}

// The error of VitAttentionBiasGrad without a bias.
inline absl::Status needs_bias() {
  return invalid("VitAttentionBiasGrad needs a bias. Received: no bias.");
}

inline absl::Status check_taps_axis(int64_t axis) {
  return axis ? invalid("Taps need axis = 0. Received: axis = ", axis, ".") : absl::OkStatus();
}

inline absl::Status check_grid(int64_t rows, int64_t columns, int64_t tokens) {
  int64_t patches;
  if (rows < 1 || columns < 1) {
    return invalid("The tap distance needs grid_rows and grid_columns of at least 1. Received: ",
                   rows, " and ", columns, ".");
  }
  TF_RETURN_IF_ERROR(product("A grid", {rows, columns}, &patches));
  if (tokens < 0 || patches <= tokens) return absl::OkStatus();
  return invalid("A grid of ", rows, " x ", columns, " has more patches than qkv has tokens, ",
                 tokens, ".");
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_ATTENTION_CHECKS_H_
