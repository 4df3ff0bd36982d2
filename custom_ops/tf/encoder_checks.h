// Checks of the encoder op, for fully or partially known shapes.
#ifndef CUSTOM_OPS_TF_ENCODER_CHECKS_H_
#define CUSTOM_OPS_TF_ENCODER_CHECKS_H_

#include <cfloat>
#include <string>

#include "custom_ops/cc/encoder.h"
#include "custom_ops/tf/arrays.h"

namespace vit {

// No layer can be wider: its weights would have 2^58 elements. Sizes computed from a width and an
// mlp_size up to this do not overflow.
constexpr int64_t kLargestWidth = int64_t{1} << 28;

struct EncoderAttributes {
  int64_t blocks, heads, mlp_size;
  tensorflow::DataType type;
  Activation activation;
  float epsilon;
  bool first_row_only;
};

inline absl::Status check_layout(int64_t layout) {
  if (layout == kEncoderLayout) return absl::OkStatus();
  return invalid("The weights of the encoder are packed in layout ", layout,
                 ", but this version of custom_ops reads layout ", kEncoderLayout,
                 ". Pack them again with custom_ops.pack_encoder, and save the model again.");
}

// Context: OpKernelConstruction, InferenceContext, or a class with the same function GetAttr.
template <typename Context>
absl::Status get_attributes(Context* c, EncoderAttributes* attributes) {
  int64_t layout;
  std::string activation;
  TF_RETURN_IF_ERROR(c->GetAttr("layout", &layout));
  TF_RETURN_IF_ERROR(check_layout(layout));
  TF_RETURN_IF_ERROR(c->GetAttr("T", &attributes->type));
  TF_RETURN_IF_ERROR(c->GetAttr("blocks", &attributes->blocks));
  TF_RETURN_IF_ERROR(c->GetAttr("num_heads", &attributes->heads));
  TF_RETURN_IF_ERROR(c->GetAttr("mlp_size", &attributes->mlp_size));
  TF_RETURN_IF_ERROR(c->GetAttr("activation", &activation));
  TF_RETURN_IF_ERROR(c->GetAttr("epsilon", &attributes->epsilon));
  TF_RETURN_IF_ERROR(c->GetAttr("first_row_only", &attributes->first_row_only));
  // TensorFlow checks these itself, except for the largest mlp_size, but other runtimes do not.
  if (attributes->type != tensorflow::DT_FLOAT && attributes->type != tensorflow::DT_BFLOAT16) {
    return invalid("T must be float or bfloat16. Received: ",
                   tensorflow::DataTypeString(attributes->type), ".");
  }
  if (attributes->blocks < 1 || attributes->heads < 1) {
    return invalid("blocks and num_heads must be at least 1. Received: ", attributes->blocks,
                   " and ", attributes->heads, ".");
  }
  if (attributes->mlp_size < 1 || attributes->mlp_size > kLargestWidth) {
    return invalid("mlp_size must be in [1, 2^28]. Received: ", attributes->mlp_size, ".");
  }
  if (activation != "gelu_tanh" && activation != "gelu_erf") {
    return invalid("activation must be gelu_tanh or gelu_erf. Received: ", activation, ".");
  }
  attributes->activation = activation == "gelu_tanh" ? Activation::kGeluTanh : Activation::kGeluErf;
  if (attributes->epsilon >= FLT_MIN && attributes->epsilon <= 1) return absl::OkStatus();
  return invalid("epsilon must be in [2^-126, 1]. Received: ", attributes->epsilon, ".");
}

inline absl::Status check_tokens(const Dims& tokens, const EncoderAttributes& attributes) {
  TF_RETURN_IF_ERROR(check_rank("tokens", tokens, "[B, N, D]"));
  if (attributes.first_row_only && tokens[1] == 0) {
    return invalid("tokens have shape ", text(tokens), ", without the first row that ",
                   "first_row_only asks for.");
  }
  const int64_t width = tokens[2];
  if (width > kLargestWidth) {
    return invalid("tokens have shape ", text(tokens), ", wider than 2^28.");
  }
  if (width < 0 || (width > 0 && width % attributes.heads == 0)) return absl::OkStatus();
  return invalid("tokens have shape ", text(tokens), ", whose last dimension must be a positive ",
                 "multiple of num_heads = ", attributes.heads, ".");
}

// Checks an array of a block: `name` is weights or biases. The width may be -1.
inline absl::Status check_packed(const std::string& name, int64_t block, const Dims& dims,
                                 int64_t width, const EncoderAttributes& attributes) {
  const int64_t mlp_size = attributes.mlp_size;
  int64_t expected = -1;
  if (width >= 0) {
    expected = name == "weights" ? encoder_weights_size(dtype_of(attributes.type), width, mlp_size)
                                 : encoder_biases_size(width, mlp_size);
  }
  if (dims.size() == 1 && may_equal(dims[0], expected)) return absl::OkStatus();
  const std::string of_width = width < 0 ? "" : absl::StrCat(" for tokens of width ", width);
  return invalid(name, "[", block, "] has shape ", text(dims), ", but it must be ",
                 text({expected}), of_width, ", mlp_size = ", mlp_size,
                 " and T = ", tensorflow::DataTypeString(attributes.type), ". It is truncated, or ",
                 "packed for another encoder: pack the weights with custom_ops.pack_encoder.");
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_ENCODER_CHECKS_H_
