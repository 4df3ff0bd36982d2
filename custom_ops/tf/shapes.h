// The shapes of shape functions.
#ifndef CUSTOM_OPS_TF_SHAPES_H_
#define CUSTOM_OPS_TF_SHAPES_H_

#include <optional>

#include "custom_ops/tf/dims.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace vit {

// Returns no value if the rank is unknown.
inline std::optional<Dims> dims_of(tensorflow::shape_inference::InferenceContext* context,
                                   tensorflow::shape_inference::ShapeHandle shape) {
  if (!context->RankKnown(shape)) return std::nullopt;
  Dims dims;
  for (int i = 0; i < context->Rank(shape); ++i) {
    dims.push_back(context->Value(context->Dim(shape, i)));
  }
  return dims;
}

// Returns the shape if its rank is known, else a shape of that rank with unknown dimensions.
inline tensorflow::shape_inference::ShapeHandle ranked(
    tensorflow::shape_inference::InferenceContext* c, int input, int rank) {
  const tensorflow::shape_inference::ShapeHandle shape = c->input(input);
  return c->RankKnown(shape) ? shape : c->UnknownShapeOfRank(rank);
}

}  // namespace vit

// Types of the attributes of ops.
#define VIT_FLOATS "float, bfloat16, half, double"

#endif  // CUSTOM_OPS_TF_SHAPES_H_
