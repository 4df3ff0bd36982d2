// Extraction of patches as TensorFlow ops. Saved models contain the names and attributes of the
// ops: do not change them, add only attributes with defaults. The public functions are in
// custom_ops/patch_embed.py.

#include "custom_ops/cc/extract_patches_op.h"
#include "custom_ops/tf/cpu_kernel.h"
#include "custom_ops/tf/shape_function.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

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

[[maybe_unused]] const bool registered =
    register_for_cpu(OpList<ExtractPatches, ExtractPatchesGrad>());

}  // namespace
}  // namespace vit
