// The attention functions of the module; their docstrings are in kernels_module.cc.
#ifndef CUSTOM_OPS_PYTHON_ATTENTION_H_
#define CUSTOM_OPS_PYTHON_ATTENTION_H_

#include <tuple>

#include "custom_ops/cpu/attention/attention.h"
#include "custom_ops/python/arrays.h"
#include "custom_ops/python/attention_checks.h"
#include "custom_ops/python/threads.h"

namespace vit {

// A bias cast to the type of the statistics; sets the bias of the problem.
inline py::object set_bias(const py::object& object, Projection& projection) {
  if (object.is_none()) return object;
  const Argument given("bias", object);
  type_of(given.tensor);
  const py::array cast = given.array.attr("astype")(accumulator_dtype(projection.problem.type));
  projection.set_bias(tensor("bias", cast));
  return cast;
}

inline py::tuple attention(const py::object& qkv, int64_t num_heads, const py::object& bias,
                           const py::object& axis, const py::object& scale,
                           const py::object& threads) {
  const Argument packed("qkv", qkv);
  Projection p(packed.tensor, num_heads, axis, scale);
  const py::object cast = set_bias(bias, p);
  py::array out = empty(p.out_shape, packed.array.dtype());
  py::array statistics = empty(p.statistics_shape, accumulator_dtype(p.problem.type));
  const AttentionForwardProblem problem = {p.problem, out.mutable_data(),
                                           statistics.mutable_data()};
  run_on_threads(threads, attention_forward, problem);
  return py::make_tuple(out, statistics);
}

// The inputs of both gradients.
struct GradientInputs {
  Argument qkv, out, statistics, d_out;
  Projection projection;
  py::object bias;

  GradientInputs(const py::object& qkv, int64_t num_heads, const py::object& out,
                 const py::object& statistics, const py::object& d_out, const py::object& bias,
                 const py::object& axis, const py::object& scale)
      : qkv("qkv", qkv),
        out("out", out),
        statistics("statistics", statistics),
        d_out("d_out", d_out),
        projection(this->qkv.tensor, num_heads, axis, scale),
        bias(set_bias(bias, projection)) {
    projection.check_out(this->out.tensor);
    projection.check_out(this->d_out.tensor);
    projection.check_statistics(this->statistics.tensor);
  }

  AttentionGradientProblem problem(py::array& gradient) const {
    return {projection.problem, out.array.data(), statistics.array.data(), d_out.array.data(),
            gradient.mutable_data()};
  }
};

inline py::array attention_gradient(const py::object& qkv, int64_t num_heads, const py::object& out,
                                    const py::object& statistics, const py::object& d_out,
                                    const py::object& bias, const py::object& axis,
                                    const py::object& scale, const py::object& threads) {
  const GradientInputs inputs(qkv, num_heads, out, statistics, d_out, bias, axis, scale);
  const py::array& like = inputs.qkv.array;
  py::array d_qkv = empty(shape_of(like), like.dtype());
  run_on_threads(threads, attention_backward, inputs.problem(d_qkv));
  return d_qkv;
}

inline py::array bias_gradient(const py::object& qkv, int64_t num_heads, const py::object& out,
                               const py::object& statistics, const py::object& d_out,
                               const py::object& bias, const py::object& axis,
                               const py::object& scale, const py::object& threads) {
  if (bias.is_none()) throw py::value_error("bias must be an array. Received: None.");
  const GradientInputs inputs(qkv, num_heads, out, statistics, d_out, bias, axis, scale);
  const py::array like = inputs.bias;
  py::array d_bias = empty(shape_of(like), like.dtype());
  run_on_threads(threads, attention_bias_gradient, inputs.problem(d_bias));
  return d_bias;
}

inline py::dict taps(const py::object& qkv, int64_t num_heads, const py::object& statistics,
                     const py::object& bias, const py::object& grid, const py::object& scale,
                     const py::object& threads) {
  const Argument packed("qkv", qkv), kept("statistics", statistics);
  Projection p(packed.tensor, num_heads, py::none(), scale);
  const py::object cast = set_bias(bias, p);
  p.check_statistics(kept.tensor);
  const AttentionShape& shape = p.problem.shape;
  const py::dtype type = accumulator_dtype(p.problem.type);
  py::array class_row = empty({shape.batch, shape.heads, shape.tokens}, type);
  py::array entropy = empty({shape.batch, shape.heads}, type);
  py::array distance = empty({shape.batch, shape.heads}, type);
  AttentionTapsProblem problem = {p.problem, kept.array.data(),     0, 0, class_row.mutable_data(),
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
