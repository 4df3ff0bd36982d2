// What the patch ops do in every runtime that calls them: see attention_bodies.h.
#ifndef CUSTOM_OPS_TF_PATCH_BODIES_H_
#define CUSTOM_OPS_TF_PATCH_BODIES_H_

#include <vector>

#include "custom_ops/cc/patch_embed.h"
#include "custom_ops/tf/arrays.h"
#include "custom_ops/tf/patch_checks.h"

namespace vit {

// The inputs prefix and position, each none or one, come after `first` other inputs.
class OptionalTables {
 public:
  template <typename Context>
  absl::Status init(Context* c) {
    int64_t num_prefix, num_position;
    TF_RETURN_IF_ERROR(c->GetAttr("num_prefix", &num_prefix));
    TF_RETURN_IF_ERROR(c->GetAttr("num_position", &num_position));
    TF_RETURN_IF_ERROR(check_num("prefix", num_prefix));
    TF_RETURN_IF_ERROR(check_num("position", num_position));
    has_prefix_ = num_prefix == 1;
    has_position_ = num_position == 1;
    return absl::OkStatus();
  }

  int64_t count() const { return has_prefix_ + has_position_; }
  // Null if there is none.
  const Array* prefix(const Arrays& inputs, int first) const {
    return has_prefix_ ? &inputs[first] : nullptr;
  }
  const Array* position(const Arrays& inputs, int first) const {
    return has_position_ ? &inputs[first + has_prefix_] : nullptr;
  }

 private:
  bool has_prefix_, has_position_;
};

// The data of an optional input or output without elements is null.
inline void* data_of(const Array* array) {
  return array && array->elements() ? array->data : nullptr;
}

class PatchEmbedBody {
 public:
  static constexpr int kConstantInput = -1;

  template <typename Context>
  absl::Status init(Context* c) {
    std::vector<float> scale, offset;
    TF_RETURN_IF_ERROR(c->GetAttr("I", &image_type_));
    TF_RETURN_IF_ERROR(c->GetAttr("T", &type_));
    TF_RETURN_IF_ERROR(c->GetAttr("scale", &scale));
    TF_RETURN_IF_ERROR(c->GetAttr("offset", &offset));
    scale_ = sum_of(scale);
    offset_ = sum_of(offset);
    if (is_float(type_) && (is_float(image_type_) || image_type_ == tensorflow::DT_UINT8)) {
      return absl::OkStatus();
    }
    return invalid("T must be a float type, and I one or uint8. Received: T = ",
                   tensorflow::DataTypeString(type_),
                   ", I = ", tensorflow::DataTypeString(image_type_), ".");
  }

 protected:
  absl::Status check_images_and_kernel(const Array& images, const Array& kernel) const {
    int64_t length;
    TF_RETURN_IF_ERROR(check_type("images", images, image_type_));
    TF_RETURN_IF_ERROR(check_type("kernel", kernel, type_));
    TF_RETURN_IF_ERROR(check_kernel(kernel.dims));
    TF_RETURN_IF_ERROR(check_images(images.dims, kernel.dims));
    return product("A patch", {kernel.dims[0], kernel.dims[1], kernel.dims[2]}, &length);
  }

  PatchEmbedProblem problem(const Array& images, const Array& kernel, int64_t prefix) const {
    const Dims &i = images.dims, &k = kernel.dims;
    const PatchShape shape = {i[0], i[1], i[2], i[3], k[0], k[3], prefix};
    return {
        dtype_of(image_type_), dtype_of(type_), shape, images.data, scale_, offset_, kernel.data};
  }

  tensorflow::DataType image_type_, type_;
  double scale_, offset_;
};

// The inputs are images, kernel, bias and the optional tables.
class PatchEmbed : public PatchEmbedBody {
 public:
  static constexpr char kName[] = "VitPatchEmbed";

  template <typename Context>
  absl::Status init(Context* c) {
    TF_RETURN_IF_ERROR(PatchEmbedBody::init(c));
    return tables_.init(c);
  }

  absl::Status check(const Arrays& inputs, Arrays* outputs) const {
    TF_RETURN_IF_ERROR(check_count(inputs, 3 + tables_.count()));
    const Dims &images = inputs[0].dims, &kernel = inputs[1].dims;
    TF_RETURN_IF_ERROR(check_images_and_kernel(inputs[0], inputs[1]));
    const Array *prefix = tables_.prefix(inputs, 3), *position = tables_.position(inputs, 3);
    const int64_t features = kernel[3];
    int64_t prefix_size = 0, patches, tokens;
    if (prefix) {
      TF_RETURN_IF_ERROR(check_type("prefix", *prefix, type_));
      TF_RETURN_IF_ERROR(check_shape("prefix", prefix->dims, "[T, D]", {-1, features}));
      prefix_size = prefix->dims[0];
    }
    TF_RETURN_IF_ERROR(count_patches(images, kernel[0], &patches));
    TF_RETURN_IF_ERROR(count_tokens(prefix_size, patches, &tokens));
    TF_RETURN_IF_ERROR(check_type("bias", inputs[2], type_));
    TF_RETURN_IF_ERROR(check_shape("bias", inputs[2].dims, "[D]", {features}));
    if (position) {
      TF_RETURN_IF_ERROR(check_type("position", *position, type_));
      TF_RETURN_IF_ERROR(check_position(position->dims, tokens, features));
    }
    *outputs = {{type_, {images[0], tokens, features}, nullptr, "tokens"}};
    return absl::OkStatus();
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (outputs[0].elements() == 0) return {};
    const Array *prefix = tables_.prefix(inputs, 3), *position = tables_.position(inputs, 3);
    const int64_t prefix_size = prefix ? prefix->dims[0] : 0;
    return patch_embed_forward({problem(inputs[0], inputs[1], prefix_size), inputs[2].data,
                                data_of(prefix), data_of(position), outputs[0].data},
                               execution);
  }

