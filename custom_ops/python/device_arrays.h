// What the caller of the GPU's functions hands over: memory of the GPU, a stream, and an allocator.
#ifndef CUSTOM_OPS_PYTHON_DEVICE_ARRAYS_H_
#define CUSTOM_OPS_PYTHON_DEVICE_ARRAYS_H_

#include <algorithm>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/cuda/cuda_status.h"
#include "custom_ops/python/checked_call.h"

namespace vit {

// Memory of a GPU: dense, in row-major order. The caller keeps it until the work that
// reads or writes it is done.
class DeviceArray {
 public:
  DeviceArray(uintptr_t address, const Dims& shape, const std::string& dtype) {
    const auto type = type_named(dtype);
    if (!type) {
      throw py::value_error("dtype " + dtype + " is unknown. Use a name of NumPy, or bfloat16.");
    }
    // Dimensions of 0 count as 1: then no product of some of them overflows either.
    int64_t bytes = size_of(*type);
    bool is_empty = false;
    for (const int64_t n : shape) {
      is_empty = is_empty || n == 0;
      if (n < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(n, 1), &bytes)) {
        throw py::value_error(
            "shape must have dimensions of at least 0, and less than 2^63 "
            "bytes. Received: " +
            repr(py::cast(shape)) + ".");
      }
    }
    if (!is_empty && address == 0) {
      throw py::value_error("address must not be 0 for an array of shape " + text(shape) + ".");
    }
    if (address % static_cast<uintptr_t>(std::min<int64_t>(size_of(*type), 8))) {
      throw py::value_error("address " + std::to_string(address) +
                            " is not aligned to the elements, " + dtype + ".");
    }
    array_ = {*type, shape, reinterpret_cast<void*>(address)};
  }

  uintptr_t address() const { return reinterpret_cast<uintptr_t>(array_.data); }
  const Dims& shape() const { return array_.dims; }
  const char* dtype() const { return name_of(array_.type); }
  const Array& array() const { return array_; }

 private:
  Array array_;
};

// Where work runs: on the GPU that holds the arrays, on a stream of it, with scratch memory from a
// Python function, which gets a number of bytes and returns an address, aligned to 16 bytes, of
// memory that stays valid for the work on the stream.
class DeviceExecution {
 public:
  DeviceExecution(uintptr_t stream, py::function allocate)
      : stream_(stream), allocate_(std::move(allocate)) {}

  // Checks a call of an op with outputs of the caller, where null means not wanted, and
  // returns a function that starts it.
  template <class Body>
  std::function<void()> prepare(const Options& options, const Arrays& inputs,
                                const std::vector<const DeviceArray*>& outputs) const {
    CheckedCall<Body> call(options, inputs);
    const void* data = nullptr;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i]) continue;
      raise_if_error(take_output(outputs[i]->array(), &call.outputs[i]));
      if (!data) data = call.outputs[i].data;
    }
    return [this, call, data] {
      run(Body::kName, data, [&](const CudaExecution& execution) {
        return call.body.run(call.inputs, call.outputs, execution);
      });
    };
  }

  // Starts the work of a launcher on the GPU that holds `data`. Raises what the allocator raises,
  // and errors of CUDA. `name` names the work.
  template <class Launch>
  void run(const char* name, const void* data, const Launch& launch) const {
    Call call{allocate_, nullptr};
    const CudaExecution execution = {reinterpret_cast<void*>(stream_), allocate, &call};
    Status status;
    {
      const py::gil_scoped_release release;
      const CurrentDevice device(data);
      CudaResult result = device.result();
      if (result == CudaResult::kOk) result = launch(execution);
      status = status_of(result, name);  // Here, since it may describe the current GPU.
    }
    if (call.error) std::rethrow_exception(call.error);
    raise_if_error(status);
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
      if (bytes > 0 && (address == 0 || address % 16)) {
        throw py::value_error(
            "The allocator must return an address aligned to 16 bytes. "
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

#endif  // CUSTOM_OPS_PYTHON_DEVICE_ARRAYS_H_
