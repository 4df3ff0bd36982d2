// What the encoder op checks and does in every runtime that calls it: see attention_op.h.
#ifndef CUSTOM_OPS_CC_ENCODER_OP_H_
#define CUSTOM_OPS_CC_ENCODER_OP_H_

#include <cfloat>
#include <string>
#include <vector>

#include "custom_ops/cc/array.h"
#include "custom_ops/cc/encoder_problem.h"

namespace vit {

// The attributes and inputs of the blocks.
class EncoderBody {
 public:
  static constexpr int kConstantInput = -1;

  template <class Attributes>
  Status init(Attributes* attributes) {
    int64_t layout;
    std::string activation;
    VIT_RETURN_IF_ERROR(attributes->get("layout", &layout));
    if (layout != kEncoderLayout) {
      return invalid("The weights of the encoder are packed in layout ", layout,
                     ", but this version of custom_ops reads layout ", kEncoderLayout,
                     ". Pack them again with custom_ops.pack_encoder, and save the model again.");
    }
    VIT_RETURN_IF_ERROR(attributes->get("T", &type_));
    VIT_RETURN_IF_ERROR(attributes->get("blocks", &blocks_));
    VIT_RETURN_IF_ERROR(attributes->get("num_heads", &heads_));
    VIT_RETURN_IF_ERROR(attributes->get("mlp_size", &mlp_size_));
    VIT_RETURN_IF_ERROR(attributes->get("activation", &activation));
    VIT_RETURN_IF_ERROR(attributes->get("epsilon", &epsilon_));
    VIT_RETURN_IF_ERROR(attributes->get("qk_norm", &qk_norm_));
    // TensorFlow checks these itself, except for the largest mlp_size, but other runtimes do not.
    if (type_ != ElementType::kFloat32 && type_ != ElementType::kBfloat16) {
      return invalid("T must be float32 or bfloat16. Received: ", name_of(type_), ".");
    }
    if (blocks_ < 1 || heads_ < 1) {
      return invalid("blocks and num_heads must be at least 1. Received: ", blocks_, " and ",
                     heads_, ".");
    }
    if (mlp_size_ < 1 || mlp_size_ > kLargestWidth) {
      return invalid("mlp_size must be in [1, 2^28]. Received: ", mlp_size_, ".");
    }
    if (!(epsilon_ >= FLT_MIN && epsilon_ <= 1)) {
      return invalid("epsilon must be in [2^-126, 1]. Received: ", epsilon_, ".");
    }
    for (const Activation each :
         {Activation::kGeluTanh, Activation::kGeluErf, Activation::kSwiglu}) {
      if (activation == kActivations[static_cast<int>(each)]) activation_ = each;
    }
    if (activation == kActivations[static_cast<int>(activation_)]) return {};
    return invalid("activation must be gelu_tanh, gelu_erf or swiglu. Received: ", activation, ".");
  }

 protected:
  // `has_rotary`: whether the op has an input of rotary positions.
  explicit EncoderBody(bool has_rotary) : has_rotary_(has_rotary) {}

  // No layer can be wider: its weights would have 2^58 elements. Sizes computed from a width and an
  // mlp_size up to this do not overflow.
  static constexpr int64_t kLargestWidth = int64_t{1} << 28;

  // Checks the last dimension of an array, which is the width of the tokens.
  Status check_width(const char* name, const Dims& dims) const {
    const int64_t width = dims.back();
    if (width > kLargestWidth) {
      return invalid(name, " have shape ", text(dims), ", wider than 2^28.");
    }
    if (width < 0 || (width > 0 && width % heads_ == 0)) return {};
    return invalid(name, " have shape ", text(dims), ", whose last dimension must be a ",
                   "positive multiple of num_heads = ", heads_, ".");
  }

  // Checks the weights and then the biases of all blocks, from an input on. The width may be
  // unknown.
  Status check_blocks(const Arrays& inputs, int64_t first, int64_t width) const {
    for (int64_t i = 0; i < blocks_; ++i) {
      const Array &weights = inputs[first + i], &biases = inputs[first + blocks_ + i];
      VIT_RETURN_IF_ERROR(check_type("weights", weights, type_));
      VIT_RETURN_IF_ERROR(check_type("biases", biases, ElementType::kFloat32));
      VIT_RETURN_IF_ERROR(check_packed("weights", i, weights, width));
      VIT_RETURN_IF_ERROR(check_packed("biases", i, biases, width));
    }
    return {};
  }

  // Checks the table of rotary positions, if the op has one. The tokens and the width may be
  // unknown.
  Status check_rotary(const Arrays& inputs, int64_t at, int64_t tokens, int64_t width) const {
    if (!has_rotary_) return {};
    constexpr const char* kLayout = "[P, 2, d / 2]";
    const Array& rotary = inputs[at];
    Dims dims;
    VIT_RETURN_IF_ERROR(check_type("rotary", rotary, ElementType::kFloat32));
    VIT_RETURN_IF_ERROR(get_dims("rotary", rotary, kLayout, &dims));
    const int64_t size = width < 0 ? -1 : width / heads_;
    if (size > 0 && size % 2) {
      return invalid("rotary positions turn pairs of elements, but heads have ", size, ".");
    }
    VIT_RETURN_IF_ERROR(
        check_shape("rotary", rotary, kLayout, {dims[0], 2, size < 0 ? -1 : size / 2}));
    if (dims[0] < 0 || tokens < 0 || dims[0] <= tokens) return {};
    return invalid("rotary has ", dims[0], " rows, one for each of the last tokens, but there are ",
                   tokens, " tokens.");
  }

