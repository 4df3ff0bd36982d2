// A whole model as TensorFlow ops. Saved models contain the names and attributes of the ops: do not
// change them, add only attributes with defaults. The ops are private to custom_ops/model.py.

#include "custom_ops/cc/model_op.h"
#include "custom_ops/tf/cpu_kernel.h"
#include "custom_ops/tf/shape_function.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

#define VIT_MODEL_INPUTS                       \
  Input("images: I")                           \
      .Input("kernel: T")                      \
      .Input("bias: float")                    \
      .Input("prefix: num_prefix * float")     \
      .Input("position: num_position * float") \
      .Input("weights: blocks * T")            \
      .Input("biases: blocks * float")         \
      .Input("norm_scale: float")              \
      .Input("norm_bias: float")               \
      .Input("head: num_head * float")         \
      .Input("head_bias: num_head * float")

// Scale and offset are the sums of their lists.
#define VIT_MODEL_ATTRIBUTES                                   \
  Attr("I: {uint8, float, bfloat16, half}")                    \
      .Attr("T: {float, bfloat16}")                            \
      .Attr("num_prefix: int >= 0 = 0")                        \
      .Attr("num_position: int >= 0 = 0")                      \
      .Attr("num_head: int >= 0 = 0")                          \
      .Attr("blocks: int >= 1")                                \
      .Attr("patch_size: int >= 1")                            \
      .Attr("num_heads: int >= 1")                             \
      .Attr("mlp_size: int >= 1")                              \
      .Attr("activation: {'gelu_tanh', 'gelu_erf', 'swiglu'}") \
      .Attr("epsilon: float = 1e-6")                           \
      .Attr("qk_norm: bool = false")                           \
      .Attr("pooling: {'none', 'token', 'mean'}")              \
      .Attr("scale: list(float) = [1.0]")                      \
      .Attr("offset: list(float) = [0.0]")                     \
      .Attr("layout: int = 1")

REGISTER_OP("VitModel")
    .VIT_MODEL_INPUTS.Output("out: float")
    .VIT_MODEL_ATTRIBUTES.SetShapeFn(infer_shapes<Model>);

// With rotary positions of the patches, for all blocks.
REGISTER_OP("VitRotaryModel")
    .VIT_MODEL_INPUTS.Input("rotary: float")
    .Output("out: float")
    .VIT_MODEL_ATTRIBUTES.SetShapeFn(infer_shapes<RotaryModel>);

[[maybe_unused]] const bool registered = register_for_cpu(OpList<Model, RotaryModel>());

}  // namespace
}  // namespace vit
