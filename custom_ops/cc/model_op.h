// What the op of a whole model checks and does in every runtime that calls it: see attention_op.h.
#ifndef CUSTOM_OPS_CC_MODEL_OP_H_
#define CUSTOM_OPS_CC_MODEL_OP_H_

#include <optional>
#include <string>
#include <vector>

#include "custom_ops/cc/encoder_op.h"
#include "custom_ops/cc/patch_embed_op.h"

namespace vit {

// The inputs are images, the packed kernel of the patch embedding and its bias, the optional
// tables, the weights of every block, the biases of every block, scale and bias of the final
// LayerNorm and, if there is a head, its packed kernel and its bias.
class Model : public EncoderBody {
 public:
  static constexpr char kName[] = "VitModel";

  Model() : Model(false) {}

  template <class Attributes>
  Status init(Attributes* attributes) {
    std::string pooling;
    std::optional<double> scale, offset;
    int64_t heads;
    VIT_RETURN_IF_ERROR(EncoderBody::init(attributes));
    VIT_RETURN_IF_ERROR(tables_.init(attributes));
    VIT_RETURN_IF_ERROR(attributes->get("I", &image_type_));
    VIT_RETURN_IF_ERROR(attributes->get("patch_size", &patch_size_));
    VIT_RETURN_IF_ERROR(attributes->get("pooling", &pooling));
    VIT_RETURN_IF_ERROR(attributes->get("scale", &scale));
    VIT_RETURN_IF_ERROR(attributes->get("offset", &offset));
    VIT_RETURN_IF_ERROR(attributes->get("num_head", &heads));
    scale_ = scale.value_or(1);
    offset_ = offset.value_or(0);
    has_head_ = heads == 1;
    if (heads < 0 || heads > 1) {
      return invalid("num_head must be 0 or 1. Received: ", heads, ".");
    }
    if (image_type_ != ElementType::kUint8 &&
        (!is_float(image_type_) || image_type_ == ElementType::kFloat64)) {
      return invalid(
          "I must be uint8, float32, bfloat16 or float16. Received: ", name_of(image_type_), ".");
    }
    for (const Pooling each : {Pooling::kNone, Pooling::kToken, Pooling::kMean}) {
      if (pooling == kPoolings[static_cast<int>(each)]) pooling_ = each;
    }
    if (pooling == kPoolings[static_cast<int>(pooling_)]) return {};
    return invalid("pooling must be none, token or mean. Received: ", pooling, ".");
  }

