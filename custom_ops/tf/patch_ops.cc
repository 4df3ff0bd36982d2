// Patch embedding as TensorFlow ops. Saved models contain the names and attributes of the ops: do
// not change them, add only attributes with defaults. The public functions are in
// custom_ops/patch_embed.py.

#include "custom_ops/tf/cpu_kernel.h"
#include "custom_ops/tf/patch_bodies.h"
#include "custom_ops/tf/shapes.h"
#include "tensorflow/core/framework/op.h"

namespace vit {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status infer_tokens(InferenceContext* c) {
  int64_t num_prefix, num_position;
  TF_RETURN_IF_ERROR(c->GetAttr("num_prefix", &num_prefix));
  TF_RETURN_IF_ERROR(c->GetAttr("num_position", &num_position));
  TF_RETURN_IF_ERROR(check_num("prefix", num_prefix));
  TF_RETURN_IF_ERROR(check_num("position", num_position));
  const ShapeHandle images_shape = ranked(c, 0, 4), kernel_shape = ranked(c, 1, 4);
  const Dims images = *dims_of(c, images_shape), kernel = *dims_of(c, kernel_shape);
  TF_RETURN_IF_ERROR(check_kernel(kernel));
  TF_RETURN_IF_ERROR(check_images(images, kernel));

  // The number of features comes from the first table in which it is known.
  DimensionHandle features = c->Dim(kernel_shape, 3);
  const int inputs = 3 + num_prefix + num_position;
  const char* names[] = {"bias", num_prefix ? "prefix" : "position", "position"};
  for (int i = 2; i < inputs; ++i) {
    const auto table = dims_of(c, c->input(i));
    if (!table) continue;
    TF_RETURN_IF_ERROR(check_rank(names[i - 2], *table, i == 2 ? "[D]" : "[rows, D]"));
    Dims expected = *table;
    expected.back() = c->Value(features);
    TF_RETURN_IF_ERROR(check_shape(names[i - 2], *table, i == 2 ? "[D]" : "[rows, D]", expected));
    if (!c->ValueKnown(features)) features = c->Dim(c->input(i), -1);
  }

  const int64_t patch_size = kernel[0] < 0 ? kernel[1] : kernel[0];
  int64_t patches, tokens;
  TF_RETURN_IF_ERROR(count_patches(images, patch_size, &patches));
  const int64_t prefix = num_prefix ? c->Value(c->Dim(ranked(c, 3, 2), 0)) : 0;
  TF_RETURN_IF_ERROR(count_tokens(prefix, patches, &tokens));
  if (num_position) {
    const auto position = dims_of(c, c->input(3 + num_prefix));
    if (position) {
      TF_RETURN_IF_ERROR(check_position(*position, tokens, c->Value(features)));
      if (tokens < 0) tokens = (*position)[0];
    }
  }
  c->set_output(0, c->MakeShape({c->Dim(images_shape, 0),
                                 tokens < 0 ? c->UnknownDim() : c->MakeDim(tokens), features}));
  return absl::OkStatus();
}

// The gradient of input 0. Inputs 0 and 1 are kernel and images, in either order.
absl::Status infer_embed_gradient(InferenceContext* c, int images_input, int kernel_input) {
  const Dims images = *dims_of(c, ranked(c, images_input, 4));
  const Dims kernel = *dims_of(c, ranked(c, kernel_input, 4));
  TF_RETURN_IF_ERROR(check_kernel(kernel));
  TF_RETURN_IF_ERROR(check_images(images, kernel));
  const Dims d_tokens = *dims_of(c, ranked(c, 2, 3));
  int64_t patches;
  TF_RETURN_IF_ERROR(count_patches(images, kernel[0] < 0 ? kernel[1] : kernel[0], &patches));
  TF_RETURN_IF_ERROR(check_d_tokens(d_tokens, images[0], patches, kernel[3]));
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

absl::Status infer_kernel_gradient(InferenceContext* c) { return infer_embed_gradient(c, 1, 0); }

absl::Status infer_images_gradient(InferenceContext* c) { return infer_embed_gradient(c, 0, 1); }

// The inputs are d_tokens and, optionally, prefix and position.
absl::Status infer_table_gradients(InferenceContext* c) {
  int64_t num_prefix, num_position;
  TF_RETURN_IF_ERROR(c->GetAttr("num_prefix", &num_prefix));
  TF_RETURN_IF_ERROR(c->GetAttr("num_position", &num_position));
  TF_RETURN_IF_ERROR(check_num("prefix", num_prefix));
  TF_RETURN_IF_ERROR(check_num("position", num_position));
  const ShapeHandle d_tokens_shape = ranked(c, 0, 3);
  const Dims d_tokens = *dims_of(c, d_tokens_shape);
  TF_RETURN_IF_ERROR(check_rank("d_tokens", d_tokens, "[B, T + N, D]"));
  c->set_output(0, c->Vector(c->Dim(d_tokens_shape, 2)));
  for (int i = 1; i <= num_prefix + num_position; ++i) {
    const Dims table = *dims_of(c, ranked(c, i, 2));
    TF_RETURN_IF_ERROR(i <= num_prefix ? check_prefix(table, d_tokens)
                                       : check_position(table, d_tokens[1], d_tokens[2]));
    c->set_output(i, c->input(i));
  }
  return absl::OkStatus();
}

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
    .SetShapeFn(infer_tokens);

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
    .SetShapeFn(infer_kernel_gradient);

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
    .SetShapeFn(infer_images_gradient);

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
    .SetShapeFn(infer_table_gradients);

VIT_REGISTER_KERNEL(Name("VitPatchEmbed").Device(tensorflow::DEVICE_CPU), CpuKernel<PatchEmbed>);
VIT_REGISTER_KERNEL(Name("VitPatchEmbedKernelGrad").Device(tensorflow::DEVICE_CPU),
                    CpuKernel<PatchEmbedKernelGrad>);
VIT_REGISTER_KERNEL(Name("VitPatchEmbedImagesGrad").Device(tensorflow::DEVICE_CPU),
                    CpuKernel<PatchEmbedImagesGrad>);
VIT_REGISTER_KERNEL(Name("VitPatchEmbedTablesGrad").Device(tensorflow::DEVICE_CPU),
                    CpuKernel<PatchEmbedTablesGrad>);

}  // namespace
}  // namespace vit
