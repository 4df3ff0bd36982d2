// Patch embedding as TensorFlow ops. Saved models contain the names and attributes of the ops: do
// not change them, add only attributes with defaults. The public functions are in
// custom_ops/patch_embed.py.

#include <vector>

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
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The scale and offset of pixel values.
template <typename Context>
absl::Status get_rescaling(Context* c, double* scale, double* offset) {
  std::vector<float> scales, offsets;
  TF_RETURN_IF_ERROR(c->GetAttr("scale", &scales));
  TF_RETURN_IF_ERROR(c->GetAttr("offset", &offsets));
  *scale = sum_of(scales);
  *offset = sum_of(offsets);
  return absl::OkStatus();
}

// Shape functions --------------------------------------------------------------------------------

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

// Kernels ----------------------------------------------------------------------------------------

// Checks images, the kernel and the number of prefix tokens, and returns their shape.
absl::Status patch_shape(const Dims& images, const Dims& kernel, int64_t prefix,
                         PatchShape* shape) {
  int64_t patches, tokens, length;
  TF_RETURN_IF_ERROR(check_kernel(kernel));
  TF_RETURN_IF_ERROR(check_images(images, kernel));
  TF_RETURN_IF_ERROR(count_patches(images, kernel[0], &patches));
  TF_RETURN_IF_ERROR(count_tokens(prefix, patches, &tokens));
  TF_RETURN_IF_ERROR(product("A patch", {kernel[0], kernel[1], kernel[2]}, &length));
  *shape = {images[0], images[1], images[2], images[3], kernel[0], kernel[3], prefix};
  return absl::OkStatus();
}

class PatchEmbedOpKernel : public OpKernel {
 public:
  explicit PatchEmbedOpKernel(OpKernelConstruction* c) : OpKernel(c) {
    tensorflow::DataType image_type, type;
    OP_REQUIRES_OK(c, c->GetAttr("I", &image_type));
    OP_REQUIRES_OK(c, c->GetAttr("T", &type));
    OP_REQUIRES_OK(c, get_rescaling(c, &scale_, &offset_));
    image_type_ = dtype_of(image_type);
    type_ = dtype_of(type);
  }

 protected:
  PatchEmbedProblem problem(const PatchShape& shape, const Tensor& images,
                            const Tensor& kernel) const {
    return {image_type_, type_, shape, images.data(), scale_, offset_, kernel.data()};
  }

 private:
  DType image_type_, type_;
  double scale_, offset_;
};

class PatchEmbedOp : public PatchEmbedOpKernel {
 public:
  using PatchEmbedOpKernel::PatchEmbedOpKernel;

  void Compute(OpKernelContext* c) override {
    const Tensor& images = c->input(0);
    const Tensor& kernel = c->input(1);
    const Tensor& bias = c->input(2);
    const Tensor *prefix, *position;
    OP_REQUIRES_OK(c, optional_input(c, "prefix", &prefix));
    OP_REQUIRES_OK(c, optional_input(c, "position", &position));
    if (prefix) OP_REQUIRES_OK(c, check_rank("prefix", dims_of(*prefix), "[T, D]"));
    const int64_t prefix_size = prefix ? prefix->dim_size(0) : 0;
    PatchShape shape;
    OP_REQUIRES_OK(c, patch_shape(dims_of(images), dims_of(kernel), prefix_size, &shape));
    const int64_t features = shape.features;
    OP_REQUIRES_OK(c, check_shape("bias", dims_of(bias), "[D]", {features}));
    if (prefix) {
      OP_REQUIRES_OK(c, check_shape("prefix", dims_of(*prefix), "[T, D]", {prefix_size, features}));
    }
    if (position) {
      OP_REQUIRES_OK(c, check_position(dims_of(*position), shape.tokens(), features));
    }
    Tensor* tokens;
    OP_REQUIRES_OK(c, allocate(c, 0, "tokens", {shape.batch, shape.tokens(), features}, &tokens));
    if (tokens->NumElements() == 0) return;
    const PatchEmbedForwardProblem forward = {
        problem(shape, images, kernel), bias.data(), prefix_size ? prefix->data() : nullptr,
        position ? position->data() : nullptr, tokens->data()};
    OP_REQUIRES_OK(c, status_of(c, patch_embed_forward(forward, execution_of(c)), "VitPatchEmbed"));
  }
};

// The gradient of the kernel or of the images, which is input 0 and output 0.
class PatchEmbedGradOpKernel : public PatchEmbedOpKernel {
 public:
  PatchEmbedGradOpKernel(OpKernelConstruction* c, int images, int kernel,
                         void* PatchEmbedGradientProblem::* output, const char* name)
      : PatchEmbedOpKernel(c), images_(images), kernel_(kernel), output_(output), name_(name) {}