  Status check(const Arrays& inputs, Arrays* outputs) const {
    const int64_t around = 5 + tables_.count() + 2 * has_head_ + has_rotary_;
    const auto count = static_cast<int64_t>(inputs.size()) - around;
    if (count < 0 || count % 2 || count / 2 != blocks_) {
      return invalid("The op must have ", around, " inputs, and weights and biases of ", blocks_,
                     " blocks. Received: ", inputs.size(), " inputs.");
    }
    Dims images, patches;
    VIT_RETURN_IF_ERROR(check_type("images", inputs[0], image_type_));
    VIT_RETURN_IF_ERROR(get_dims("images", inputs[0], "[B, H, W, C]", &images));
    VIT_RETURN_IF_ERROR(patches_of(images, patch_size_, &patches));
    if (images[3] == 0) return invalid("images have shape ", text(images), ", without channels.");
    if (patches[1] == 0) return check_holds_patch(images, patch_size_);
    int64_t width = -1, tokens = patches[1];
    VIT_RETURN_IF_ERROR(check_row("bias", inputs[2], "[D]", &width));
    VIT_RETURN_IF_ERROR(tables_.check(inputs, 3, ElementType::kFloat32, &tokens, &width));
    const Array* norm = &inputs[first_block() + 2 * blocks_];
    VIT_RETURN_IF_ERROR(check_row("norm_scale", norm[0], "[D]", &width));
    VIT_RETURN_IF_ERROR(check_row("norm_bias", norm[1], "[D]", &width));
    VIT_RETURN_IF_ERROR(check_width("tokens", {images[0], tokens, width}));
    VIT_RETURN_IF_ERROR(check_dense("kernel", inputs[1], type_, patches[2], width));
    VIT_RETURN_IF_ERROR(check_blocks(inputs, first_block(), width));
    VIT_RETURN_IF_ERROR(check_rotary(inputs, rotary(), tokens, width));
    int64_t columns = width;
    if (has_head_) {
      columns = -1;
      VIT_RETURN_IF_ERROR(check_row("head_bias", norm[3], "[K]", &columns));
      VIT_RETURN_IF_ERROR(check_dense("head", norm[2], ElementType::kFloat32, width, columns));
    }
    Dims out = {images[0], tokens, columns};
    if (pooling_ != Pooling::kNone) out.erase(out.begin() + 1);
    *outputs = {{ElementType::kFloat32, out, nullptr, "out"}};
    return {};
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (outputs[0].elements() == 0) return {};
    const auto floats = [](const Array& array) { return static_cast<const float*>(array.data); };
    const Array *prefix = tables_.prefix(inputs, 3), *position = tables_.position(inputs, 3);
    const Array* norm = &inputs[first_block() + 2 * blocks_];
    const Dims& i = inputs[0].dims;
    const int64_t width = inputs[2].dims[0];
    const EncoderImages images = {
        dtype_of(image_type_),
        {i[0], i[1], i[2], i[3], patch_size_, width, prefix ? prefix->dims[0] : 0},
        scale_,
        offset_,
        inputs[0].data,
        inputs[1].data,
        floats(inputs[2]),
        static_cast<const float*>(data_of(prefix)),
        static_cast<const float*>(data_of(position))};
    const EncoderHead head = {floats(norm[0]),
                              floats(norm[1]),
                              pooling_,
                              has_head_ ? norm[3].dims[0] : 0,
                              has_head_ ? norm[2].data : nullptr,
                              has_head_ ? floats(norm[3]) : nullptr};
    const std::vector<EncoderBlock> blocks = blocks_of(inputs, first_block());
    EncoderProblem problem = EncoderBody::problem(blocks, inputs, rotary());
    problem.batch = i[0];
    problem.tokens = images.shape.tokens();
    problem.width = width;
    problem.first_row_only = pooling_ == Pooling::kToken;
    problem.out = static_cast<float*>(outputs[0].data);
    problem.images = &images;
    problem.head = &head;
    return encoder(problem, execution);
  }

 protected:
  explicit Model(bool has_rotary) : EncoderBody(has_rotary) {}

 private:
  static constexpr const char* kPoolings[] = {"none", "token", "mean"};

  int64_t first_block() const { return 3 + tables_.count(); }

  int64_t rotary() const { return first_block() + 2 * (blocks_ + 1 + has_head_); }

  static Status check_row(const char* name, const Array& array, const char* layout, int64_t* size) {
    Dims dims;
    return get_table(name, array, ElementType::kFloat32, layout, &dims, size);
  }

  // Checks the packed kernel of a dense layer, whose sizes may be unknown.
  static Status check_dense(const char* name, const Array& array, ElementType type, int64_t depth,
                            int64_t columns) {
    VIT_RETURN_IF_ERROR(check_type(name, array, type));
    if (depth > kLargestWidth || columns > kLargestWidth) {
      return invalid("The layer ", name, " of ", depth, " x ", columns, " is larger than 2^28 x ",
                     "2^28.");
    }
    const bool is_known = depth >= 0 && columns >= 0;
    return check_shape(name, array, "packed by custom_ops.model",
                       {is_known ? packed_size(dtype_of(type), depth, columns) : -1});
  }

  OptionalTables tables_;
  ElementType image_type_;
  int64_t patch_size_;
  Pooling pooling_ = Pooling::kNone;
  double scale_, offset_;
  bool has_head_;
};

// The table of rotary positions is one more input.
class RotaryModel : public Model {
 public:
  static constexpr char kName[] = "VitRotaryModel";

  RotaryModel() : Model(true) {}
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_MODEL_OP_H_
