// Converts TensorFlow's statuses, types, attributes and tensors to the types of custom_ops/cc.
#ifndef CUSTOM_OPS_TF_TENSORFLOW_TYPES_H_
#define CUSTOM_OPS_TF_TENSORFLOW_TYPES_H_

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "custom_ops/cc/op_lists.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace vit {

inline absl::Status absl_status(const Status& status) {
  return {static_cast<absl::StatusCode>(status.code), status.message};
}

inline Status status_of(const absl::Status& status) {
  return {static_cast<Code>(status.code()), std::string(status.message())};
}

// By ElementType.
constexpr tensorflow::DataType kDataTypes[] = {
    tensorflow::DT_FLOAT,  tensorflow::DT_BFLOAT16,  tensorflow::DT_HALF,
    tensorflow::DT_DOUBLE, tensorflow::DT_UINT8,     tensorflow::DT_BOOL,
    tensorflow::DT_INT8,   tensorflow::DT_INT16,     tensorflow::DT_UINT16,
    tensorflow::DT_INT32,  tensorflow::DT_UINT32,    tensorflow::DT_INT64,
    tensorflow::DT_UINT64, tensorflow::DT_COMPLEX64, tensorflow::DT_COMPLEX128,
};

inline Status get_type(tensorflow::DataType type, ElementType* found) {
  const auto* at = std::find(std::begin(kDataTypes), std::end(kDataTypes), type);
  if (at == std::end(kDataTypes)) {
    return invalid("There are no kernels for the dtype ", tensorflow::DataTypeString(type), ".");
  }
  *found = static_cast<ElementType>(at - kDataTypes);
  return {};
}

// Context: OpKernelConstruction or InferenceContext.
template <class Context>
class TensorflowAttributes {
 public:
  explicit TensorflowAttributes(Context* context) : context_(context) {}

  template <class T>
  Status get(const char* name, T* value) const {
    return status_of(context_->GetAttr(name, value));
  }

  Status get(const char* name, std::optional<double>* value) const {
    std::vector<float> parts;
    VIT_RETURN_IF_ERROR(get(name, &parts));
    *value = sum_of(parts);
    return {};
  }

  Status get(const char* name, ElementType* value) const {
    tensorflow::DataType type;
    VIT_RETURN_IF_ERROR(get(name, &type));
    return get_type(type, value);
  }

  Status get(const char* name, std::vector<ElementType>* value) const {
    tensorflow::DataTypeVector types;
    VIT_RETURN_IF_ERROR(get(name, &types));
    for (tensorflow::DataType type : types) {
      VIT_RETURN_IF_ERROR(get_type(type, &value->emplace_back()));
    }
    return {};
  }

 private:
  Context* const context_;
};

// Gets the array of a tensor.
inline Status get_array(const tensorflow::Tensor& tensor, Array* array) {
  const auto sizes = tensor.shape().dim_sizes();
  array->dims.assign(sizes.begin(), sizes.end());
  array->data = tensor.data();
  return get_type(tensor.dtype(), &array->type);
}

// Allocates output `index` with the type and shape of `array`, and sets array->data.
inline absl::Status allocate(tensorflow::OpKernelContext* context, int index, Array* array) {
  tensorflow::TensorShape shape;
  tensorflow::Tensor* tensor;
  TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(array->dims, &shape));
  TF_RETURN_IF_ERROR(context->allocate_output(index, shape, &tensor));
  array->data = tensor->data();
  return absl::OkStatus();
}

// Leaves out the types of an op that no kernel for GPUs computes with: float64. `builder` is that
// of a kernel, of TensorFlow or of XLA.
template <class Body, class Builder>
void restrict_types_on_gpus(Builder& builder) {
  using tensorflow::DataType;
  static constexpr DataType kTypes[] = {tensorflow::DT_UINT8, tensorflow::DT_BFLOAT16,
                                        tensorflow::DT_HALF, tensorflow::DT_FLOAT};
  const absl::Span<const DataType> images(kTypes), floats = images.subspan(1);
  if (is_in<Body>(OpList<ExtractPatches, ExtractPatchesGrad>())) return;  // they copy bytes
  builder.TypeConstraint("T", floats);
  if (is_in<Body>(OpList<PatchEmbed, PatchEmbedKernelGrad>())) builder.TypeConstraint("I", images);
  if (is_in<Body>(OpList<PatchEmbedImagesGrad>())) builder.TypeConstraint("I", floats);
}

}  // namespace vit

#endif  // CUSTOM_OPS_TF_TENSORFLOW_TYPES_H_
