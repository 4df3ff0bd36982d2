// Converts TensorFlow's tensors, types and errors for the kernels.
#ifndef CUSTOM_OPS_TF_TENSORS_H_
#define CUSTOM_OPS_TF_TENSORS_H_

#include <unistd.h>

#include <cstring>
#include <vector>

#include "custom_ops/cc/dtype.h"
#include "custom_ops/tf/shapes.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace vit {

inline Dims dims_of(const tensorflow::Tensor& tensor) {
  Dims dims;
  for (int i = 0; i < tensor.dims(); ++i) dims.push_back(tensor.dim_size(i));
  return dims;
}

// Allocates an output. Fails if its bytes overflow or exceed the memory of this machine.
inline absl::Status allocate(tensorflow::OpKernelContext* context, int index, const char* name,
                             const Dims& dims, tensorflow::Tensor** output) {
  int64_t elements, bytes;
  TF_RETURN_IF_ERROR(product(name, dims, &elements));
  const int64_t size = tensorflow::DataTypeSize(context->expected_output_dtype(index));
  static const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  if (__builtin_mul_overflow(elements, size, &bytes) || bytes > memory) {
    return invalid(name, " of shape ", text(dims), " would take ", size, " x ", elements,
                   " bytes, more than the ", memory, " bytes of this machine's memory.");
  }
  tensorflow::TensorShape shape;
  TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(dims, &shape));
  return context->allocate_output(index, shape, output);
}

inline void* data(tensorflow::Tensor* tensor) { return tensor ? tensor->data() : nullptr; }

inline void fill_with_zeros(tensorflow::Tensor* tensor) {
  if (tensor->TotalBytes()) std::memset(tensor->data(), 0, tensor->TotalBytes());
}

// An optional input, which is a list of no tensor or one tensor.
inline absl::Status optional_input(tensorflow::OpKernelContext* context, const char* name,
                                   const tensorflow::Tensor** input) {
  tensorflow::OpInputList list;
  TF_RETURN_IF_ERROR(context->input_list(name, &list));
  *input = nullptr;
  if (list.size() > 1) {
    return invalid(name, " must be a list of none or one tensor. Received: ", list.size(), ".");
  }
  if (list.size() == 1) *input = &list[0];
  return absl::OkStatus();
}

// Attributes hold no doubles, so a double is stored as a list of floats: its sum.
inline double sum_of(const std::vector<float>& list) {
  double sum = 0;
  for (float x : list) sum += x;
  return sum;
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

}  // namespace vit

#endif  // CUSTOM_OPS_TF_TENSORS_H_