  std::vector<EncoderBlock> blocks_of(const Arrays& inputs, int64_t first) const {
    std::vector<EncoderBlock> blocks;
    for (int64_t i = 0; i < blocks_; ++i) {
      blocks.push_back(
          {inputs[first + i].data, static_cast<const float*>(inputs[first + blocks_ + i].data)});
    }
    return blocks;
  }

  // `rotary`: the input of the table, if there is one.
  EncoderProblem problem(const std::vector<EncoderBlock>& blocks, const Arrays& inputs,
                         int64_t rotary) const {
    EncoderProblem problem = {};
    problem.type = dtype_of(type_);
    problem.heads = heads_;
    problem.mlp_size = mlp_size_;
    problem.blocks = blocks_;
    problem.activation = activation_;
    problem.epsilon = epsilon_;
    problem.qk_norm = qk_norm_;
    if (has_rotary_) {
      problem.rotary = static_cast<const float*>(inputs[rotary].data);
      problem.rotary_tokens = inputs[rotary].dims[0];
    }
    problem.block = blocks.data();
    return problem;
  }

  const bool has_rotary_;
  int64_t blocks_;
  ElementType type_;

 private:
  static constexpr const char* kActivations[] = {"gelu_tanh", "gelu_erf", "swiglu"};

  // Checks an array of a block: `name` is weights or biases. The width may be unknown.
  Status check_packed(const std::string& name, int64_t block, const Array& array,
                      int64_t width) const {
    if (array.has_any_rank) return {};
    int64_t expected = -1;
    if (width >= 0) {
      expected = name == "weights"
                     ? encoder_weights_size(dtype_of(type_), width, mlp_size_, activation_)
                     : encoder_biases_size(width, mlp_size_, activation_) +
                           (qk_norm_ ? qk_norm_size(width / heads_) : 0);
    }
    if (array.dims.size() == 1 && may_equal(array.dims[0], expected)) return {};
    const std::string of_width = width < 0 ? "" : " for tokens of width " + std::to_string(width);
    return invalid(name, "[", block, "] has shape ", text(array.dims), ", but it must be ",
                   text({expected}), of_width, ", mlp_size = ", mlp_size_,
                   " and T = ", name_of(type_), ". It is truncated, or packed for another ",
                   "encoder: pack the weights with custom_ops.pack_encoder.");
  }

  int64_t heads_, mlp_size_;
  Activation activation_ = Activation::kGeluTanh;
  float epsilon_;
  bool qk_norm_;
};

// The inputs are the tokens, the weights of every block and the biases of every block.
class Encoder : public EncoderBody {
 public:
  static constexpr char kName[] = "VitEncoder";

  Encoder() : Encoder(false) {}

  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(EncoderBody::init(attributes));
    return attributes->get("first_row_only", &first_row_only_);
  }

  Status check(const Arrays& inputs, Arrays* outputs) const {
    // 1 + 2 * blocks could overflow; the number of inputs cannot.
    const auto count = static_cast<int64_t>(inputs.size()) - 1 - has_rotary_;
    if (count < 0 || count % 2 || count / 2 != blocks_) {
      return invalid("The op must have ", 1 + has_rotary_, " inputs, and weights and biases of ",
                     blocks_, " blocks. Received: ", inputs.size(), " inputs.");
    }
    Dims tokens;
    VIT_RETURN_IF_ERROR(check_type("tokens", inputs[0], ElementType::kFloat32));
    VIT_RETURN_IF_ERROR(get_dims("tokens", inputs[0], "[B, N, D]", &tokens));
    if (first_row_only_ && tokens[1] == 0) {
      return invalid("tokens have shape ", text(tokens), ", without the first row that ",
                     "first_row_only asks for.");
    }
    VIT_RETURN_IF_ERROR(check_width("tokens", tokens));
    VIT_RETURN_IF_ERROR(check_blocks(inputs, 1, tokens[2]));
    VIT_RETURN_IF_ERROR(check_rotary(inputs, 1 + 2 * blocks_, tokens[1], tokens[2]));
    if (first_row_only_) tokens[1] = 1;
    *outputs = {{ElementType::kFloat32, tokens, nullptr, "out"}};
    return {};
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (outputs[0].elements() == 0) return {};
    const std::vector<EncoderBlock> blocks = blocks_of(inputs, 1);
    const Dims& tokens = inputs[0].dims;
    EncoderProblem problem = EncoderBody::problem(blocks, inputs, 1 + 2 * blocks_);
    problem.batch = tokens[0];
    problem.tokens = tokens[1];
    problem.width = tokens[2];
    problem.first_row_only = first_row_only_;
    problem.input = static_cast<const float*>(inputs[0].data);
    problem.out = static_cast<float*>(outputs[0].data);
    return encoder(problem, execution);
  }

 protected:
  explicit Encoder(bool has_rotary) : EncoderBody(has_rotary) {}

 private:
  bool first_row_only_;
};

// The table of rotary positions is one more input.
class RotaryEncoder : public Encoder {
 public:
  static constexpr char kName[] = "VitRotaryEncoder";

  RotaryEncoder() : Encoder(true) {}
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_ENCODER_OP_H_
