// The attention functions of the module; their docstrings are in kernels_module.cc.
#ifndef CUSTOM_OPS_PYTHON_ATTENTION_H_
#define CUSTOM_OPS_PYTHON_ATTENTION_H_

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "custom_ops/cpu/attention/attention.h"
#include "custom_ops/python/arrays.h"
#include "custom_ops/python/threads.h"

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

// A packed projection, in the form that the kernels take; a bias is added by Bias.
struct Projection {
  py::array qkv;
  AttentionProblem problem{};
  std::vector<int64_t> out_shape, statistics_shape, logits_shape;

  Projection(const py::object& object, int64_t num_heads, const py::object& axis,
             const py::object& scale)
      : qkv(dense("qkv", object)) {
    problem.type = type_of("qkv", qkv);
    check_isa();
    const int along = axis_of(axis);
    const py::ssize_t rank = along ? 4 : 3;
    if (qkv.ndim() != rank) {
      throw py::value_error(std::string("qkv must be ") +
                            (along ? "[B, R, C, 3 D]" : "[B, N, 3 D]") +
                            ". Received shape: " + shape_text(qkv) + ".");
    }
    const int64_t width = qkv.shape(rank - 1);
    if (num_heads < 1 || width == 0 || width % (3 * num_heads)) {
      throw py::value_error("The last dimension of qkv, " + std::to_string(width) +
                            ", must be a positive multiple of 3 * num_heads. Received: num_heads=" +
                            std::to_string(num_heads) + ".");
    }
    const int64_t size = width / 3 / num_heads, batch = qkv.shape(0);
    AttentionShape& shape = problem.shape;
    shape = along ? grid_shape(batch, qkv.shape(1), qkv.shape(2), num_heads, size, along)
                  : sequence_shape(batch, qkv.shape(1), num_heads, size);
    problem.scale = scale_of(scale, problem.type, size);
    problem.qkv = qkv.data();
    out_shape.assign(qkv.shape(), qkv.shape() + rank - 1);
    out_shape.push_back(width / 3);
    statistics_shape = {batch, num_heads, 2, shape.tokens};
    logits_shape = {batch, num_heads, shape.tokens, shape.tokens};
    if (along) {
      statistics_shape.insert(statistics_shape.begin() + 1, shape.lines);
      logits_shape.insert(logits_shape.begin() + 1, shape.lines);
    }
  }

  void check_out(const char* name, const py::array& array) const {
    check_type(name, array, "qkv", qkv);
    check_shape(name, array, out_shape);
  }
  void check_statistics(const py::array& array) const {
    if (!array.dtype().equal(accumulator(problem.type))) {
      throw py::value_error("statistics must be the second result of attention() for this qkv.");
    }
    check_shape("statistics", array, statistics_shape);
  }
};

// A bias that broadcasts to [batch, (lines,) heads, tokens, tokens]; sets the bias of the problem.
struct Bias {
  py::object array = py::none();

  Bias(const py::object& object, Projection& p) {
    if (object.is_none()) return;
    const py::array given = dense("bias", object);
    type_of("bias", given);
    const py::array cast = given.attr("astype")(accumulator(p.problem.type));
    const std::vector<int64_t>& full = p.logits_shape;
    const int64_t missing = static_cast<int64_t>(full.size()) - cast.ndim();
    std::vector<int64_t> strides(full.size(), 0);
    bool fits = missing >= 0;
    for (py::ssize_t i = 0; fits && i < cast.ndim(); ++i) {
      const size_t at = static_cast<size_t>(i + missing);
      fits = cast.shape(i) == 1 || cast.shape(i) == full[at];
      if (cast.shape(i) != 1) strides[at] = cast.strides(i) / cast.itemsize();
    }
    if (!fits) {
      throw py::value_error("bias must broadcast to " + shape_text(full) +
                            ". Received shape: " + shape_text(given) + ".");
    }
    const size_t heads = full.size() - 3;
    p.problem.bias = {cast.data(),    strides[0],         heads == 2 ? strides[1] : 0,
                      strides[heads], strides[heads + 1], strides[heads + 2]};
    array = cast;
  }
};

