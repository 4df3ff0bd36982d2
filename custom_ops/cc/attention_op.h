// What the attention ops check and do in every runtime that calls them: TensorFlow (custom_ops/tf),
// XLA (custom_ops/xla) and the Python modules (custom_ops/python). A runtime calls init, which
// reads the attributes, once; then check, which describes the outputs; and run, with the inputs
// that check accepted and with memory for outputs. Shape functions call check with shapes that are
// known in part. `Attributes` is a class with functions get(name, value), which return a Status.
#ifndef CUSTOM_OPS_CC_ATTENTION_OP_H_
#define CUSTOM_OPS_CC_ATTENTION_OP_H_

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "custom_ops/cc/array.h"
#include "custom_ops/cc/attention_problem.h"

namespace vit {

// The inputs are qkv, the bias if there is one, and the op's own inputs.
class AttentionBody {
 public:
  static constexpr int kConstantInput = -1;

  template <class Attributes>
  Status init(Attributes* attributes) {
    ElementType sums;
    std::vector<ElementType> bias;
    VIT_RETURN_IF_ERROR(attributes->get("num_heads", &heads_));
    VIT_RETURN_IF_ERROR(attributes->get("axis", &axis_));
    VIT_RETURN_IF_ERROR(attributes->get("T", &type_));
    VIT_RETURN_IF_ERROR(attributes->get("Tacc", &sums));
    VIT_RETURN_IF_ERROR(attributes->get("Tbias", &bias));
    VIT_RETURN_IF_ERROR(attributes->get("scale", &scale_));
    if (heads_ < 1) return invalid("num_heads must be at least 1. Received: ", heads_, ".");
    if (axis_ < 0 || axis_ > 2) {
      return invalid("axis must be 1 or 2, or 0 for attention along all tokens. Received: ", axis_,
                     ".");
    }
    VIT_RETURN_IF_ERROR(check_float("qkv", type_));
    if (sums != accumulator(type_)) {
      return invalid("Tacc must be float64 if T is float64, and else float32. Received: T = ",
                     name_of(type_), ", Tacc = ", name_of(sums), ".");
    }
    has_bias_ = !bias.empty();
    if (bias.size() > 1 || (has_bias_ && bias[0] != sums)) {
      std::string names;
      for (ElementType type : bias)
        names += (names.empty() ? "" : ", ") + std::string(name_of(type));
      return invalid("bias must be a list of none or one tensor of type Tacc = ", name_of(sums),
                     ". Received: ", names, ".");
    }
    if (!scale_ || is_attention_scale(dtype_of(type_), *scale_)) return {};
    return invalid("scale must be finite and above 0 as ", name_of(sums),
                   ", or left out for 1 / sqrt(head_size). Received: ", *scale_, ".");
  }

 protected:
  // The inputs that come after qkv and the bias.
  int64_t first_own() const { return 1 + has_bias_; }

  // Checks qkv, whose dimensions it gets, the bias, and that `own` inputs come after them.
  Status check_inputs(const Arrays& inputs, int64_t own, Dims* qkv) const {
    VIT_RETURN_IF_ERROR(check_count(inputs, first_own() + own));
    VIT_RETURN_IF_ERROR(check_type("qkv", inputs[0], type_));
    const char* layout = axis_ ? "[B, R, C, 3 D]" : "[B, N, 3 D]";
    VIT_RETURN_IF_ERROR(get_dims("qkv", inputs[0], layout, qkv));
    const int64_t width = qkv->back();
    if (width == 0 || (width > 0 && (width % 3 || width / 3 % heads_))) {
      return invalid("qkv has shape ", text(*qkv), ", whose last dimension must be a positive ",
                     "multiple of 3 * num_heads, with num_heads = ", heads_, ".");
    }
    if (!has_bias_) return {};
    VIT_RETURN_IF_ERROR(check_type("bias", inputs[1], accumulator(type_)));
    return check_bias(inputs[1], logits_dims(*qkv));
  }

