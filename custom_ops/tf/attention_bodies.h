// What the attention ops do in every runtime that calls them: TensorFlow (attention_ops.cc) and XLA
// (custom_ops/xla). A runtime calls init, which reads the attributes, once; then check, which
// describes the outputs; and run, with the inputs that check accepted and with memory for outputs.
#ifndef CUSTOM_OPS_TF_ATTENTION_BODIES_H_
#define CUSTOM_OPS_TF_ATTENTION_BODIES_H_

#include <algorithm>
#include <string>
#include <vector>

#include "custom_ops/cc/attention.h"
#include "custom_ops/tf/attention_checks.h"

namespace vit {

inline bool contains(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The inputs are qkv, the bias if there is one, and those of the op.
class AttentionBody {
 public:
  static constexpr int kConstantInput = -1;

  template <typename Context>
  absl::Status init(Context* c) {
    return get_attributes(c, &attributes_);
  }

 protected:
  // The inputs that come after qkv and the bias.
  int64_t first_own() const { return 1 + attributes_.has_bias; }

  tensorflow::DataType accumulator() const {
    return attributes_.type == tensorflow::DT_DOUBLE ? tensorflow::DT_DOUBLE : tensorflow::DT_FLOAT;
  }

  // Checks qkv, the bias, and that `own` inputs come after them.
  absl::Status check_inputs(const Arrays& inputs, int64_t own) const {
    const int64_t heads = attributes_.heads, axis = attributes_.axis;
    TF_RETURN_IF_ERROR(check_count(inputs, first_own() + own));
    TF_RETURN_IF_ERROR(check_type("qkv", inputs[0], attributes_.type));
    TF_RETURN_IF_ERROR(check_qkv(inputs[0].dims, heads, axis));
    if (!attributes_.has_bias) return absl::OkStatus();
    TF_RETURN_IF_ERROR(check_type("bias", inputs[1], accumulator()));
    return check_bias(inputs[1].dims, logits_dims(inputs[0].dims, heads, axis));
  }

  // Checks the inputs of a gradient: out, statistics and d_out.
  absl::Status check_gradient(const Arrays& inputs) const {
    TF_RETURN_IF_ERROR(check_inputs(inputs, 3));
    const Array *own = &inputs[first_own()], expected = out(inputs[0]);
    for (int i : {0, 2}) {
      const char* name = i ? "d_out" : "out";
      TF_RETURN_IF_ERROR(check_type(name, own[i], attributes_.type));
      TF_RETURN_IF_ERROR(check_shape(name, own[i].dims, "like out", expected.dims));
    }
    return check_statistics(own[1], inputs[0], "[B, (lines,) H, 2, n]");
  }

  absl::Status check_statistics(const Array& array, const Array& qkv, const char* layout) const {
    TF_RETURN_IF_ERROR(check_type("statistics", array, accumulator()));
    return check_shape("statistics", array.dims, layout, statistics(qkv).dims);
  }

  Array out(const Array& qkv) const {
    Array array = {attributes_.type, qkv.dims, nullptr, "out"};
    array.dims.back() /= 3;
    return array;
  }

  Array statistics(const Array& qkv) const {
    return {accumulator(),
            statistics_dims<int64_t>(qkv.dims, attributes_.heads, 2, attributes_.axis), nullptr,
            "statistics"};
  }

  // The problem of inputs that are checked.
  AttentionProblem problem(const Arrays& inputs) const {
    const int64_t heads = attributes_.heads, axis = attributes_.axis;
    const Dims& qkv = inputs[0].dims;
    const int64_t size = qkv.back() / 3 / heads;
    AttentionProblem problem = {};
    problem.type = dtype_of(attributes_.type);
    problem.shape = axis ? grid_shape(qkv[0], qkv[1], qkv[2], heads, size, static_cast<int>(axis))
                         : sequence_shape(qkv[0], qkv[1], heads, size);
    problem.scale = attributes_.scale.value_or(default_attention_scale(size));
    problem.qkv = inputs[0].data;
    if (attributes_.has_bias) set_bias(inputs[1], &problem.bias);
    return problem;
  }

  AttentionGradientProblem gradient_problem(const Arrays& inputs, const Array& gradient) const {
    const Array* own = &inputs[first_own()];
    return {problem(inputs), own[0].data, own[1].data, own[2].data, gradient.data};
  }

  AttentionAttributes attributes_;

 private:
  // Sets the strides of a bias that broadcasts to [B, (lines,) H, n, n].
  void set_bias(const Array& array, AttentionBias* bias) const {
    int64_t* by_axis[] = {&bias->key_stride, &bias->query_stride, &bias->head_stride,
                          attributes_.axis ? &bias->line_stride : &bias->batch_stride,
                          &bias->batch_stride};
    bias->data = array.data;
    int64_t stride = 1;
    for (size_t i = 0; i < array.dims.size(); ++i) {
      const int64_t size = array.dims[array.dims.size() - 1 - i];
      *by_axis[i] = size == 1 ? 0 : stride;
      stride *= size;
    }
  }
};

class Attention : public AttentionBody {
 public:
  static constexpr char kName[] = "VitAttention";

  absl::Status check(const Arrays& inputs, Arrays* outputs) const {
    TF_RETURN_IF_ERROR(check_inputs(inputs, 0));
    *outputs = {out(inputs[0]), statistics(inputs[0])};
    return absl::OkStatus();
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

  absl::Status check(const Arrays& inputs, Arrays* outputs) const {
    TF_RETURN_IF_ERROR(check_gradient(inputs));
    *outputs = {{attributes_.type, inputs[0].dims, nullptr, "d_qkv"}};
    return absl::OkStatus();
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

  template <typename Context>
  absl::Status init(Context* c) {
    TF_RETURN_IF_ERROR(AttentionBody::init(c));
    return attributes_.has_bias ? absl::OkStatus() : needs_bias();
  }

  absl::Status check(const Arrays& inputs, Arrays* outputs) const {
    TF_RETURN_IF_ERROR(check_gradient(inputs));
    *outputs = {{accumulator(), inputs[1].dims, nullptr, "d_bias"}};
    return absl::OkStatus();
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

  template <typename Context>
  absl::Status init(Context* c) {
    TF_RETURN_IF_ERROR(AttentionBody::init(c));
    TF_RETURN_IF_ERROR(c->GetAttr("taps", &taps_));
    TF_RETURN_IF_ERROR(c->GetAttr("grid_rows", &rows_));
    TF_RETURN_IF_ERROR(c->GetAttr("grid_columns", &columns_));
    return check_taps_axis(attributes_.axis);
  }

  absl::Status check(const Arrays& inputs, Arrays* outputs) const {
    TF_RETURN_IF_ERROR(check_inputs(inputs, 1));
    TF_RETURN_IF_ERROR(check_statistics(inputs[first_own()], inputs[0], "[B, H, 2, N]"));
    const int64_t batch = inputs[0].dims[0], tokens = inputs[0].dims[1];
    if (contains(taps_, "distance")) TF_RETURN_IF_ERROR(check_grid(rows_, columns_, tokens));
    for (const char* name : {"class_row", "distance", "entropy"}) {
      Dims dims = {0};
      if (contains(taps_, name)) {
        dims = {batch, attributes_.heads};
        if (outputs->empty()) dims.push_back(tokens);
      }
      outputs->push_back({accumulator(), dims, nullptr, name});
    }
    return absl::OkStatus();
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
  std::vector<std::string> taps_;
  int64_t rows_, columns_;
};

}  // namespace vit

#endif  // CUSTOM_OPS_TF_ATTENTION_BODIES_H_