inline py::tuple attention(const py::object& qkv, int64_t num_heads, const py::object& bias,
                           const py::object& axis, const py::object& scale, int threads) {
  Projection p(qkv, num_heads, axis, scale);
  const Bias b(bias, p);
  py::array out = empty(p.out_shape, p.qkv.dtype());
  py::array statistics = empty(p.statistics_shape, accumulator(p.problem.type));
  const AttentionForwardProblem problem = {p.problem, out.mutable_data(),
                                           statistics.mutable_data()};
  run_on_threads(threads, attention_forward, problem);
  return py::make_tuple(out, statistics);
}

// The inputs of both gradients.
struct GradientInputs {
  Projection projection;
  Bias bias;
  py::array out, statistics, d_out;

  GradientInputs(const py::object& qkv, int64_t num_heads, const py::object& out,
                 const py::object& statistics, const py::object& d_out, const py::object& bias,
                 const py::object& axis, const py::object& scale)
      : projection(qkv, num_heads, axis, scale),
        bias(bias, projection),
        out(dense("out", out)),
        statistics(dense("statistics", statistics)),
        d_out(dense("d_out", d_out)) {
    projection.check_out("out", this->out);
    projection.check_out("d_out", this->d_out);
    projection.check_statistics(this->statistics);
  }

  AttentionGradientProblem problem(py::array& gradient) const {
    return {projection.problem, out.data(), statistics.data(), d_out.data(),
            gradient.mutable_data()};
  }
};

inline py::array attention_gradient(const py::object& qkv, int64_t num_heads, const py::object& out,
                                    const py::object& statistics, const py::object& d_out,
                                    const py::object& bias, const py::object& axis,
                                    const py::object& scale, int threads) {
  const GradientInputs inputs(qkv, num_heads, out, statistics, d_out, bias, axis, scale);
  const py::array& like = inputs.projection.qkv;
  py::array d_qkv = empty(shape_of(like), like.dtype());
  run_on_threads(threads, attention_backward, inputs.problem(d_qkv));
  return d_qkv;
}

inline py::array bias_gradient(const py::object& qkv, int64_t num_heads, const py::object& out,
                               const py::object& statistics, const py::object& d_out,
                               const py::object& bias, const py::object& axis,
                               const py::object& scale, int threads) {
  if (bias.is_none()) throw py::value_error("bias must be an array. Received: None.");
  const GradientInputs inputs(qkv, num_heads, out, statistics, d_out, bias, axis, scale);
  const py::array like = inputs.bias.array;
  py::array d_bias = empty(shape_of(like), like.dtype());
  run_on_threads(threads, attention_bias_gradient, inputs.problem(d_bias));
  return d_bias;
}

inline py::dict taps(const py::object& qkv, int64_t num_heads, const py::object& statistics,
                     const py::object& bias, const py::object& grid, const py::object& scale,
                     int threads) {
  Projection p(qkv, num_heads, py::none(), scale);
  const Bias b(bias, p);
  const py::array kept = dense("statistics", statistics);
  p.check_statistics(kept);
  const AttentionShape& shape = p.problem.shape;
  const py::dtype type = accumulator(p.problem.type);
  py::array class_row = empty({shape.batch, shape.heads, shape.tokens}, type);
  py::array entropy = empty({shape.batch, shape.heads}, type);
  py::array distance = empty({shape.batch, shape.heads}, type);
  AttentionTapsProblem problem = {p.problem, kept.data(),           0, 0, class_row.mutable_data(),
                                  nullptr,   entropy.mutable_data()};
  if (!grid.is_none()) {
    std::tie(problem.rows, problem.columns) = grid_of(grid, shape.tokens);
    problem.distance = distance.mutable_data();
  }
  run_on_threads(threads, attention_taps, problem);
  py::dict found;
  found["class_row"] = class_row;
  found["entropy"] = entropy;
  if (problem.distance) found["distance"] = distance;
  return found;
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_ATTENTION_H_