  // Checks the inputs of a gradient: out, statistics and d_out.
  Status check_gradient(const Arrays& inputs, Dims* qkv) const {
    VIT_RETURN_IF_ERROR(check_inputs(inputs, 3, qkv));
    const Array *own = &inputs[first_own()], expected = out(*qkv);
    for (int i : {0, 2}) {
      const char* name = i ? "d_out" : "out";
      VIT_RETURN_IF_ERROR(check_type(name, own[i], type_, ", like qkv. Cast it."));
      VIT_RETURN_IF_ERROR(check_shape(name, own[i], "like out", expected.dims));
    }
    return check_statistics(own[1], *qkv, "[B, (lines,) H, 2, n]");
  }

  Status check_statistics(const Array& array, const Dims& qkv, const char* layout) const {
    VIT_RETURN_IF_ERROR(check_type("statistics", array, accumulator(type_),
                                   ", as the forward pass of this qkv writes it."));
    return check_shape("statistics", array, layout, statistics(qkv).dims);
  }

  Array out(const Dims& qkv) const {
    Array array = {type_, qkv, nullptr, "out"};
    array.dims.back() = qkv.back() < 0 ? -1 : qkv.back() / 3;
    return array;
  }

  // [B, H, 2, N], or [B, lines, H, 2, n] with an axis.
  Array statistics(const Dims& qkv) const {
    Dims dims = {qkv[0], heads_, 2, qkv[1]};
    if (axis_) dims = {qkv[0], qkv[3 - axis_], heads_, 2, qkv[axis_]};
    return {accumulator(type_), dims, nullptr, "statistics"};
  }

  // The problem of inputs that are checked.
  AttentionProblem problem(const Arrays& inputs) const {
    const Dims& qkv = inputs[0].dims;
    const int64_t size = qkv.back() / 3 / heads_;
    AttentionProblem problem = {};
    problem.type = dtype_of(type_);
    problem.shape = axis_
                        ? grid_shape(qkv[0], qkv[1], qkv[2], heads_, size, static_cast<int>(axis_))
                        : sequence_shape(qkv[0], qkv[1], heads_, size);
    problem.scale = scale_.value_or(default_attention_scale(size));
    problem.qkv = inputs[0].data;
    if (has_bias_) set_bias(inputs[1], &problem.bias);
    return problem;
  }

  AttentionGradientProblem gradient_problem(const Arrays& inputs, const Array& gradient) const {
    const Array* own = &inputs[first_own()];
    return {problem(inputs), own[0].data, own[1].data, own[2].data, gradient.data};
  }

  int64_t heads_, axis_;
  ElementType type_;
  bool has_bias_;

 private:
  // [B, H, N, N], or [B, lines, H, n, n] with an axis.
  Dims logits_dims(const Dims& qkv) const {
    if (axis_ == 0) return {qkv[0], heads_, qkv[1], qkv[1]};
    return {qkv[0], qkv[3 - axis_], heads_, qkv[axis_], qkv[axis_]};
  }

  static Status check_bias(const Array& bias, const Dims& logits) {
    if (bias.has_any_rank) return {};
    const Dims& dims = bias.dims;
    bool fits = dims.size() <= logits.size();
    for (size_t i = 1; fits && i <= dims.size(); ++i) {
      const int64_t have = dims[dims.size() - i];
      fits = have == 1 || may_equal(have, logits[logits.size() - i]);
    }
    if (fits) return {};
    return invalid("bias has shape ", text(dims), ", which does not broadcast to ",
                   logits.size() == 4 ? "[B, H, N, N] = " : "[B, lines, H, n, n] = ", text(logits),
                   ".");
  }

  // Sets the strides of a bias that broadcasts to [B, (lines,) H, n, n].
  void set_bias(const Array& array, AttentionBias* bias) const {
    int64_t* by_axis[] = {&bias->key_stride, &bias->query_stride, &bias->head_stride,
                          axis_ ? &bias->line_stride : &bias->batch_stride, &bias->batch_stride};
    bias->data = array.data;
    int64_t stride = 1;
    for (size_t i = 0; i < array.dims.size(); ++i) {
      const int64_t size = array.dims[array.dims.size() - 1 - i];
      *by_axis[i] = size == 1 ? 0 : stride;
      stride *= size;
    }
  }

  std::optional<double> scale_;  // no value: 1 / sqrt(head_size)
};

class Attention : public AttentionBody {
 public:
  static constexpr char kName[] = "VitAttention";