 private:
  OptionalTables tables_;
};

// The gradient of the kernel or of the images: of input 0, which has the shape of output 0. The
// other one is input 1, and d_tokens is input 2.
class PatchEmbedGradient : public PatchEmbedBody {
 public:
  absl::Status check(const Arrays& inputs, Arrays* outputs) const {
    TF_RETURN_IF_ERROR(check_count(inputs, 3));
    const Array &images = inputs[images_], &kernel = inputs[1 - images_];
    int64_t patches;
    TF_RETURN_IF_ERROR(check_images_and_kernel(images, kernel));
    TF_RETURN_IF_ERROR(count_patches(images.dims, kernel.dims[0], &patches));
    TF_RETURN_IF_ERROR(check_type("d_tokens", inputs[2], type_));
    TF_RETURN_IF_ERROR(check_d_tokens(inputs[2].dims, images.dims[0], patches, kernel.dims[3]));
    *outputs = {{inputs[0].type, inputs[0].dims, nullptr, images_ ? "d_kernel" : "d_images"}};
    return absl::OkStatus();
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    const Array &images = inputs[images_], &kernel = inputs[1 - images_];
    PatchEmbedGradientProblem gradient = {problem(images, kernel, 0), inputs[2].data};
    if (images.elements() == 0 || kernel.elements() == 0 || gradient.shape.patches() == 0) {
      return fill_with_zeros(outputs, execution);
    }
    gradient.shape.prefix = inputs[2].dims[1] - gradient.shape.patches();
    (images_ ? gradient.d_kernel : gradient.d_images) = outputs[0].data;
    return patch_embed_backward(gradient, execution);
  }

 protected:
  explicit PatchEmbedGradient(int images) : images_(images) {}

 private:
  const int images_;  // the input that holds the images
};

class PatchEmbedKernelGrad : public PatchEmbedGradient {
 public:
  static constexpr char kName[] = "VitPatchEmbedKernelGrad";
  PatchEmbedKernelGrad() : PatchEmbedGradient(/*images=*/1) {}
};

class PatchEmbedImagesGrad : public PatchEmbedGradient {
 public:
  static constexpr char kName[] = "VitPatchEmbedImagesGrad";
  PatchEmbedImagesGrad() : PatchEmbedGradient(/*images=*/0) {}

  template <typename Context>
  absl::Status init(Context* c) {
    TF_RETURN_IF_ERROR(PatchEmbedGradient::init(c));
    if (is_float(image_type_)) return absl::OkStatus();
    return invalid("I must be a float type. Received: ", tensorflow::DataTypeString(image_type_),
                   ".");
  }
};

// The gradients of the bias and of the optional tables. The inputs are d_tokens and the tables.
class PatchEmbedTablesGrad {
 public:
  static constexpr char kName[] = "VitPatchEmbedTablesGrad";
  static constexpr int kConstantInput = -1;

  template <typename Context>
  absl::Status init(Context* c) {
    TF_RETURN_IF_ERROR(c->GetAttr("T", &type_));
    TF_RETURN_IF_ERROR(tables_.init(c));
    if (is_float(type_)) return absl::OkStatus();
    return invalid("T must be a float type. Received: ", tensorflow::DataTypeString(type_), ".");
  }

