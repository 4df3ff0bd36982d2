// What the functions of both modules check of their arguments, in whichever memory these are. Wrong
// arguments raise a ValueError that names the expected value.
#ifndef CUSTOM_OPS_PYTHON_TENSOR_H_
#define CUSTOM_OPS_PYTHON_TENSOR_H_

#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "custom_ops/cc/dtype.h"

namespace vit {

namespace py = pybind11;

// An argument: dense, in row-major order and aligned to its element type.
struct Tensor {
  const char* name;  // of the argument
  std::string dtype;  // its name in NumPy and ml_dtypes
  std::vector<int64_t> shape;
  const void* data;

  int64_t rank() const { return static_cast<int64_t>(shape.size()); }
};

inline std::string repr(const py::object& object) { return py::repr(object).cast<std::string>(); }

inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}

inline DType type_of(const Tensor& tensor, bool with_uint8 = false) {
  if (tensor.dtype == "float32") return DType::kFloat32;
  if (tensor.dtype == "float64") return DType::kFloat64;
  if (tensor.dtype == "float16") return DType::kFloat16;
  if (tensor.dtype == "bfloat16") return DType::kBfloat16;
  if (tensor.dtype == "uint8" && with_uint8) return DType::kUint8;
  throw py::value_error(std::string(tensor.name) + " has dtype " + tensor.dtype + ". Cast it to " +
                        (with_uint8 ? "uint8, " : "") + "float16, bfloat16, float32 or float64.");
}

// The dtype of statistics, bias and taps.
inline const char* accumulator(DType type) {
  return type == DType::kFloat64 ? "float64" : "float32";
}

inline void check_type(const Tensor& tensor, const Tensor& like) {
  if (tensor.dtype == like.dtype) return;
  throw py::value_error(std::string(tensor.name) + " has dtype " + tensor.dtype + ", but " +
                        like.name + " has " + like.dtype + ". Cast it.");
}

inline void check_accumulator(const Tensor& tensor, DType type) {
  if (tensor.dtype == accumulator(type)) return;
  throw py::value_error(std::string(tensor.name) + " has dtype " + tensor.dtype +
                        ", but must have " + accumulator(type) + ".");
}

inline void check_shape(const Tensor& tensor, const std::vector<int64_t>& expected) {
  if (tensor.shape == expected) return;
  throw py::value_error(std::string(tensor.name) + " must have shape " + shape_text(expected) +
                        ". Received: " + shape_text(tensor.shape) + ".");
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_TENSOR_H_
