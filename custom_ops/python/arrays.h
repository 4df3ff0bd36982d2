// Converts NumPy arrays for the kernels: checked, dense, with a DType. Wrong arguments raise a
// ValueError that names the expected value.
#ifndef CUSTOM_OPS_PYTHON_ARRAYS_H_
#define CUSTOM_OPS_PYTHON_ARRAYS_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "custom_ops/cc/dtype.h"
#include "custom_ops/cpu/isa.h"

namespace vit {

namespace py = pybind11;

inline std::string repr(const py::object& object) { return py::repr(object).cast<std::string>(); }

inline std::vector<int64_t> shape_of(const py::array& array) {
  return {array.shape(), array.shape() + array.ndim()};
}

inline std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t n : shape) text += (text.empty() ? "" : ", ") + std::to_string(n);
  return "[" + text + "]";
}
inline std::string shape_text(const py::array& array) { return shape_text(shape_of(array)); }

// Returns a NumPy array from an array or an object that supports DLPack: dense, in row-major order
// and aligned to its element type. It is a copy if the array is none of these.
inline py::array dense(const char* name, py::handle object) {
  py::object array = py::reinterpret_borrow<py::object>(object);
  const py::module_ numpy = py::module_::import("numpy");
  if (!py::isinstance<py::array>(array)) {
    if (!py::hasattr(array, "__dlpack__")) {
      throw py::value_error(std::string(name) +
                            " must be a NumPy array or support DLPack. Received: " +
                            py::str(py::type::of(array)).cast<std::string>() + ".");
    }
    array = numpy.attr("from_dlpack")(array);
  }
  return numpy.attr("require")(array, py::arg("requirements") = "CA");
}

inline DType type_of(const char* name, const py::array& array, bool with_uint8 = false) {
  std::string type = py::str(array.dtype().attr("name"));
  if (!array.dtype().attr("isnative").cast<bool>()) type += " in non-native byte order";
  if (type == "float32") return DType::kFloat32;
  if (type == "float64") return DType::kFloat64;
  if (type == "float16") return DType::kFloat16;
  if (type == "bfloat16") return DType::kBfloat16;
  if (type == "uint8" && with_uint8) return DType::kUint8;
  throw py::value_error(std::string(name) + " has dtype " + type + ". Cast it to " +
                        (with_uint8 ? "uint8, " : "") + "float16, bfloat16, float32 or float64.");
}

inline void check_type(const char* name, const py::array& array, const char* of,
                       const py::array& other) {
  if (!array.dtype().is(other.dtype()) && !array.dtype().equal(other.dtype())) {
    throw py::value_error(std::string(name) + " has dtype " +
                          py::str(array.dtype().attr("name")).cast<std::string>() + ", but " + of +
                          " has " + py::str(other.dtype().attr("name")).cast<std::string>() +
                          ". Cast it.");
  }
}

inline void check_shape(const char* name, const py::array& array,
                        const std::vector<int64_t>& expected) {
  if (shape_of(array) == expected) return;
  throw py::value_error(std::string(name) + " must have shape " + shape_text(expected) +
                        ". Received: " + shape_text(array) + ".");
}

inline py::array empty(const std::vector<int64_t>& shape, const py::dtype& type) {
  return py::array(type, shape);
}

// The type of statistics, bias and taps: float, or double for double arrays.
inline py::dtype accumulator(DType type) {
  return type == DType::kFloat64 ? py::dtype::of<double>() : py::dtype::of<float>();
}

// Raises a ValueError if VIT_ISA has a value that the kernels would ignore.
inline void check_isa() {
  if (const char* error = isa_error()) throw py::value_error(error);
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_ARRAYS_H_
