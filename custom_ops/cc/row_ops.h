// What the ops of a training step check and do in every runtime that calls them: see
// attention_op.h. row_problems.h has their equations.
#ifndef CUSTOM_OPS_CC_ROW_OPS_H_
#define CUSTOM_OPS_CC_ROW_OPS_H_

#include <optional>

#include "custom_ops/cc/array.h"
#include "custom_ops/cc/row_problems.h"

namespace vit {

// Rows of any number of dimensions, of one type.
class RowBody {
 public:
  static constexpr int kConstantInput = -1;

  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(attributes->get("T", &type_));
    if (is_float(type_) && type_ != ElementType::kFloat64) return {};
    return invalid("x has dtype ", name_of(type_), ". Cast it to float16, bfloat16 or float32.");
  }

 protected:
  // Checks an array of rows. `width` is -1 if it is not known.
  Status get_rows(const char* name, const Array& array, int64_t* width) const {
    VIT_RETURN_IF_ERROR(check_type(name, array, type_));
    *width = -1;
    if (array.has_any_rank) return {};
    if (array.dims.empty()) return invalid(name, " must have at least one dimension.");
    *width = array.dims.back() < 0 ? -1 : array.dims.back();
    return {};
  }

  // Another array of the shape of x.
  Status check_like_x(const char* name, const Array& array, const Array& x) const {
    VIT_RETURN_IF_ERROR(check_type(name, array, type_, ", like x. Cast it."));
    return x.has_any_rank ? Status() : check_shape(name, array, "like x", x.dims);
  }

  // A vector with a number for each column; gets the width if it is not known.
  static Status check_columns(const char* name, const Array& array, ElementType type,
                              int64_t* width) {
    VIT_RETURN_IF_ERROR(check_type(name, array, type));
    VIT_RETURN_IF_ERROR(check_shape(name, array, "[D]", {*width}));
    if (*width < 0 && !array.has_any_rank) *width = array.dims[0];
    return {};
  }

  // An output of the shape of x.
  Array like(const Array& x, const char* name) const {
    Array array = {type_, x.dims, nullptr, name};
    array.has_any_rank = x.has_any_rank;
    return array;
  }

  // [..., 2].
  static Array statistics_of(const Array& x) {
    Array array = {ElementType::kFloat32, x.dims, nullptr, "statistics"};
    array.has_any_rank = x.has_any_rank;
    if (!x.has_any_rank) array.dims.back() = 2;
    return array;
  }

  static int64_t rows_of(const Array& x) { return x.elements() / x.dims.back(); }

  ElementType type_;
};

class BiasGeluBody : public RowBody {
 public:
  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(attributes->get("exact", &is_exact_));
    return RowBody::init(attributes);
  }

 protected:
  Status check_inputs(const Arrays& inputs, int64_t count, int64_t* width) const {
    VIT_RETURN_IF_ERROR(check_count(inputs, count));
    VIT_RETURN_IF_ERROR(get_rows("x", inputs[0], width));
    return check_columns("bias", inputs[1], type_, width);
  }

  BiasGeluProblem problem(const Arrays& inputs) const {
    const Array& x = inputs[0];
    return {dtype_of(type_), is_exact_, rows_of(x), x.dims.back(), x.data, inputs[1].data, nullptr};
  }

 private:
  bool is_exact_;
};

// The inputs are x and bias.
class BiasGelu : public BiasGeluBody {
 public:
  static constexpr char kName[] = "VitBiasGelu";

  Status check(const Arrays& inputs, Arrays* outputs) const {
    int64_t width;
    VIT_RETURN_IF_ERROR(check_inputs(inputs, 2, &width));
    *outputs = {like(inputs[0], "out")};
    return {};
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (outputs[0].elements() == 0) return {};
    BiasGeluProblem bias_gelu_problem = problem(inputs);
    bias_gelu_problem.out = outputs[0].data;
    return bias_gelu(bias_gelu_problem, execution);
  }
};

// The inputs are x, bias and d_out.
class BiasGeluGrad : public BiasGeluBody {
 public:
  static constexpr char kName[] = "VitBiasGeluGrad";

  Status check(const Arrays& inputs, Arrays* outputs) const {
    int64_t width;
    VIT_RETURN_IF_ERROR(check_inputs(inputs, 3, &width));
    VIT_RETURN_IF_ERROR(check_like_x("d_out", inputs[2], inputs[0]));
    *outputs = {like(inputs[0], "d_x"), {type_, {width}, nullptr, "d_bias"}};
    return {};
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (inputs[0].elements() == 0) return fill_with_zeros(outputs, execution);
    return bias_gelu_gradient({problem(inputs), inputs[2].data, outputs[0].data, outputs[1].data},
                              execution);
  }
};

