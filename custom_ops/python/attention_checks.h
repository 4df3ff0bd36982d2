// Checks the arguments of attention, in whichever memory they are, and describes the problem.
#ifndef CUSTOM_OPS_PYTHON_ATTENTION_CHECKS_H_
#define CUSTOM_OPS_PYTHON_ATTENTION_CHECKS_H_

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "custom_ops/cc/attention.h"
#include "custom_ops/python/tensor.h"

namespace vit {

// Returns 0 for None.
inline int axis_of(const py::object& axis) {
  if (axis.is_none()) return 0;
  int along = 0;
  try {
    along = axis.cast<int>();
  } catch (const py::cast_error&) {
  }
  if (along != 1 && along != 2) {
    throw py::value_error("axis must be None, 1 or 2. Received: " + repr(axis) + ".");
  }
  return along;
}

inline std::pair<int64_t, int64_t> grid_of(const py::object& grid, int64_t tokens) {
  std::pair<int64_t, int64_t> sides{0, 0};
  try {
    sides = grid.cast<std::pair<int64_t, int64_t>>();
  } catch (const py::cast_error&) {
  }
  if (sides.first < 1 || sides.second < 1 || sides.first > tokens / sides.second) {
    throw py::value_error("grid must be (rows, columns) of at most " + std::to_string(tokens) +
                          " patches. Received: " + repr(grid) + ".");
  }
  return sides;
}

inline double scale_of(const py::object& scale, DType type, int64_t head_size) {
  if (scale.is_none()) return default_attention_scale(head_size);
  double value = 0;
  try {
    value = scale.cast<double>();
  } catch (const py::cast_error&) {
  }
  if (!is_attention_scale(type, value)) {
    throw py::value_error(
        "scale must be None or a number, finite and above 0 in the precision of "
        "the softmax. Received: " +
        repr(scale) + ".");
  }
  return value;
}

// A packed projection, in the form that the kernels take, and the shapes that belong to it.
struct Projection {
  Tensor qkv;
  AttentionProblem problem{};
  std::vector<int64_t> out_shape, statistics_shape, logits_shape;

  Projection(Tensor packed, int64_t num_heads, const py::object& axis, const py::object& scale)
      : qkv(std::move(packed)) {
    problem.type = type_of(qkv);
    const int along = axis_of(axis);
    const int64_t rank = along ? 4 : 3;
    if (qkv.rank() != rank) {
      throw py::value_error(std::string("qkv must be ") +
                            (along ? "[B, R, C, 3 D]" : "[B, N, 3 D]") +
                            ". Received shape: " + shape_text(qkv.shape) + ".");
    }
    const int64_t width = qkv.shape.back(), batch = qkv.shape[0];
    // The first comparison keeps the product from overflowing.
    if (num_heads < 1 || num_heads > width || width % (3 * num_heads)) {
      throw py::value_error("The last dimension of qkv, " + std::to_string(width) +
                            ", must be a positive multiple of 3 * num_heads. Received: num_heads=" +
                            std::to_string(num_heads) + ".");
    }
    const int64_t size = width / 3 / num_heads;
    AttentionShape& shape = problem.shape;
    shape = along ? grid_shape(batch, qkv.shape[1], qkv.shape[2], num_heads, size, along)
                  : sequence_shape(batch, qkv.shape[1], num_heads, size);
    problem.scale = scale_of(scale, problem.type, size);
    problem.qkv = qkv.data;
    out_shape = qkv.shape;
    out_shape.back() = width / 3;
    statistics_shape = {batch, num_heads, 2, shape.tokens};
    logits_shape = {batch, num_heads, shape.tokens, shape.tokens};
    if (along) {
      statistics_shape.insert(statistics_shape.begin() + 1, shape.lines);
      logits_shape.insert(logits_shape.begin() + 1, shape.lines);
    }
  }

  // Adds a bias that broadcasts to [batch, (lines,) heads, tokens, tokens].
  void set_bias(const Tensor& bias) {
    check_accumulator(bias, problem.type);
    const int64_t missing = static_cast<int64_t>(logits_shape.size()) - bias.rank();
    std::vector<int64_t> strides(logits_shape.size(), 0);
    bool fits = missing >= 0;
    int64_t stride = 1;
    for (int64_t i = bias.rank() - 1; fits && i >= 0; --i) {
      const size_t at = static_cast<size_t>(i + missing);
      const int64_t size = bias.shape[static_cast<size_t>(i)];
      fits = size == 1 || size == logits_shape[at];
      if (size != 1) strides[at] = stride;
      stride *= size;
    }
    if (!fits) {
      throw py::value_error("bias must broadcast to " + shape_text(logits_shape) +
                            ". Received shape: " + shape_text(bias.shape) + ".");
    }
    const size_t heads = logits_shape.size() - 3;
    problem.bias = {bias.data,      strides[0],         heads == 2 ? strides[1] : 0,
                    strides[heads], strides[heads + 1], strides[heads + 2]};
  }

  void check_out(const Tensor& tensor) const {
    check_type(tensor, qkv);
    check_shape(tensor, out_shape);
  }
  void check_statistics(const Tensor& tensor) const {
    if (tensor.dtype != accumulator(problem.type)) {
      throw py::value_error("statistics must be the result of the forward pass of this qkv, " +
                            std::string(accumulator(problem.type)) +
                            ". Received dtype: " + tensor.dtype + ".");
    }
    check_shape(tensor, statistics_shape);
  }
};

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_ATTENTION_CHECKS_H_
