// Extraction of patches as TensorFlow ops. Saved models contain the names and attributes of the
// ops: do not change them, add only attributes with defaults. The public functions are in
// custom_ops/patch_embed.py.

#include "custom_ops/tf/cpu_kernel.h"
#include "custom_ops/tf/patch_bodies.h"
#include "custom_ops/tf/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status infer_patches(InferenceContext* c) {
  int64_t patch_size;
  TF_RETURN_IF_ERROR(c->GetAttr("patch_size", &patch_size));
  const ShapeHandle images = ranked(c, 0, 4);
  Dims patches;
  TF_RETURN_IF_ERROR(patches_of(*dims_of(c, images), patch_size, &patches));
  auto dim = [&](int i) { return patches[i] < 0 ? c->UnknownDim() : c->MakeDim(patches[i]); };
  c->set_output(0, c->MakeShape({c->Dim(images, 0), dim(1), dim(2)}));
  return absl::OkStatus();
}

absl::Status infer_restored(InferenceContext* c) {
  int64_t patch_size;
  TF_RETURN_IF_ERROR(c->GetAttr("patch_size", &patch_size));
  ShapeHandle images;
  TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(1, &images));
  if (!c->RankKnown(images)) images = c->UnknownShapeOfRank(4);
  Dims patches;
  TF_RETURN_IF_ERROR(patches_of(*dims_of(c, images), patch_size, &patches));
  TF_RETURN_IF_ERROR(
      check_shape("d_patches", *dims_of(c, ranked(c, 0, 3)), "[B, N, P P C]", patches));
  c->set_output(0, images);
  return absl::OkStatus();
}

#define VIT_FIXED_SIZE_TYPES                                           \
  "T: {" VIT_FLOATS                                                    \
  ", uint8, uint16, uint32, uint64, int8, int16, int32, int64, bool, " \
  "complex64, complex128}"

REGISTER_OP("VitExtractPatches")
    .Input("images: T")
    .Output("patches: T")
    .Attr("patch_size: int >= 1")
    .Attr(VIT_FIXED_SIZE_TYPES)
    .SetShapeFn(infer_patches);

REGISTER_OP("VitExtractPatchesGrad")
    .Input("d_patches: T")
    .Input("image_shape: int64")
    .Output("d_images: T")
    .Attr("patch_size: int >= 1")
    .Attr(VIT_FIXED_SIZE_TYPES)
    .SetShapeFn(infer_restored);

VIT_REGISTER_KERNEL(Name("VitExtractPatches").Device(tensorflow::DEVICE_CPU),
                    CpuKernel<ExtractPatches>);
VIT_REGISTER_KERNEL(Name("VitExtractPatchesGrad").Device(tensorflow::DEVICE_CPU),
                    CpuKernel<ExtractPatchesGrad>);

}  // namespace
}  // namespace vit
