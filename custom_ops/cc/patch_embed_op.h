// What the ops of the patch embedding check and do in every runtime that calls them: see
// attention_op.h.
#ifndef CUSTOM_OPS_CC_PATCH_EMBED_OP_H_
#define CUSTOM_OPS_CC_PATCH_EMBED_OP_H_

#include <optional>

#include "custom_ops/cc/array.h"
#include "custom_ops/cc/extract_patches_op.h"
#include "custom_ops/cc/patch_embed_problem.h"

namespace vit {

// Gets the dimensions of a table, whose last one is `features`; if this is not known, gets it too.
inline Status get_table(const char* name, const Array& array, ElementType type, const char* layout,
                        Dims* dims, int64_t* features) {
  VIT_RETURN_IF_ERROR(check_type(name, array, type, ", like kernel. Cast it."));
  VIT_RETURN_IF_ERROR(get_dims(name, array, layout, dims));
  Dims expected = *dims;
  expected.back() = *features;
  VIT_RETURN_IF_ERROR(check_shape(name, array, layout, expected));
  if (*features < 0) *features = dims->back();
  return {};
}

// The position has a row for each token.
inline Status get_position(const Array& array, ElementType type, int64_t tokens, Dims* dims,
                           int64_t* features) {
  VIT_RETURN_IF_ERROR(get_table("position", array, type, "[T + N, D]", dims, features));
  if (may_equal((*dims)[0], tokens)) return {};
  return invalid("position has another number of rows than there are tokens: it has shape ",
                 text(*dims), ", but it must be [T + N, D] = ", text({tokens, *features}), ".");
}

// Sets -1 if the number is not known.
inline Status count_tokens(int64_t prefix, int64_t patches, int64_t* count) {
  *count = -1;
  if (prefix < 0 || patches < 0 || !__builtin_add_overflow(prefix, patches, count)) return {};
  return invalid("A prefix of ", prefix, " and ", patches,
                 " patches are more than 2^63 - 1 tokens.");
}

// The inputs prefix and position, each none or one, come after `first` other inputs.
class OptionalTables {
 public:
  template <class Attributes>
  Status init(Attributes* attributes) {
    int64_t prefix, position;
    VIT_RETURN_IF_ERROR(attributes->get("num_prefix", &prefix));
    VIT_RETURN_IF_ERROR(attributes->get("num_position", &position));
    has_prefix_ = prefix == 1;
    has_position_ = position == 1;
    if (prefix <= 1 && position <= 1) return {};
    return invalid("num_prefix and num_position must be 0 or 1. Received: ", prefix, " and ",
                   position, ".");
  }

  int64_t count() const { return has_prefix_ + has_position_; }
  // Adds the prefix to the number of tokens, and gets what is not known of the two sizes.
  Status check(const Arrays& inputs, int first, ElementType type, int64_t* tokens,
               int64_t* features) const {
    Dims rows = {0};
    if (const Array* table = prefix(inputs, first)) {
      VIT_RETURN_IF_ERROR(get_table("prefix", *table, type, "[T, D]", &rows, features));
    }
    VIT_RETURN_IF_ERROR(count_tokens(rows[0], *tokens, tokens));
    if (const Array* table = position(inputs, first)) {
      VIT_RETURN_IF_ERROR(get_position(*table, type, *tokens, &rows, features));
      if (*tokens < 0) *tokens = rows[0];
    }
    return {};
  }
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

  template <class Attributes>
  Status init(Attributes* attributes) {
    std::optional<double> scale, offset;
    VIT_RETURN_IF_ERROR(attributes->get("I", &image_type_));
    VIT_RETURN_IF_ERROR(attributes->get("T", &type_));
    VIT_RETURN_IF_ERROR(attributes->get("scale", &scale));
    VIT_RETURN_IF_ERROR(attributes->get("offset", &offset));
    scale_ = scale.value_or(0);
    offset_ = offset.value_or(0);
    VIT_RETURN_IF_ERROR(check_float("kernel", type_));
    if (is_float(image_type_) || image_type_ == ElementType::kUint8) return {};
    return unsupported("images", name_of(image_type_), "uint8, ");
  }

 protected:
  // Gets the dimensions of both, and the number of patches.
  Status get_images_and_kernel(const Array& image_array, const Array& kernel_array, Dims* images,
                               Dims* kernel, int64_t* patches) const {
    VIT_RETURN_IF_ERROR(check_type("images", image_array, image_type_));
    VIT_RETURN_IF_ERROR(check_type("kernel", kernel_array, type_));
    VIT_RETURN_IF_ERROR(get_dims("kernel", kernel_array, "[P, P, C, D]", kernel));
    const Dims& k = *kernel;
    if (k[0] == 0 || k[1] == 0 || !may_equal(k[0], k[1])) {
      return invalid("kernel has shape ", text(k), ", but its first two dimensions must be one ",
                     "patch size P of at least 1.");
    }
    VIT_RETURN_IF_ERROR(get_dims("images", image_array, "[B, H, W, C]", images));
    if (!may_equal((*images)[3], k[2])) {
      return invalid("images have shape ", text(*images), ", but the kernel of shape ", text(k),
                     " is for ", k[2], " channels.");
    }
    int64_t length;
    VIT_RETURN_IF_ERROR(product("A patch", {k[0], k[1], k[2]}, &length));
    return count_patches(*images, k[0] < 0 ? k[1] : k[0], patches);
  }

