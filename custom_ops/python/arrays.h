// Converts NumPy arrays for the kernels: checked and dense. Wrong arguments raise a ValueError that
// names the expected value.
#ifndef CUSTOM_OPS_PYTHON_ARRAYS_H_
#define CUSTOM_OPS_PYTHON_ARRAYS_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "custom_ops/python/tensor.h"

namespace vit {

inline std::vector<int64_t> shape_of(const py::array& array) {
  return {array.shape(), array.shape() + array.ndim()};
}

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

// What is checked of a dense array.
inline Tensor tensor(const char* name, const py::array& array) {
  std::string type = py::str(array.dtype().attr("name"));
  if (!array.dtype().attr("isnative").cast<bool>()) type += " in non-native byte order";
  return {name, type, shape_of(array), array.data()};
}

// An argument, and the array that holds its memory.
struct Argument {
  py::array array;
  Tensor tensor;

  Argument(const char* name, const py::object& object)
      : array(dense(name, object)), tensor(vit::tensor(name, array)) {}
};

inline py::array empty(const std::vector<int64_t>& shape, const py::dtype& type) {
  return py::array(type, shape);
}

// The type of statistics, bias and taps: float, or double for double arrays.
inline py::dtype accumulator_dtype(DType type) { return py::dtype(accumulator(type)); }

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_ARRAYS_H_
