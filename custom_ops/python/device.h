// What the caller of the GPU's functions hands over: memory of the GPU, a stream, and an allocator.
#ifndef CUSTOM_OPS_PYTHON_DEVICE_H_
#define CUSTOM_OPS_PYTHON_DEVICE_H_

#include <pybind11/pybind11.h>
#include <stdint.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/cc/attention.h"
#include "custom_ops/cc/patch_embed.h"
#include "custom_ops/cuda/execution.h"
#include "custom_ops/python/tensor.h"

namespace vit {

// The size of an element in bytes. Raises a ValueError for a dtype that no function takes.
inline int64_t element_size(const std::string& dtype) {
  static constexpr struct {
    const char* name;
    int64_t size;
  } kTypes[] = {{"bool", 1},    {"uint8", 1},     {"int8", 1},       {"uint16", 2},
                {"int16", 2},   {"float16", 2},   {"bfloat16", 2},   {"uint32", 4},
                {"int32", 4},   {"float32", 4},   {"uint64", 8},     {"int64", 8},
                {"float64", 8}, {"complex64", 8}, {"complex128", 16}};
  const auto* found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&dtype](const auto& type) { return dtype == type.name; });
  if (found == std::end(kTypes)) {
    throw py::value_error("dtype " + dtype + " is unknown. Use a name of NumPy, or bfloat16.");
  }
  return found->size;
}

// Memory of a GPU: dense, in row-major order. The caller keeps it until the work that
// reads or writes it is done.
class DeviceArray {
 public:
  DeviceArray(uintptr_t address, std::vector<int64_t> shape, std::string dtype)
      : address_(address),
        shape_(std::move(shape)),
        dtype_(std::move(dtype)),
        element_size_(vit::element_size(dtype_)) {
    // Dimensions of 0 count as 1: then no product of some of them overflows either.
    int64_t bytes = element_size_;
    bool is_empty = false;
    for (const int64_t n : shape_) {
      is_empty = is_empty || n == 0;
      if (n < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(n, 1), &bytes)) {
        throw py::value_error(
            "shape must have dimensions of at least 0, and less than 2^63 "
            "bytes. Received: " +
            shape_text(shape_) + ".");
      }
    }
    if (!is_empty && address_ == 0) {
      throw py::value_error("address must not be 0 for an array of shape " + shape_text(shape_) +
                            ".");
    }
    if (address_ % static_cast<uintptr_t>(std::min<int64_t>(element_size_, 8))) {
      throw py::value_error("address " + std::to_string(address_) +
                            " is not aligned to the elements, " + dtype_ + ".");
    }
  }

  uintptr_t address() const { return address_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  const std::string& dtype() const { return dtype_; }
  int64_t element_size() const { return element_size_; }

  void* data() const { return reinterpret_cast<void*>(address_); }
  // What is checked of it as the argument of this name.
  Tensor as(const char* name) const { return {name, dtype_, shape_, data()}; }

 private:
  uintptr_t address_;
  std::vector<int64_t> shape_;
  std::string dtype_;
  int64_t element_size_;
};

// An array that kernels for GPUs compute with, as the argument of this name. Raises a ValueError
// for other dtypes.
inline Tensor computable(const char* name, const DeviceArray& array, bool with_uint8 = false) {
  const std::string& dtype = array.dtype();
  if (dtype == "float16" || dtype == "bfloat16" || dtype == "float32" ||
      (dtype == "uint8" && with_uint8)) {
    return array.as(name);
  }
  throw py::value_error(std::string(name) + " has dtype " + dtype +
                        ", which the kernels for GPUs do not take. Cast it to " +
                        (with_uint8 ? "uint8, " : "") + "float16, bfloat16 or float32.");
}

// An input of a problem.
inline const void* input_of(const AttentionProblem& problem) { return problem.qkv; }
inline const void* input_of(const PatchEmbedProblem& problem) { return problem.kernel; }
inline const void* input_of(const PatchCopyProblem& problem) { return problem.from; }

// Where work runs: on the GPU that holds the arrays, on a stream of it, with scratch memory from a
// Python function, which gets a number of bytes and returns an address, aligned to 256 bytes, of
// memory that stays valid for the work on the stream.
class DeviceExecution {
 public:
  DeviceExecution(uintptr_t stream, py::function allocate)
      : stream_(stream), allocate_(std::move(allocate)) {}

  // Starts the work of a launcher. Raises what the allocator raises, and a RuntimeError for an
  // error of CUDA. `what` names the work.
  template <class Problem>
  void run(const char* what, CudaResult (*launch)(const Problem&, const CudaExecution&),
           const Problem& problem) const {
    Call call{allocate_, nullptr};
    const CudaExecution execution = {reinterpret_cast<void*>(stream_), allocate, &call};
    CudaResult result;
    {
      py::gil_scoped_release release;
      const CurrentDevice device(input_of(problem));
      result = device.result();
      if (result == CudaResult::kOk) result = launch(problem, execution);
    }
    if (call.error) std::rethrow_exception(call.error);
    if (result == CudaResult::kOk) return;
    throw std::runtime_error(std::string(what) + " failed: CUDA error " +
                             std::to_string(static_cast<int>(result)) + ", " + error_text(result) +
                             ".");
  }

 private:
  struct Call {
    const py::function& allocate;
    std::exception_ptr error;
  };

  // Launchers do not throw: an exception waits in the call until they have returned.
  static void* allocate(void* allocator, int64_t bytes) {
    Call& call = *static_cast<Call*>(allocator);
    const py::gil_scoped_acquire acquire;
    try {
      const auto address = call.allocate(bytes).cast<uintptr_t>();
      if (bytes > 0 && (address == 0 || address % 256)) {
        throw py::value_error(
            "The allocator must return an address aligned to 256 bytes. "
            "Received: " +
            std::to_string(address) + ".");
      }
      return reinterpret_cast<void*>(address);
    } catch (...) {
      call.error = std::current_exception();
      return nullptr;
    }
  }

  uintptr_t stream_;
  py::function allocate_;
};

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_DEVICE_H_
