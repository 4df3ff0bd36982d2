// The ops of TensorFlow. Saved models contain their names and attributes: do not change them, add
// only attributes with defaults. The public functions are in custom_ops/attention.py,
// custom_ops/encoder.py and custom_ops/patch_embed.py.

#include "custom_ops/cc/op_lists.h"
#include "custom_ops/tf/shape_function.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

#define VIT_FLOATS "float, bfloat16, half, double"

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
    .SetShapeFn(infer_shapes<Encoder>);

// Private: see custom_ops/model.py. Scale and offset are the sums of their lists.
REGISTER_OP("VitModel")
    .Input("images: I")
    .Input("kernel: T")
    .Input("bias: float")
    .Input("prefix: num_prefix * float")
    .Input("position: num_position * float")
    .Input("weights: blocks * T")
    .Input("biases: blocks * float")
    .Input("norm_scale: float")
    .Input("norm_bias: float")
    .Input("head: num_head * float")
    .Input("head_bias: num_head * float")
    .Output("out: float")
    .Attr("I: {uint8, float, bfloat16, half}")
    .Attr("T: {float, bfloat16}")
    .Attr("num_prefix: int >= 0 = 0")
    .Attr("num_position: int >= 0 = 0")
    .Attr("num_head: int >= 0 = 0")
    .Attr("blocks: int >= 1")
    .Attr("patch_size: int >= 1")
    .Attr("num_heads: int >= 1")
    .Attr("mlp_size: int >= 1")
    .Attr("activation: {'gelu_tanh', 'gelu_erf'}")
    .Attr("epsilon: float = 1e-6")
    .Attr("pooling: {'none', 'token', 'mean'}")
    .Attr("scale: list(float) = [1.0]")
    .Attr("offset: list(float) = [0.0]")
    .Attr("layout: int = 1")
    .SetShapeFn(infer_shapes<Model>);

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

#define VIT_FIXED_SIZE_TYPES                                           \
  "T: {" VIT_FLOATS                                                    \
  ", uint8, uint16, uint32, uint64, int8, int16, int32, int64, bool, " \
  "complex64, complex128}"

REGISTER_OP("VitExtractPatches")
    .Input("images: T")
    .Output("patches: T")
    .Attr("patch_size: int >= 1")
    .Attr(VIT_FIXED_SIZE_TYPES)
    .SetShapeFn(infer_shapes<ExtractPatches>);

REGISTER_OP("VitExtractPatchesGrad")
    .Input("d_patches: T")
    .Input("image_shape: int64")
    .Output("d_images: T")
    .Attr("patch_size: int >= 1")
    .Attr(VIT_FIXED_SIZE_TYPES)
    .SetShapeFn(infer_shapes<ExtractPatchesGrad>);

}  // namespace
}  // namespace vit