// The inputs are x, scale, bias and none or one branch; the outputs normalized, statistics and,
// with a branch, the sum.
class ResidualNorm : public RowBody {
 public:
  static constexpr char kName[] = "VitResidualNorm";

  template <class Attributes>
  Status init(Attributes* attributes) {
    int64_t branches;
    VIT_RETURN_IF_ERROR(attributes->get("num_branch", &branches));
    VIT_RETURN_IF_ERROR(attributes->get("epsilon", &epsilon_));
    if (branches > 1) return invalid("num_branch must be 0 or 1. Received: ", branches, ".");
    if (!(epsilon_ >= 0)) return invalid("epsilon must be at least 0. Received: ", epsilon_, ".");
    has_branch_ = branches == 1;
    return RowBody::init(attributes);
  }

  Status check(const Arrays& inputs, Arrays* outputs) const {
    int64_t width;
    VIT_RETURN_IF_ERROR(check_count(inputs, 3 + has_branch_));
    VIT_RETURN_IF_ERROR(get_rows("x", inputs[0], &width));
    VIT_RETURN_IF_ERROR(check_columns("scale", inputs[1], ElementType::kFloat32, &width));
    VIT_RETURN_IF_ERROR(check_columns("bias", inputs[2], ElementType::kFloat32, &width));
    *outputs = {like(inputs[0], "normalized"), statistics_of(inputs[0])};
    if (!has_branch_) return {};
    outputs->push_back(like(inputs[0], "sum"));
    return check_like_x("branch", inputs[3], inputs[0]);
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    const Array& x = inputs[0];
    if (x.elements() == 0) return fill_with_zeros(outputs, execution);
    return residual_norm(
        {dtype_of(type_), rows_of(x), x.dims.back(), epsilon_, x.data,
         has_branch_ ? inputs[3].data : nullptr, static_cast<const float*>(inputs[1].data),
         static_cast<const float*>(inputs[2].data), has_branch_ ? outputs[2].data : nullptr,
         outputs[0].data, static_cast<float*>(outputs[1].data)},
        execution);
  }

 private:
  float epsilon_;
  bool has_branch_;
};

// The inputs are x, which is the sum, statistics, scale, d_normalized and none or one d_sum.
class ResidualNormGrad : public RowBody {
 public:
  static constexpr char kName[] = "VitResidualNormGrad";

  template <class Attributes>
  Status init(Attributes* attributes) {
    int64_t sums;
    VIT_RETURN_IF_ERROR(attributes->get("num_sum", &sums));
    if (sums > 1) return invalid("num_sum must be 0 or 1. Received: ", sums, ".");
    has_sum_ = sums == 1;
    return RowBody::init(attributes);
  }

  Status check(const Arrays& inputs, Arrays* outputs) const {
    int64_t width;
    VIT_RETURN_IF_ERROR(check_count(inputs, 4 + has_sum_));
    VIT_RETURN_IF_ERROR(get_rows("x", inputs[0], &width));
    VIT_RETURN_IF_ERROR(check_type("statistics", inputs[1], ElementType::kFloat32,
                                   ", as the forward pass of this x writes it."));
    if (!inputs[0].has_any_rank) {
      VIT_RETURN_IF_ERROR(
          check_shape("statistics", inputs[1], "[..., 2]", statistics_of(inputs[0]).dims));
    }
    VIT_RETURN_IF_ERROR(check_columns("scale", inputs[2], ElementType::kFloat32, &width));
    VIT_RETURN_IF_ERROR(check_like_x("d_normalized", inputs[3], inputs[0]));
    if (has_sum_) VIT_RETURN_IF_ERROR(check_like_x("d_sum", inputs[4], inputs[0]));
    *outputs = {like(inputs[0], "d_x"),
                {ElementType::kFloat32, {width}, nullptr, "d_scale"},
                {ElementType::kFloat32, {width}, nullptr, "d_bias"}};
    return {};
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    const Array& x = inputs[0];
    if (x.elements() == 0) return fill_with_zeros(outputs, execution);
    return residual_norm_gradient(
        {dtype_of(type_), rows_of(x), x.dims.back(), x.data,
         static_cast<const float*>(inputs[1].data), static_cast<const float*>(inputs[2].data),
         inputs[3].data, has_sum_ ? inputs[4].data : nullptr, outputs[0].data,
         static_cast<float*>(outputs[1].data), static_cast<float*>(outputs[2].data)},
        execution);
  }