  PatchEmbedProblem problem(const Array& images, const Array& kernel, int64_t prefix) const {
    const Dims &i = images.dims, &k = kernel.dims;
    const PatchShape shape = {i[0], i[1], i[2], i[3], k[0], k[3], prefix};
    return {
        dtype_of(image_type_), dtype_of(type_), shape, images.data, scale_, offset_, kernel.data};
  }

  ElementType image_type_, type_;
  double scale_, offset_;
};

// The inputs are images, kernel, bias and the optional tables.
class PatchEmbed : public PatchEmbedBody {
 public:
  static constexpr char kName[] = "VitPatchEmbed";

  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(PatchEmbedBody::init(attributes));
    return tables_.init(attributes);
  }

  Status check(const Arrays& inputs, Arrays* outputs) const {
    VIT_RETURN_IF_ERROR(check_count(inputs, 3 + tables_.count()));
    Dims images, kernel, bias;
    int64_t tokens;
    VIT_RETURN_IF_ERROR(get_images_and_kernel(inputs[0], inputs[1], &images, &kernel, &tokens));
    int64_t features = kernel[3];
    VIT_RETURN_IF_ERROR(get_table("bias", inputs[2], type_, "[D]", &bias, &features));
    VIT_RETURN_IF_ERROR(tables_.check(inputs, 3, type_, &tokens, &features));
    *outputs = {{type_, {images[0], tokens, features}, nullptr, "tokens"}};
    return {};
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
// other one is input 1, and d_tokens is input 2: any number of prefix tokens, then the patches.
class PatchEmbedGradient : public PatchEmbedBody {
 public:
  Status check(const Arrays& inputs, Arrays* outputs) const {
    VIT_RETURN_IF_ERROR(check_count(inputs, 3));
    Dims images, kernel, d_tokens;
    int64_t patches;
    VIT_RETURN_IF_ERROR(
        get_images_and_kernel(inputs[images_], inputs[1 - images_], &images, &kernel, &patches));
    VIT_RETURN_IF_ERROR(check_type("d_tokens", inputs[2], type_, ", like kernel. Cast it."));
    VIT_RETURN_IF_ERROR(get_dims("d_tokens", inputs[2], "[B, T + N, D]", &d_tokens));
    VIT_RETURN_IF_ERROR(
        check_shape("d_tokens", inputs[2], "[B, T + N, D]", {images[0], -1, kernel[3]}));
    if (d_tokens[1] >= 0 && d_tokens[1] < patches) {
      return invalid("d_tokens has shape ", text(d_tokens), ", with fewer tokens than there are ",
                     "patches, ", patches, ".");
    }
    *outputs = {images_ ? Array{type_, kernel, nullptr, "d_kernel"}
                        : Array{image_type_, images, nullptr, "d_images"}};
    return {};
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

  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(PatchEmbedGradient::init(attributes));
    if (is_float(image_type_)) return {};
    return invalid("images of uint8 have no gradient. Cast them to a float.");
  }
};

// The gradients of the bias and of the optional tables. The inputs are d_tokens and the tables.
class PatchEmbedTablesGrad {
 public:
  static constexpr char kName[] = "VitPatchEmbedTablesGrad";
  static constexpr int kConstantInput = -1;

  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(attributes->get("T", &type_));
    VIT_RETURN_IF_ERROR(tables_.init(attributes));
    return check_float("d_tokens", type_);
  }

  Status check(const Arrays& inputs, Arrays* outputs) const {
    VIT_RETURN_IF_ERROR(check_count(inputs, 1 + tables_.count()));
    Dims d_tokens;
    VIT_RETURN_IF_ERROR(check_type("d_tokens", inputs[0], type_));
    VIT_RETURN_IF_ERROR(get_dims("d_tokens", inputs[0], "[B, T + N, D]", &d_tokens));
    const int64_t tokens = d_tokens[1];
    int64_t features = d_tokens[2];
    *outputs = {{type_, {features}, nullptr, "d_bias"}};
    if (const Array* table = tables_.prefix(inputs, 1)) {
      Dims prefix;
      VIT_RETURN_IF_ERROR(get_table("prefix", *table, type_, "[T, D]", &prefix, &features));
      if (tokens >= 0 && prefix[0] > tokens) {
        return invalid("prefix has shape ", text(prefix), ", with more rows than d_tokens of ",
                       "shape ", text(d_tokens), " has tokens.");
      }
      outputs->push_back({type_, prefix, nullptr, "d_prefix"});
    }
    if (const Array* table = tables_.position(inputs, 1)) {
      Dims position;
      VIT_RETURN_IF_ERROR(get_position(*table, type_, tokens, &position, &features));
      outputs->push_back({type_, position, nullptr, "d_position"});
    }
    return {};
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
  ElementType type_;
  OptionalTables tables_;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_PATCH_EMBED_OP_H_
