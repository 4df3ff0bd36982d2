// Attention as TensorFlow ops. Saved models contain the names and attributes of the ops: do not
// change them, add only attributes with defaults. The public functions are in
// custom_ops/attention.py.

#include "custom_ops/cc/attention_op.h"
#include "custom_ops/tf/cpu_kernel.h"
#include "custom_ops/tf/shape_function.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

// The scale is the sum of the list; an empty list means 1 / sqrt(head_size).
#define VIT_ATTENTION_ATTRIBUTES(op)                  \
  op.Attr("num_heads: int >= 1")                      \
      .Attr("axis: int = 0")                          \
      .Attr("T: {" VIT_FLOATS "}")                    \
      .Attr("Tacc: {float, double} = DT_FLOAT")       \
      .Attr("Tbias: list({float, double}) >= 0 = []") \
      .Attr("scale: list(float) = []")

VIT_ATTENTION_ATTRIBUTES(REGISTER_OP("VitAttention")
                             .Input("qkv: T")
                             .Input("bias: Tbias")
                             .Output("out: T")
                             .Output("statistics: Tacc"))
    .SetShapeFn(infer_shapes<Attention>);

VIT_ATTENTION_ATTRIBUTES(REGISTER_OP("VitAttentionGrad")
                             .Input("qkv: T")
                             .Input("bias: Tbias")
                             .Input("out: T")
                             .Input("statistics: Tacc")
                             .Input("d_out: T")
                             .Output("d_qkv: T"))
    .SetShapeFn(infer_shapes<AttentionGrad>);

VIT_ATTENTION_ATTRIBUTES(REGISTER_OP("VitAttentionBiasGrad")
                             .Input("qkv: T")
                             .Input("bias: Tbias")
                             .Input("out: T")
                             .Input("statistics: Tacc")
                             .Input("d_out: T")
                             .Output("d_bias: Tacc"))
    .SetShapeFn(infer_shapes<AttentionBiasGrad>);

VIT_ATTENTION_ATTRIBUTES(REGISTER_OP("VitAttentionTaps")
                             .Input("qkv: T")
                             .Input("bias: Tbias")
                             .Input("statistics: Tacc")
                             .Output("class_row: Tacc")
                             .Output("distance: Tacc")
                             .Output("entropy: Tacc"))
    .Attr("taps: list({'class_row', 'distance', 'entropy'}) >= 1")
    .Attr("grid_rows: int = 0")
    .Attr("grid_columns: int = 0")
    .SetShapeFn(infer_shapes<AttentionTaps>);

[[maybe_unused]] const bool registered =
    register_for_cpu(OpList<Attention, AttentionGrad, AttentionBiasGrad, AttentionTaps>());

}  // namespace
}  // namespace vit
