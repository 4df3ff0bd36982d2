// A stack of encoder blocks as a TensorFlow op. Saved models contain the name and attributes of the
// op: do not change them, add only attributes with defaults. The public functions are in
// custom_ops/encoder.py.

#include "custom_ops/tf/cpu_kernel.h"
#include "custom_ops/tf/encoder_bodies.h"
#include "custom_ops/tf/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Refuses arrays of wrong sizes when a graph is built or loaded.
absl::Status infer(InferenceContext* c) {
  EncoderAttributes attributes;
  TF_RETURN_IF_ERROR(get_attributes(c, &attributes));
  const ShapeHandle tokens_shape = ranked(c, 0, 3);
  const Dims tokens = *dims_of(c, tokens_shape);
  TF_RETURN_IF_ERROR(check_tokens(tokens, attributes));
  for (int64_t i = 0; i < attributes.blocks; ++i) {
    const auto weights = dims_of(c, c->input(1 + i));
    const auto biases = dims_of(c, c->input(1 + attributes.blocks + i));
    if (weights) TF_RETURN_IF_ERROR(check_packed("weights", i, *weights, tokens[2], attributes));
    if (biases) TF_RETURN_IF_ERROR(check_packed("biases", i, *biases, tokens[2], attributes));
  }
  ShapeHandle out = tokens_shape;
  if (attributes.first_row_only) {
    TF_RETURN_IF_ERROR(c->ReplaceDim(tokens_shape, 1, c->MakeDim(1), &out));
  }
  c->set_output(0, out);
  return absl::OkStatus();
}

// The layout is the version of the order of the weights: see custom_ops/packing.py.
REGISTER_OP("VitEncoder")
    .Input("tokens: float")
    .Input("weights: blocks * T")
    .Input("biases: blocks * float")
    .Output("out: float")
    .Attr("T: {float, bfloat16}")
    .Attr("blocks: int >= 1")
    .Attr("num_heads: int >= 1")
    .Attr("mlp_size: int >= 1")
    .Attr("activation: {'gelu_tanh', 'gelu_erf'}")
    .Attr("epsilon: float = 1e-6")
    .Attr("first_row_only: bool = false")
    .Attr("layout: int = 1")
    .SetShapeFn(infer);

VIT_REGISTER_KERNEL(Name("VitEncoder").Device(tensorflow::DEVICE_CPU), CpuKernel<Encoder>);

}  // namespace
}  // namespace vit