  absl::Status check(const Arrays& inputs, Arrays* outputs) const {
    TF_RETURN_IF_ERROR(check_count(inputs, 1 + tables_.count()));
    const Dims& d_tokens = inputs[0].dims;
    TF_RETURN_IF_ERROR(check_type("d_tokens", inputs[0], type_));
    TF_RETURN_IF_ERROR(check_rank("d_tokens", d_tokens, "[B, T + N, D]"));
    *outputs = {{type_, {d_tokens[2]}, nullptr, "d_bias"}};
    if (const Array* prefix = tables_.prefix(inputs, 1)) {
      TF_RETURN_IF_ERROR(check_type("prefix", *prefix, type_));
      TF_RETURN_IF_ERROR(check_prefix(prefix->dims, d_tokens));
      outputs->push_back({type_, prefix->dims, nullptr, "d_prefix"});
    }
    if (const Array* position = tables_.position(inputs, 1)) {
      TF_RETURN_IF_ERROR(check_type("position", *position, type_));
      TF_RETURN_IF_ERROR(check_position(position->dims, d_tokens[1], d_tokens[2]));
      outputs->push_back({type_, position->dims, nullptr, "d_position"});
    }
    return absl::OkStatus();
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    const Array& d_tokens = inputs[0];
    if (d_tokens.elements() == 0) return fill_with_zeros(outputs, execution);
    // The outputs are like the inputs, with d_bias in the place of d_tokens.
    const Array *d_prefix = tables_.prefix(outputs, 1), *d_position = tables_.position(outputs, 1);
    const int64_t prefix_size = d_prefix ? d_prefix->dims[0] : 0;
    PatchEmbedGradientProblem gradient = {};
    gradient.image_type = gradient.type = dtype_of(type_);
    // A grid of patches x 1 patches of one pixel and no channels: only the tokens matter here.
    const int64_t patches = d_tokens.dims[1] - prefix_size;
    gradient.shape = {d_tokens.dims[0], patches, 1, 0, 1, d_tokens.dims[2], prefix_size};
    gradient.d_tokens = d_tokens.data;
    gradient.d_bias = outputs[0].data;
    gradient.d_prefix = data_of(d_prefix);
    gradient.d_position = data_of(d_position);
    return patch_embed_backward(gradient, execution);
  }

 private:
  tensorflow::DataType type_;
  OptionalTables tables_;
};

// Copies images to patches, or back.
class PatchCopyBody {
 public:
  template <typename Context>
  absl::Status init(Context* c) {
    TF_RETURN_IF_ERROR(c->GetAttr("patch_size", &patch_size_));
    TF_RETURN_IF_ERROR(c->GetAttr("T", &type_));
    if (patch_size_ < 1 || tensorflow::DataTypeSize(type_) == 0) {
      return invalid("patch_size must be at least 1 and T of fixed size. Received: patch_size = ",
                     patch_size_, ", T = ", tensorflow::DataTypeString(type_), ".");
    }
    return absl::OkStatus();
  }

 protected:
  PatchCopyProblem problem(const Dims& images, const Array& from, const Array& to) const {
    const PatchShape shape = {images[0], images[1], images[2], images[3], patch_size_, 0, 0};
    return {shape, tensorflow::DataTypeSize(type_), from.data, to.data};
  }

  int64_t patch_size_;
  tensorflow::DataType type_;
};

class ExtractPatches : public PatchCopyBody {
 public:
  static constexpr char kName[] = "VitExtractPatches";
  static constexpr int kConstantInput = -1;

  absl::Status check(const Arrays& inputs, Arrays* outputs) const {
    Dims patches;
    TF_RETURN_IF_ERROR(check_count(inputs, 1));
    TF_RETURN_IF_ERROR(check_type("images", inputs[0], type_));
    TF_RETURN_IF_ERROR(patches_of(inputs[0].dims, patch_size_, &patches));
    *outputs = {{type_, patches, nullptr, "patches"}};
    return absl::OkStatus();
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (outputs[0].elements() == 0) return {};
    return extract_patches(problem(inputs[0].dims, inputs[0], outputs[0]), execution);
  }
};

// The inputs are d_patches and the shape of the images.
class ExtractPatchesGrad : public PatchCopyBody {
 public:
  static constexpr char kName[] = "VitExtractPatchesGrad";
  // The shape of the output depends on the value of this input.
  static constexpr int kConstantInput = 1;

  absl::Status check(const Arrays& inputs, Arrays* outputs) const {
    TF_RETURN_IF_ERROR(check_count(inputs, 2));
    TF_RETURN_IF_ERROR(check_type("d_patches", inputs[0], type_));
    TF_RETURN_IF_ERROR(check_type("image_shape", inputs[1], tensorflow::DT_INT64));
    TF_RETURN_IF_ERROR(check_shape("image_shape", inputs[1].dims, "[4]", {4}));
    const auto* sizes = static_cast<const int64_t*>(inputs[1].data);
    const Dims images(sizes, sizes + 4);
    for (int64_t size : images) {
      if (size < 0) {
        return invalid("image_shape must hold sizes of at least 0. Received: ", size, ".");
      }
    }
    Dims patches;
    TF_RETURN_IF_ERROR(patches_of(images, patch_size_, &patches));
    TF_RETURN_IF_ERROR(check_shape("d_patches", inputs[0].dims, "[B, N, P P C]", patches));
    *outputs = {{type_, images, nullptr, "d_images"}};
    return absl::OkStatus();
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (inputs[0].elements() == 0) return fill_with_zeros(outputs, execution);
    return restore_patches(problem(outputs[0].dims, inputs[0], outputs[0]), execution);
  }
};

}  // namespace vit

#endif  // CUSTOM_OPS_TF_PATCH_BODIES_H_
