// Calls of the ops of custom_ops/cc from both modules, in whichever memory the arrays are.
#ifndef CUSTOM_OPS_PYTHON_CHECKED_CALL_H_
#define CUSTOM_OPS_PYTHON_CHECKED_CALL_H_

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <initializer_list>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "custom_ops/cc/op_lists.h"

namespace vit {

namespace py = pybind11;

inline std::string repr(const py::object& object) { return py::repr(object).cast<std::string>(); }

// Wrong arguments are a ValueError, too little memory a MemoryError, and errors of a device a
// RuntimeError.
inline void raise_if_error(const Status& status) {
  if (status.ok()) return;
  if (status.code == Code::kInvalidArgument) throw py::value_error(status.message);
  if (status.code != Code::kResourceExhausted) throw std::runtime_error(status.message);
  PyErr_SetString(PyExc_MemoryError, status.message.c_str());
  throw py::error_already_set();
}

// The attributes of an op by their names.
class Options {
 public:
  using Value = std::variant<int64_t, ElementType, std::vector<ElementType>, std::optional<double>,
                             std::vector<std::string>>;

  Options(std::initializer_list<std::pair<const std::string, Value>> values) : values_(values) {}

  void set(const char* name, Value value) { values_[name] = std::move(value); }

  template <class T>
  Status get(const char* name, T* value) const {
    *value = std::get<T>(values_.at(name));
    return {};
  }

 private:
  std::map<std::string, Value> values_;
};

// Returns 0 for None.
inline int64_t axis_of(const py::object& axis) {
  if (axis.is_none()) return 0;
  int64_t along = 0;
  try {
    along = axis.cast<int64_t>();
  } catch (const py::cast_error&) {
  }
  if (along == 1 || along == 2) return along;
  throw py::value_error("axis must be None, 1 or 2. Received: " + repr(axis) + ".");
}

inline std::optional<double> scale_of(const py::object& scale) {
  if (scale.is_none()) return std::nullopt;
  try {
    return scale.cast<double>();
  } catch (const py::cast_error&) {
    throw py::value_error("scale must be None or a number. Received: " + repr(scale) + ".");
  }
}

inline Options attention_options(const Array& qkv, int64_t num_heads, bool has_bias,
                                 const py::object& axis, const py::object& scale) {
  const ElementType sums = accumulator(qkv.type);
  return {{"num_heads", num_heads},
          {"axis", axis_of(axis)},
          {"T", qkv.type},
          {"Tacc", sums},
          {"Tbias", std::vector<ElementType>(has_bias, sums)},
          {"scale", scale_of(scale)}};
}

// Sets which taps are wanted, and the grid if the distance is.
inline void set_taps(Options& options, bool class_row, bool distance, bool entropy,
                     const py::object& grid) {
  std::vector<std::string> taps;
  if (class_row) taps.push_back("class_row");
  if (distance) taps.push_back("distance");
  if (entropy) taps.push_back("entropy");
  std::pair<int64_t, int64_t> sides{0, 0};
  try {
    if (distance) sides = grid.cast<std::pair<int64_t, int64_t>>();
  } catch (const py::cast_error&) {
    throw py::value_error("grid must be (rows, columns). Received: " + repr(grid) + ".");
  }
  options.set("taps", taps);
  options.set("grid_rows", sides.first);
  options.set("grid_columns", sides.second);
}

// An op with attributes and inputs that it accepts, and its outputs, which have no memory yet.
template <class Body>
struct CheckedCall {
  Body body;
  Arrays inputs, outputs;

  CheckedCall(const Options& options, Arrays arrays) : inputs(std::move(arrays)) {
    raise_if_error(body.init(&options));
    raise_if_error(check_call(body, inputs, &outputs));
  }
};

// Of all ops of the patch embedding.
inline Options patch_options(const Array& images, const Array& kernel, double scale, double offset,
                             bool has_prefix, bool has_position) {
  return {{"I", images.type},
          {"T", kernel.type},
          {"scale", std::optional<double>(scale)},
          {"offset", std::optional<double>(offset)},
          {"num_prefix", int64_t{has_prefix}},
          {"num_position", int64_t{has_position}}};
}

// Tokens and tables, without memory, of images and a kernel, which are checked, and a number of
// prefix tokens.
struct PatchTables {
  Array tokens, bias, prefix, position;

  PatchTables(const Array& images, const Array& kernel, int64_t num_prefix) {
    if (num_prefix < 0) {
      throw py::value_error(
          "prefix must be a number of tokens. Received: " + std::to_string(num_prefix) + ".");
    }
    // With a wrong rank the op refuses the kernel, whatever the tables are.
    const int64_t features = kernel.dims.size() == 4 ? kernel.dims[3] : 0;
    bias = {kernel.type, {features}};
    prefix = {kernel.type, {num_prefix, features}};
    const Options options = patch_options(images, kernel, 1, 0, true, false);
    tokens = CheckedCall<PatchEmbed>(options, {images, kernel, bias, prefix}).outputs[0];
    raise_if_error(check_holds_patch(images.dims, kernel.dims[0]));
    position = {kernel.type, {tokens.dims[1], features}};
  }
};

// The copy between images and patches, whose dimensions it gets, without the memory of both.
inline PatchCopyProblem patch_copy(const Array& images, int64_t patch_size, int64_t element_size,
                                   Dims* patches) {
  Dims dims;
  raise_if_error(get_dims("images", images, "[B, H, W, C]", &dims));
  raise_if_error(patches_of(dims, patch_size, patches));
  raise_if_error(check_holds_patch(dims, patch_size));
  const PatchShape shape = {dims[0], dims[1], dims[2], dims[3], patch_size, 0, 0};
  return {shape, element_size, nullptr, nullptr};
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_CHECKED_CALL_H_
