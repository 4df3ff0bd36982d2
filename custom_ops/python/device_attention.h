// Attention of the module for GPUs; the docstrings are in cuda_module.cc.
#ifndef CUSTOM_OPS_PYTHON_DEVICE_ATTENTION_H_
#define CUSTOM_OPS_PYTHON_DEVICE_ATTENTION_H_

#include <tuple>

#include "custom_ops/cuda/attention.h"
#include "custom_ops/python/attention_checks.h"
#include "custom_ops/python/device.h"

namespace vit {

// A packed projection and what else decides its attention weights.
class DeviceAttention {
 public:
  DeviceAttention(const DeviceArray& qkv, int64_t num_heads, const DeviceArray* bias,
                  const py::object& axis, const py::object& scale)
      : projection_(computable("qkv", qkv), num_heads, axis, scale), has_axis_(!axis.is_none()) {
    if (!bias) return;
    projection_.set_bias(bias->as("bias"));
    has_bias_ = true;
    bias_shape_ = bias->shape();
  }

  void forward(const DeviceExecution& execution, const DeviceArray& out,
               const DeviceArray& statistics) const {
    projection_.check_out(out.as("out"));
    projection_.check_statistics(statistics.as("statistics"));
    const AttentionForwardProblem problem = {projection_.problem, out.data(), statistics.data()};
    execution.run("attention forward", attention_forward, problem);
  }

  void gradient(const DeviceExecution& execution, const DeviceArray& out,
                const DeviceArray& statistics, const DeviceArray& d_out,
                const DeviceArray& d_qkv) const {
    check_type(d_qkv.as("d_qkv"), projection_.qkv);
    check_shape(d_qkv.as("d_qkv"), projection_.qkv.shape);
    const auto problem = gradient_problem(out, statistics, d_out, d_qkv);
    execution.run("attention gradient", attention_backward, problem);
  }

  void bias_gradient(const DeviceExecution& execution, const DeviceArray& out,
                     const DeviceArray& statistics, const DeviceArray& d_out,
                     const DeviceArray& d_bias) const {
    if (!has_bias_) throw py::value_error("This attention has no bias.");
    check_accumulator(d_bias.as("d_bias"), projection_.problem.type);
    check_shape(d_bias.as("d_bias"), bias_shape_);
    const auto problem = gradient_problem(out, statistics, d_out, d_bias);
    if (!projection_.problem.bias.data) return;  // It has no elements.
    execution.run("attention bias gradient", attention_bias_gradient, problem);
  }

  void taps(const DeviceExecution& execution, const DeviceArray& statistics,
            const DeviceArray* class_row, const DeviceArray* distance, const DeviceArray* entropy,
            const py::object& grid) const {
    if (has_axis_) throw py::value_error("Taps need attention without an axis.");
    projection_.check_statistics(statistics.as("statistics"));
    const AttentionShape& shape = projection_.problem.shape;
    AttentionTapsProblem problem{};
    static_cast<AttentionProblem&>(problem) = projection_.problem;
    problem.statistics = statistics.data();
    problem.class_row = tap("class_row", class_row, {shape.batch, shape.heads, shape.tokens});
    problem.distance = tap("distance", distance, {shape.batch, shape.heads});
    problem.entropy = tap("entropy", entropy, {shape.batch, shape.heads});
    if (distance) std::tie(problem.rows, problem.columns) = grid_of(grid, shape.tokens);
    execution.run("attention taps", attention_taps, problem);
  }

 private:
  AttentionGradientProblem gradient_problem(const DeviceArray& out, const DeviceArray& statistics,
                                            const DeviceArray& d_out,
                                            const DeviceArray& gradient) const {
    projection_.check_out(out.as("out"));
    projection_.check_statistics(statistics.as("statistics"));
    projection_.check_out(d_out.as("d_out"));
    return {projection_.problem, out.data(), statistics.data(), d_out.data(), gradient.data()};
  }

  // The memory of a tap, or null for one that is not wanted.
  void* tap(const char* name, const DeviceArray* array, const std::vector<int64_t>& shape) const {
    if (!array) return nullptr;
    check_accumulator(array->as(name), projection_.problem.type);
    check_shape(array->as(name), shape);
    return array->data();
  }

  Projection projection_;
  bool has_axis_, has_bias_ = false;
  std::vector<int64_t> bias_shape_;
};

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_DEVICE_ATTENTION_H_
