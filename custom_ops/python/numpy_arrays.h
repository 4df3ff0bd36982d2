// NumPy arrays as inputs and outputs of the ops.
#ifndef CUSTOM_OPS_PYTHON_NUMPY_ARRAYS_H_
#define CUSTOM_OPS_PYTHON_NUMPY_ARRAYS_H_

#include <pybind11/numpy.h>

#include <algorithm>
#include <string>
#include <vector>

#include "custom_ops/python/checked_call.h"
#include "custom_ops/python/own_threads.h"

namespace vit {

inline Dims dims_of(const py::array& array) {
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

// An input of an op, and the NumPy array that holds its memory.
struct Argument {
  py::array numpy;
  Array array;

  // `others` are the dtypes that are allowed besides floats, for the error of an unknown one.
  Argument(const char* name, const py::object& object, const char* others = "")
      : numpy(dense(name, object)) {
    std::string type = py::str(numpy.dtype().attr("name"));
    if (!numpy.dtype().attr("isnative").cast<bool>()) type += " in non-native byte order";
    const auto found = type_named(type);
    if (!found) raise_if_error(unsupported(name, type, others));
    array = {*found, dims_of(numpy), const_cast<void*>(numpy.data())};
  }
};

inline Arrays arrays_of(const std::vector<Argument>& arguments) {
  Arrays arrays;
  for (const Argument& argument : arguments) arrays.push_back(argument.array);
  return arrays;
}

// Runs an op and returns its outputs.
template <class Body>
std::vector<py::array> run(CheckedCall<Body> call, const std::vector<Argument>& arguments,
                           const py::object& threads) {
  std::vector<py::array> results;
  for (Array& output : call.outputs) {
    // NumPy may not know the name of the dtype of an argument.
    const auto like = std::find_if(arguments.begin(), arguments.end(), [&](const Argument& one) {
      return one.array.type == output.type;
    });
    const py::dtype type =
        like == arguments.end() ? py::dtype(name_of(output.type)) : like->numpy.dtype();
    output.data = results.emplace_back(type, output.dims).mutable_data();
  }
  const Result result = run_on_threads(threads, [&](const Execution& execution) {
    return call.body.run(call.inputs, call.outputs, execution);
  });
  raise_if_error(status_of(result, Body::kName));
  return results;
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_NUMPY_ARRAYS_H_