  Status check(const Arrays& inputs, Arrays* outputs) const {
    Dims qkv;
    VIT_RETURN_IF_ERROR(check_inputs(inputs, 0, &qkv));
    *outputs = {out(qkv), statistics(qkv)};
    return {};
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (outputs[0].elements() == 0) return {};
    return attention_forward({problem(inputs), outputs[0].data, outputs[1].data}, execution);
  }
};

class AttentionGrad : public AttentionBody {
 public:
  static constexpr char kName[] = "VitAttentionGrad";

  Status check(const Arrays& inputs, Arrays* outputs) const {
    Dims qkv;
    VIT_RETURN_IF_ERROR(check_gradient(inputs, &qkv));
    *outputs = {{type_, qkv, nullptr, "d_qkv"}};
    return {};
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (outputs[0].elements() == 0) return {};
    return attention_backward(gradient_problem(inputs, outputs[0]), execution);
  }
};

class AttentionBiasGrad : public AttentionBody {
 public:
  static constexpr char kName[] = "VitAttentionBiasGrad";

  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(AttentionBody::init(attributes));
    return has_bias_ ? Status()
                     : invalid("The gradient of the bias needs a bias. Received: no bias.");
  }

  Status check(const Arrays& inputs, Arrays* outputs) const {
    Dims qkv;
    VIT_RETURN_IF_ERROR(check_gradient(inputs, &qkv));
    *outputs = {{accumulator(type_), inputs[1].dims, nullptr, "d_bias", inputs[1].has_any_rank}};
    return {};
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (inputs[0].elements() == 0) return fill_with_zeros(outputs, execution);
    return attention_bias_gradient(gradient_problem(inputs, outputs[0]), execution);
  }
};

// A tap that is not asked for has the shape [0].
class AttentionTaps : public AttentionBody {
 public:
  static constexpr char kName[] = "VitAttentionTaps";

  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(AttentionBody::init(attributes));
    VIT_RETURN_IF_ERROR(attributes->get("taps", &taps_));
    VIT_RETURN_IF_ERROR(attributes->get("grid_rows", &rows_));
    VIT_RETURN_IF_ERROR(attributes->get("grid_columns", &columns_));
    if (axis_ == 0) return {};
    return invalid(
        "Taps need attention along all tokens, without an axis. Received: axis = ", axis_, ".");
  }

  Status check(const Arrays& inputs, Arrays* outputs) const {
    Dims qkv;
    VIT_RETURN_IF_ERROR(check_inputs(inputs, 1, &qkv));
    VIT_RETURN_IF_ERROR(check_statistics(inputs[first_own()], qkv, "[B, H, 2, N]"));
    if (is_wanted("distance")) VIT_RETURN_IF_ERROR(check_grid(qkv[1]));
    for (const char* name : {"class_row", "distance", "entropy"}) {
      Dims dims = {0};
      if (is_wanted(name)) {
        dims = {qkv[0], heads_};
        if (outputs->empty()) dims.push_back(qkv[1]);
      }
      outputs->push_back({accumulator(type_), dims, nullptr, name});
    }
    return {};
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (inputs[0].elements() == 0) return fill_with_zeros(outputs, execution);
    void* taps[3];
    for (int i = 0; i < 3; ++i) taps[i] = outputs[i].elements() ? outputs[i].data : nullptr;
    return attention_taps({problem(inputs), inputs[first_own()].data, taps[1] ? rows_ : 0,
                           taps[1] ? columns_ : 0, taps[0], taps[1], taps[2]},
                          execution);
  }

 private:
  bool is_wanted(const char* name) const {
    return std::find(taps_.begin(), taps_.end(), name) != taps_.end();
  }

  Status check_grid(int64_t tokens) const {
    int64_t patches;
    if (rows_ < 1 || columns_ < 1) {
      return invalid("The tap distance needs a grid with sides of at least 1. Received: ", rows_,
                     " and ", columns_, ".");
    }
    VIT_RETURN_IF_ERROR(product("A grid", {rows_, columns_}, &patches));
    if (tokens < 0 || patches <= tokens) return {};
    return invalid("A grid of ", rows_, " x ", columns_, " has more patches than qkv has tokens, ",
                   tokens, ".");
  }

  std::vector<std::string> taps_;
  int64_t rows_, columns_;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_ATTENTION_OP_H_
