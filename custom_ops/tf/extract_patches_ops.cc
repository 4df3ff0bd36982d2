// Extraction of patches as TensorFlow ops. Saved models contain the names and attributes of the
// ops: do not change them, add only attributes with defaults. The public functions are in
// custom_ops/patch_embed.py.

#include "custom_ops/cpu/patch_embed/patch_embed.h"
#include "custom_ops/tf/patch_checks.h"
#include "custom_ops/tf/registration.h"
#include "custom_ops/tf/tensors.h"
#include "custom_ops/tf/threads.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
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

class PatchCopyOpKernel : public OpKernel {
 public:
  explicit PatchCopyOpKernel(OpKernelConstruction* c) : OpKernel(c) {
    tensorflow::DataType type;
    OP_REQUIRES_OK(c, c->GetAttr("patch_size", &patch_size_));
    OP_REQUIRES_OK(c, c->GetAttr("T", &type));
    element_size_ = tensorflow::DataTypeSize(type);
  }

 protected:
  absl::Status read(const Dims& images, PatchShape* shape, Dims* patches) const {
    TF_RETURN_IF_ERROR(patches_of(images, patch_size_, patches));
    *shape = {images[0], images[1], images[2], images[3], patch_size_, 0, 0};
    return absl::OkStatus();
  }

  int64_t patch_size_, element_size_;
};

class ExtractPatchesOp : public PatchCopyOpKernel {
 public:
  using PatchCopyOpKernel::PatchCopyOpKernel;

  void Compute(OpKernelContext* c) override {
    const Tensor& images = c->input(0);
    PatchShape shape;
    Dims dims;
    Tensor* patches;
    OP_REQUIRES_OK(c, read(dims_of(images), &shape, &dims));
    OP_REQUIRES_OK(c, allocate(c, 0, "patches", dims, &patches));
    if (patches->NumElements() == 0) return;
    const PatchCopyProblem problem = {shape, element_size_, images.data(), patches->data()};
    OP_REQUIRES_OK(c, status_of(c, extract_patches(problem, execution_of(c)), "VitExtractPatches"));
  }
};

class ExtractPatchesGradOp : public PatchCopyOpKernel {
 public:
  using PatchCopyOpKernel::PatchCopyOpKernel;

  void Compute(OpKernelContext* c) override {
    const Tensor& d_patches = c->input(0);
    const Tensor& image_shape = c->input(1);
    OP_REQUIRES_OK(c, check_shape("image_shape", dims_of(image_shape), "[4]", {4}));
    Dims images;
    for (int i = 0; i < 4; ++i) {
      images.push_back(image_shape.flat<int64_t>()(i));
      OP_REQUIRES(c, images[i] >= 0,
                  invalid("image_shape must hold sizes of at least 0. Received: ", images[i], "."));
    }
    PatchShape shape;
    Dims dims;
    Tensor* d_images;
    OP_REQUIRES_OK(c, read(images, &shape, &dims));
    OP_REQUIRES_OK(c, check_shape("d_patches", dims_of(d_patches), "[B, N, P P C]", dims));
    OP_REQUIRES_OK(c, allocate(c, 0, "d_images", images, &d_images));
    if (d_patches.NumElements() == 0) {
      fill_with_zeros(d_images);
      return;
    }
    const PatchCopyProblem problem = {shape, element_size_, d_patches.data(), d_images->data()};
    OP_REQUIRES_OK(
        c, status_of(c, restore_patches(problem, execution_of(c)), "VitExtractPatchesGrad"));
  }
};

VIT_REGISTER_KERNEL(Name("VitExtractPatches").Device(tensorflow::DEVICE_CPU), ExtractPatchesOp);
VIT_REGISTER_KERNEL(Name("VitExtractPatchesGrad").Device(tensorflow::DEVICE_CPU),
                    ExtractPatchesGradOp);

}  // namespace
}  // namespace vit
