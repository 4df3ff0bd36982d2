// A stack of encoder blocks as TensorFlow ops. Saved models contain the names and attributes of the
// ops: do not change them, add only attributes with defaults. The public functions are in
// custom_ops/encoder.py.

#include "custom_ops/cc/encoder_op.h"
#include "custom_ops/tf/cpu_kernel.h"
#include "custom_ops/tf/shape_function.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

// The layout is the version of the order of the weights: see custom_ops/packing.py.
#define VIT_ENCODER_ATTRIBUTES                                 \
  Attr("T: {float, bfloat16}")                                 \
      .Attr("blocks: int >= 1")                                \
      .Attr("num_heads: int >= 1")                             \
      .Attr("mlp_size: int >= 1")                              \
      .Attr("activation: {'gelu_tanh', 'gelu_erf', 'swiglu'}") \
      .Attr("epsilon: float = 1e-6")                           \
      .Attr("qk_norm: bool = false")                           \
      .Attr("first_row_only: bool = false")                    \
      .Attr("layout: int = 1")

REGISTER_OP("VitEncoder")
    .Input("tokens: float")
    .Input("weights: blocks * T")
    .Input("biases: blocks * float")
    .Output("out: float")
    .VIT_ENCODER_ATTRIBUTES.SetShapeFn(infer_shapes<Encoder>);

// With rotary positions, for all blocks: see custom_ops/encoder.py.
REGISTER_OP("VitRotaryEncoder")
    .Input("tokens: float")
    .Input("weights: blocks * T")
    .Input("biases: blocks * float")
    .Input("rotary: float")
    .Output("out: float")
    .VIT_ENCODER_ATTRIBUTES.SetShapeFn(infer_shapes<RotaryEncoder>);

[[maybe_unused]] const bool registered = register_for_cpu(OpList<Encoder, RotaryEncoder>());

}  // namespace
}  // namespace vit
