// NumPy arrays as the kernels take them: checked, dense, with a DType. Everything that a caller can
// do wrong ends in a ValueError that says what was expected.
#ifndef CUSTOM_OPS_PYTHON_ARRAYS_H_
#define CUSTOM_OPS_PYTHON_ARRAYS_H_

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/cc/kernel.h"
#include "custom_ops/cc/shares.h"

namespace vit {

namespace py = pybind11;

inline std::string shape_text(const py::array& array) {
  std::string text = "[";
  for (py::ssize_t i = 0; i < array.ndim(); ++i) {
    text += (i ? ", " : "") + std::to_string(array.shape(i));
  }
  return text + "]";
}

// A NumPy array of anything that is one or speaks DLPack; dense and in row-major order.
inline py::array dense(const char* name, py::handle object) {
  py::object array = py::reinterpret_borrow<py::object>(object);
  const py::module_ numpy = py::module_::import("numpy");
  if (!py::isinstance<py::array>(array)) {
    if (!py::hasattr(array, "__dlpack__")) {
      throw py::value_error(std::string(name) + " must be a NumPy array or speak DLPack. Received: " +
                            py::str(py::type::of(array)).cast<std::string>() + ".");
    }
    array = numpy.attr("from_dlpack")(array);
  }
  return numpy.attr("asarray")(array, py::arg("order") = "C");
}

inline DType type_of(const char* name, const py::array& array, bool with_uint8 = false) {
  std::string type = py::str(array.dtype().attr("name"));
  if (!array.dtype().attr("isnative").cast<bool>()) type += " in the byte order of other machines";
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
  const bool fits = array.ndim() == static_cast<py::ssize_t>(expected.size()) &&
                    std::equal(expected.begin(), expected.end(), array.shape());
  if (fits) return;
  std::string text;
  for (const int64_t n : expected) text += (text.empty() ? "" : ", ") + std::to_string(n);
  throw py::value_error(std::string(name) + " must have shape [" + text + "]. Received: " +
                        shape_text(array) + ".");
}

inline py::array empty(const std::vector<int64_t>& shape, const py::dtype& type) {
  return py::array(type, shape);
}

// float, or double for doubles: what statistics, bias and taps are in.
inline py::dtype accumulator(DType type) {
  return type == DType::kFloat64 ? py::dtype::of<double>() : py::dtype::of<float>();
}

// Threads for one call; parts of a job are handed out as threads become free.
class Threads {
 public:
  explicit Threads(int count)
      : count_(count > 0 ? count : std::max(1u, std::thread::hardware_concurrency())) {}

  ParallelFor parallel_for() { return {run, this}; }

 private:
  static void run(void* pool, int64_t total, int64_t cost, RangeBody body, void* argument) {
    // A thread takes about 20 microseconds to start: not worth it below this many cycles.
    constexpr int64_t kCyclesPerThread = 200000;
    const int64_t useful = static_cast<int64_t>(static_cast<double>(total) *
                                                static_cast<double>(cost) / kCyclesPerThread) + 1;
    const int64_t count = std::min<int64_t>({static_cast<Threads*>(pool)->count_, useful, total});
    if (count <= 1) {
      if (total > 0) body(argument, 0, total);
      return;
    }
    Shares shares(total, count, 1);
    const auto work = [&] {
      for (int64_t begin, end; shares.take(&begin, &end);) body(argument, begin, end);
    };
    std::vector<std::thread> threads;
    try {
      for (int64_t i = 1; i < count; ++i) threads.emplace_back(work);
    } catch (const std::exception&) {
      // No more threads to be had: those that started, and this one, do it all.
    }
    work();
    for (std::thread& thread : threads) thread.join();
  }

  int64_t count_;
};

// Kernels ignore a name that they do not know.
inline void check_isa() {
  if (const char* error = isa_error()) throw py::value_error(error);
}

inline void check(Result result) {
  if (result == Result::kOutOfMemory) throw std::bad_alloc();
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_ARRAYS_H_