  void Compute(OpKernelContext* c) override {
    const Tensor& images = c->input(images_);
    const Tensor& kernel = c->input(kernel_);
    const Tensor& d_tokens = c->input(2);
    PatchShape shape;
    OP_REQUIRES_OK(c, patch_shape(dims_of(images), dims_of(kernel), 0, &shape));
    const int64_t patches = shape.patches();
    OP_REQUIRES_OK(c, check_d_tokens(dims_of(d_tokens), shape.batch, patches, shape.features));
    shape.prefix = d_tokens.dim_size(1) - patches;
    Tensor* output;
    OP_REQUIRES_OK(c, allocate(c, 0, name_, dims_of(c->input(0)), &output));
    if (images.NumElements() == 0 || kernel.NumElements() == 0 || patches == 0) {
      fill_with_zeros(output);
      return;
    }
    PatchEmbedGradientProblem gradient = {problem(shape, images, kernel), d_tokens.data()};
    gradient.*output_ = output->data();
    OP_REQUIRES_OK(
        c, status_of(c, patch_embed_backward(gradient, execution_of(c)), type_string().c_str()));
  }

 private:
  const int images_, kernel_;
  void* PatchEmbedGradientProblem::* output_;
  const char* name_;
};

class PatchEmbedKernelGradOp : public PatchEmbedGradOpKernel {
 public:
  explicit PatchEmbedKernelGradOp(OpKernelConstruction* c)
      : PatchEmbedGradOpKernel(c, /*images=*/1, /*kernel=*/0, &PatchEmbedGradientProblem::d_kernel,
                               "d_kernel") {}
};

class PatchEmbedImagesGradOp : public PatchEmbedGradOpKernel {
 public:
  explicit PatchEmbedImagesGradOp(OpKernelConstruction* c)
      : PatchEmbedGradOpKernel(c, /*images=*/0, /*kernel=*/1, &PatchEmbedGradientProblem::d_images,
                               "d_images") {}
};

class PatchEmbedTablesGradOp : public OpKernel {
 public:
  explicit PatchEmbedTablesGradOp(OpKernelConstruction* c) : OpKernel(c) {
    tensorflow::DataType type;
    OP_REQUIRES_OK(c, c->GetAttr("T", &type));
    type_ = dtype_of(type);
  }

  void Compute(OpKernelContext* c) override {
    const Tensor *prefix, *position, *tokens;
    OP_REQUIRES_OK(c, optional_input(c, "prefix", &prefix));
    OP_REQUIRES_OK(c, optional_input(c, "position", &position));
    OP_REQUIRES_OK(c, c->input("d_tokens", &tokens));
    const Dims d_tokens = dims_of(*tokens);
    OP_REQUIRES_OK(c, check_rank("d_tokens", d_tokens, "[B, T + N, D]"));
    const int64_t count = d_tokens[1], features = d_tokens[2];
    if (prefix) OP_REQUIRES_OK(c, check_prefix(dims_of(*prefix), d_tokens));
    const int64_t prefix_size = prefix ? prefix->dim_size(0) : 0;
    if (position) {
      OP_REQUIRES_OK(c, check_position(dims_of(*position), count, features));
    }
    Tensor* outputs[3] = {};  // d_bias, d_prefix, d_position
    int next = 0;
    OP_REQUIRES_OK(c, allocate(c, next++, "d_bias", {features}, &outputs[0]));
    if (prefix) OP_REQUIRES_OK(c, allocate(c, next++, "d_prefix", dims_of(*prefix), &outputs[1]));
    if (position) {
      OP_REQUIRES_OK(c, allocate(c, next++, "d_position", dims_of(*position), &outputs[2]));
    }
    if (tokens->NumElements() == 0) {
      for (Tensor* output : outputs) {
        if (output) fill_with_zeros(output);
      }
      return;
    }
    PatchEmbedGradientProblem gradient = {};
    gradient.image_type = gradient.type = type_;
    // A grid of count x 1 patches of one pixel and no channels: only the tokens matter here.
    gradient.shape = {d_tokens[0], count - prefix_size, 1, 0, 1, features, prefix_size};
    gradient.d_tokens = tokens->data();
    gradient.d_bias = data(outputs[0]);
    gradient.d_prefix = prefix_size ? data(outputs[1]) : nullptr;
    gradient.d_position = data(outputs[2]);
    OP_REQUIRES_OK(c, status_of(c, patch_embed_backward(gradient, execution_of(c)),
                                "VitPatchEmbedTablesGrad"));
  }

 private:
  DType type_;
};

VIT_REGISTER_KERNEL(Name("VitPatchEmbed").Device(tensorflow::DEVICE_CPU), PatchEmbedOp);
VIT_REGISTER_KERNEL(Name("VitPatchEmbedKernelGrad").Device(tensorflow::DEVICE_CPU),
                    PatchEmbedKernelGradOp);
VIT_REGISTER_KERNEL(Name("VitPatchEmbedImagesGrad").Device(tensorflow::DEVICE_CPU),
                    PatchEmbedImagesGradOp);
VIT_REGISTER_KERNEL(Name("VitPatchEmbedTablesGrad").Device(tensorflow::DEVICE_CPU),
                    PatchEmbedTablesGradOp);

}  // namespace
}  // namespace vit
