// TensorFlow's tensors as arrays.
#ifndef CUSTOM_OPS_TF_TENSORS_H_
#define CUSTOM_OPS_TF_TENSORS_H_

#include <unistd.h>

#include "custom_ops/tf/arrays.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace vit {

inline Array array_of(const tensorflow::Tensor& tensor) {
  const auto sizes = tensor.shape().dim_sizes();
  return {tensor.dtype(), Dims(sizes.begin(), sizes.end()), tensor.data()};
}

// Allocates output `index`, whose type and shape are those of `array`, and sets array->data. Fails
// if its bytes overflow or exceed the memory of this machine.
inline absl::Status allocate(tensorflow::OpKernelContext* context, int index, Array* array) {
  TF_RETURN_IF_ERROR(check_size(*array));
  static const int64_t memory = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  if (array->bytes() > memory) {
    return invalid(array->name, " of shape ", text(array->dims), " would take ",
                   tensorflow::DataTypeSize(array->type), " x ", array->elements(),
                   " bytes, more than the ", memory, " bytes of this machine's memory.");
  }
  tensorflow::TensorShape shape;
  tensorflow::Tensor* tensor;
  TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(array->dims, &shape));
  TF_RETURN_IF_ERROR(context->allocate_output(index, shape, &tensor));
  array->data = tensor->data();
  return absl::OkStatus();
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_TENSORS_H_