 private:
  bool has_sum_;
};

// The inputs are weight, gradient, scalars, momentum and, of AdamW, variance; the outputs the new
// weight, momentum and variance.
class UpdateBody {
 public:
  static constexpr int kConstantInput = -1;

  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(attributes->get("M", &momentum_));
    if (momentum_ == ElementType::kFloat32 || momentum_ == ElementType::kBfloat16) return {};
    return invalid("The momentum has dtype ", name_of(momentum_),
                   ". Cast it to float32 or bfloat16.");
  }

  Status check(const Arrays& inputs, Arrays* outputs) const {
    VIT_RETURN_IF_ERROR(check_count(inputs, 4 + is_adamw_));
    const ElementType kFloat = ElementType::kFloat32;
    const char* const names[] = {"weight", "gradient", "scalars", "momentum", "variance"};
    for (size_t i = 0; i < inputs.size(); ++i) {
      VIT_RETURN_IF_ERROR(check_type(names[i], inputs[i], i == 3 ? momentum_ : kFloat));
      if (i == 2) {
        VIT_RETURN_IF_ERROR(check_shape(names[i], inputs[i], "[scalars]", {is_adamw_ ? 4 : 2}));
      } else if (!inputs[0].has_any_rank) {
        VIT_RETURN_IF_ERROR(check_shape(names[i], inputs[i], "like weight", inputs[0].dims));
      }
    }
    *outputs = {{kFloat, inputs[0].dims, nullptr, "new_weight"},
                {momentum_, inputs[0].dims, nullptr, "new_momentum"}};
    if (is_adamw_) outputs->push_back({kFloat, inputs[0].dims, nullptr, "new_variance"});
    for (Array& output : *outputs) output.has_any_rank = inputs[0].has_any_rank;
    return {};
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    const int64_t size = inputs[0].elements();
    if (size == 0) return {};
    const auto in = [&](size_t i) { return static_cast<const float*>(inputs[i].data); };
    UpdateProblem problem = {};
    problem.momentum_type = dtype_of(momentum_);
    problem.is_adamw = is_adamw_;
    problem.size = size;
    problem.weight = in(0);
    problem.gradient = in(1);
    problem.scalars = in(2);
    problem.momentum = inputs[3].data;
    problem.variance = is_adamw_ ? in(4) : nullptr;
    problem.beta_1 = static_cast<float>(beta_1_);
    problem.rest_1 = is_adamw_ ? static_cast<float>(1 - beta_1_) : 1;
    problem.beta_2 = static_cast<float>(beta_2_);
    problem.rest_2 = static_cast<float>(1 - beta_2_);
    problem.epsilon = static_cast<float>(epsilon_);
    problem.decay = static_cast<float>(decay_);
    problem.new_weight = static_cast<float*>(outputs[0].data);
    problem.new_momentum = outputs[1].data;
    problem.new_variance = is_adamw_ ? static_cast<float*>(outputs[2].data) : nullptr;
    return update(problem, execution);
  }

 protected:
  explicit UpdateBody(bool is_adamw) : is_adamw_(is_adamw) {}

  // A double, which attributes hold as a list of floats.
  template <class Attributes>
  static Status get_number(Attributes* attributes, const char* name, double* value) {
    std::optional<double> found;
    VIT_RETURN_IF_ERROR(attributes->get(name, &found));
    *value = found.value_or(0);
    return {};
  }

  double beta_1_ = 0, beta_2_ = 0, epsilon_ = 0, decay_ = 0;

 private:
  const bool is_adamw_;
  ElementType momentum_;
};

class SgdUpdate : public UpdateBody {
 public:
  static constexpr char kName[] = "VitSgdUpdate";
  SgdUpdate() : UpdateBody(/*is_adamw=*/false) {}

  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(get_number(attributes, "momentum_decay", &beta_1_));
    VIT_RETURN_IF_ERROR(get_number(attributes, "weight_decay", &decay_));
    return UpdateBody::init(attributes);
  }
};

class AdamwUpdate : public UpdateBody {
 public:
  static constexpr char kName[] = "VitAdamwUpdate";
  AdamwUpdate() : UpdateBody(/*is_adamw=*/true) {}

  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(get_number(attributes, "beta_1", &beta_1_));
    VIT_RETURN_IF_ERROR(get_number(attributes, "beta_2", &beta_2_));
    VIT_RETURN_IF_ERROR(get_number(attributes, "epsilon", &epsilon_));
    VIT_RETURN_IF_ERROR(get_number(attributes, "weight_decay", &decay_));
    return UpdateBody::init(attributes);
  }
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_ROW_OPS_H_
