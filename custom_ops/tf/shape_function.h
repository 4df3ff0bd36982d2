// The shape function of an op: the check of its body, with what is known of the shapes.
#ifndef CUSTOM_OPS_TF_SHAPE_FUNCTION_H_
#define CUSTOM_OPS_TF_SHAPE_FUNCTION_H_

#include <vector>

#include "custom_ops/tf/tensorflow_types.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace vit {

// Each unknown dimension of an input gets its own number below -1, so that an output to which the
// body copies the number has the same dimension.
class PartialShapes {
 public:
  explicit PartialShapes(tensorflow::shape_inference::InferenceContext* context)
      : context_(context) {}

  Array array_of(tensorflow::shape_inference::ShapeHandle shape) {
    Array array = {ElementType::kUnknown, {}};
    array.has_any_rank = !context_->RankKnown(shape);
    if (!array.has_any_rank) array.dims = dims_of(shape);
    return array;
  }

  // The rank must be known.
  Dims dims_of(tensorflow::shape_inference::ShapeHandle shape) {
    Dims dims;
    for (int i = 0; i < context_->Rank(shape); ++i) {
      const auto dim = context_->Dim(shape, i);
      if (!context_->ValueKnown(dim)) unknown_.push_back(dim);
      const auto number = -1 - static_cast<int64_t>(unknown_.size());
      dims.push_back(context_->ValueKnown(dim) ? context_->Value(dim) : number);
    }
    return dims;
  }

  tensorflow::shape_inference::ShapeHandle shape_of(const Array& array) const {
    if (array.has_any_rank) return context_->UnknownShape();
    std::vector<tensorflow::shape_inference::DimensionHandle> dims;
    for (int64_t n : array.dims) {
      dims.push_back(n >= 0    ? context_->MakeDim(n)
                     : n == -1 ? context_->UnknownDim()
                               : unknown_[-2 - n]);
    }
    return context_->MakeShape(dims);
  }

 private:
  tensorflow::shape_inference::InferenceContext* const context_;
  std::vector<tensorflow::shape_inference::DimensionHandle> unknown_;
};

template <class Body>
absl::Status infer_shapes(tensorflow::shape_inference::InferenceContext* context) {
  Body body;
  const TensorflowAttributes attributes(context);
  TF_RETURN_IF_ERROR(absl_status(body.init(&attributes)));
  PartialShapes shapes(context);
  Arrays inputs, outputs;
  for (int i = 0; i < context->num_inputs(); ++i) {
    inputs.push_back(shapes.array_of(context->input(i)));
  }
  if constexpr (constexpr int i = Body::kConstantInput; i >= 0) {
    tensorflow::shape_inference::ShapeHandle values;
    TF_RETURN_IF_ERROR(context->MakeShapeFromShapeTensor(i, &values));
    if (context->RankKnown(values)) inputs[i].known_values = shapes.dims_of(values);
  }
  TF_RETURN_IF_ERROR(absl_status(body.check(inputs, &outputs)));
  for (size_t i = 0; i < outputs.size(); ++i) {
    context->set_output(static_cast<int>(i), shapes.shape_of(outputs[i]));
  }
  return absl::OkStatus();
}

}  // namespace vit

// Types of the attributes of ops.
#define VIT_FLOATS "float, bfloat16, half, double"

#endif  // CUSTOM_OPS_TF_SHAPE_FUNCTION_H_
