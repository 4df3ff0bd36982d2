// The ops of a training step as TensorFlow ops. Saved models contain the names and attributes of
// the ops: do not change them, add only attributes with defaults. The public functions are in
// custom_ops/training.py.

#include "custom_ops/cc/row_ops.h"
#include "custom_ops/tf/cpu_kernel.h"
#include "custom_ops/tf/shape_function.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

#define VIT_ROWS "T: {float, bfloat16, half}"

REGISTER_OP("VitBiasGelu")
    .Input("x: T")
    .Input("bias: T")
    .Output("out: T")
    .Attr("exact: bool = false")
    .Attr(VIT_ROWS)
    .SetShapeFn(infer_shapes<BiasGelu>);

REGISTER_OP("VitBiasGeluGrad")
    .Input("x: T")
    .Input("bias: T")
    .Input("d_out: T")
    .Output("d_x: T")
    .Output("d_bias: T")
    .Attr("exact: bool = false")
    .Attr(VIT_ROWS)
    .SetShapeFn(infer_shapes<BiasGeluGrad>);

REGISTER_OP("VitResidualNorm")
    .Input("x: T")
    .Input("scale: float")
    .Input("bias: float")
    .Input("branch: num_branch * T")
    .Output("normalized: T")
    .Output("statistics: float")
    .Output("sum: num_branch * T")
    .Attr("epsilon: float")
    .Attr("num_branch: int >= 0 = 0")
    .Attr(VIT_ROWS)
    .SetShapeFn(infer_shapes<ResidualNorm>);

REGISTER_OP("VitResidualNormGrad")
    .Input("x: T")
    .Input("statistics: float")
    .Input("scale: float")
    .Input("d_normalized: T")
    .Input("d_sum: num_sum * T")
    .Output("d_x: T")
    .Output("d_scale: float")
    .Output("d_bias: float")
    .Attr("num_sum: int >= 0 = 0")
    .Attr(VIT_ROWS)
    .SetShapeFn(infer_shapes<ResidualNormGrad>);

// The numbers are the sums of their lists.
REGISTER_OP("VitSgdUpdate")
    .Input("weight: float")
    .Input("gradient: float")
    .Input("scalars: float")
    .Input("momentum: M")
    .Output("new_weight: float")
    .Output("new_momentum: M")
    .Attr("momentum_decay: list(float)")
    .Attr("weight_decay: list(float)")
    .Attr("M: {float, bfloat16}")
    .SetShapeFn(infer_shapes<SgdUpdate>);

REGISTER_OP("VitAdamwUpdate")
    .Input("weight: float")
    .Input("gradient: float")
    .Input("scalars: float")
    .Input("momentum: M")
    .Input("variance: float")
    .Output("new_weight: float")
    .Output("new_momentum: M")
    .Output("new_variance: float")
    .Attr("beta_1: list(float)")
    .Attr("beta_2: list(float)")
    .Attr("epsilon: list(float)")
    .Attr("weight_decay: list(float)")
    .Attr("M: {float, bfloat16}")
    .SetShapeFn(infer_shapes<AdamwUpdate>);

[[maybe_unused]] const bool registered = register_for_cpu(
    OpList<BiasGelu, BiasGeluGrad, ResidualNorm, ResidualNormGrad, SgdUpdate, AdamwUpdate>());

}  // namespace
}  // namespace vit
