// Patch embedding as TensorFlow ops. Saved models contain the names and attributes of the ops: do
// not change them, add only attributes with defaults. The public functions are in
// custom_ops/patch_embed.py.

#include "custom_ops/cc/patch_embed_op.h"
#include "custom_ops/tf/cpu_kernel.h"
#include "custom_ops/tf/shape_function.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

// Scale and offset are the sums of their lists.
#define VIT_SCALE "scale: list(float) = [1.0]"
#define VIT_OFFSET "offset: list(float) = [0.0]"

REGISTER_OP("VitPatchEmbed")
    .Input("images: I")
    .Input("kernel: T")
    .Input("bias: T")
    .Input("prefix: num_prefix * T")
    .Input("position: num_position * T")
    .Output("tokens: T")
    .Attr("I: {uint8, " VIT_FLOATS "}")
    .Attr("T: {" VIT_FLOATS "}")
    .Attr("num_prefix: int >= 0 = 0")
    .Attr("num_position: int >= 0 = 0")
    .Attr(VIT_SCALE)
    .Attr(VIT_OFFSET)
    .SetShapeFn(infer_shapes<PatchEmbed>);

// The values of the kernel are not read: the op needs only its shape.
REGISTER_OP("VitPatchEmbedKernelGrad")
    .Input("kernel: T")
    .Input("images: I")
    .Input("d_tokens: T")
    .Output("d_kernel: T")
    .Attr("I: {uint8, " VIT_FLOATS "}")
    .Attr("T: {" VIT_FLOATS "}")
    .Attr(VIT_SCALE)
    .Attr(VIT_OFFSET)
    .SetShapeFn(infer_shapes<PatchEmbedKernelGrad>);

// The values of the images are not read: the op needs only their shape.
REGISTER_OP("VitPatchEmbedImagesGrad")
    .Input("images: I")
    .Input("kernel: T")
    .Input("d_tokens: T")
    .Output("d_images: I")
    .Attr("I: {" VIT_FLOATS "}")
    .Attr("T: {" VIT_FLOATS "}")
    .Attr(VIT_SCALE)
    .Attr(VIT_OFFSET)
    .SetShapeFn(infer_shapes<PatchEmbedImagesGrad>);

// The gradients of bias, prefix and position. The inputs prefix and position give only the shapes.
REGISTER_OP("VitPatchEmbedTablesGrad")
    .Input("d_tokens: T")
    .Input("prefix: num_prefix * T")
    .Input("position: num_position * T")
    .Output("d_bias: T")
    .Output("d_prefix: num_prefix * T")
    .Output("d_position: num_position * T")
    .Attr("num_prefix: int >= 0 = 0")
    .Attr("num_position: int >= 0 = 0")
    .Attr("T: {" VIT_FLOATS "}")
    .SetShapeFn(infer_shapes<PatchEmbedTablesGrad>);

[[maybe_unused]] const bool registered = register_for_cpu(
    OpList<PatchEmbed, PatchEmbedKernelGrad, PatchEmbedImagesGrad, PatchEmbedTablesGrad>());

}  // namespace
}  // namespace vit
