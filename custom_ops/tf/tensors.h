// TensorFlow's tensors as arrays.
#ifndef CUSTOM_OPS_TF_TENSORS_H_
#define CUSTOM_OPS_TF_TENSORS_H_

#include "custom_ops/tf/arrays.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace vit {

inline Array array_of(const tensorflow::Tensor& tensor) {
  const auto sizes = tensor.shape().dim_sizes();
  return {tensor.dtype(), Dims(sizes.begin(), sizes.end()), tensor.data()};
}

// Allocates output `index`, whose type and shape are those of `array`, and sets array->data.
inline absl::Status allocate(tensorflow::OpKernelContext* context, int index, Array* array) {
  tensorflow::TensorShape shape;
  tensorflow::Tensor* tensor;
  TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(array->dims, &shape));
  TF_RETURN_IF_ERROR(context->allocate_output(index, shape, &tensor));
  array->data = tensor->data();
  return absl::OkStatus();
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_TENSORS_H_
