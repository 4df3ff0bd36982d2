// Inputs and outputs of the ops, for every runtime that calls them.
#ifndef CUSTOM_OPS_TF_ARRAYS_H_
#define CUSTOM_OPS_TF_ARRAYS_H_

#include <algorithm>
#include <cstring>
#include <vector>

#include "custom_ops/cc/dtype.h"
#include "custom_ops/cc/execution.h"
#include "custom_ops/tf/dims.h"
#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/logging.h"

namespace vit {

// An input or an output. `name` is set in outputs. `data` is null while only shapes are known; the
// data of inputs are only read.
struct Array {
  tensorflow::DataType type;
  Dims dims;
  void* data = nullptr;
  const char* name = "";

  // The dimensions must be known and their product below 2^63, as check_size ensures.
  int64_t elements() const {
    // With a zero, the product of the others may overflow.
    if (std::count(dims.begin(), dims.end(), 0)) return 0;
    int64_t count = 1;
    for (int64_t n : dims) count *= n;
    return count;
  }
  int64_t bytes() const { return elements() * tensorflow::DataTypeSize(type); }
};

using Arrays = std::vector<Array>;

inline Result set_to_zero(void* data, int64_t bytes, const Execution&) {
  std::memset(data, 0, bytes);
  return Result::kOk;
}

// Each device has an overload of set_to_zero.
template <class DeviceExecution>
typename DeviceExecution::Result fill_with_zeros(const Arrays& arrays,
                                                 const DeviceExecution& execution) {
  for (const Array& array : arrays) {
    if (array.bytes() == 0) continue;
    const auto result = set_to_zero(array.data, array.bytes(), execution);
    if (result != DeviceExecution::Result::kOk) return result;
  }
  return {};
}

// Fails if the bytes of an array are more than 2^63 - 1.
inline absl::Status check_size(const Array& array) {
  int64_t elements, bytes;
  TF_RETURN_IF_ERROR(product(array.name, array.dims, &elements));
  const int64_t size = tensorflow::DataTypeSize(array.type);
  if (!__builtin_mul_overflow(elements, size, &bytes)) return absl::OkStatus();
  return invalid(array.name, " of shape ", text(array.dims), " would take ", size, " x ", elements,
                 " bytes, more than 2^63 - 1.");
}

// TensorFlow checks the types and the number of inputs itself, but other runtimes do not.
inline absl::Status check_type(const char* name, const Array& array, tensorflow::DataType type) {
  if (array.type == type) return absl::OkStatus();
  return invalid(name, " must be ", tensorflow::DataTypeString(type),
                 ". Received: ", tensorflow::DataTypeString(array.type), ".");
}

inline absl::Status check_count(const Arrays& inputs, int64_t expected) {
  if (static_cast<int64_t>(inputs.size()) == expected) return absl::OkStatus();
  return invalid("The op must have ", expected, " inputs. Received: ", inputs.size(), ".");
}

inline bool is_float(tensorflow::DataType type) {
  return type == tensorflow::DT_FLOAT || type == tensorflow::DT_DOUBLE ||
         type == tensorflow::DT_BFLOAT16 || type == tensorflow::DT_HALF;
}

// Returns the DType of a type that the ops are registered for. Any other type ends the process: an
// op is then registered for a type that it has no kernels for, and would read memory as a wrong
// type.
inline DType dtype_of(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_FLOAT:
      return DType::kFloat32;
    case tensorflow::DT_DOUBLE:
      return DType::kFloat64;
    case tensorflow::DT_BFLOAT16:
      return DType::kBfloat16;
    case tensorflow::DT_HALF:
      return DType::kFloat16;
    case tensorflow::DT_UINT8:
      return DType::kUint8;
    default:
      LOG(FATAL) << "The kernels do not support the dtype " << tensorflow::DataTypeString(type)
                 << ". Register their op for float, double, bfloat16, half and uint8 only.";
  }
}

// Attributes hold no doubles, so a double is stored as a list of floats: its sum.
inline double sum_of(const std::vector<float>& list) {
  double sum = 0;
  for (float x : list) sum += x;
  return sum;
}

inline absl::Status status_of(Result result, const char* op) {
  if (result == Result::kOk) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      op, " could not allocate its scratch memory. Use a smaller batch, or fewer threads."));
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_ARRAYS_H_
