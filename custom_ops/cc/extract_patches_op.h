// What the ops that cut and restore patches check and do in every runtime that calls them: see
// attention_op.h.
#ifndef CUSTOM_OPS_CC_EXTRACT_PATCHES_OP_H_
#define CUSTOM_OPS_CC_EXTRACT_PATCHES_OP_H_

#include "custom_ops/cc/array.h"
#include "custom_ops/cc/patch_embed_problem.h"

namespace vit {

// Sets -1 if the number is not known.
inline Status count_patches(const Dims& images, int64_t patch_size, int64_t* count) {
  *count = -1;
  if (images[1] < 0 || images[2] < 0 || patch_size < 0) return {};
  return product("A grid of patches", {images[1] / patch_size, images[2] / patch_size}, count);
}

// Gets [B, N, P P C].
inline Status patches_of(const Dims& images, int64_t patch_size, Dims* patches) {
  if (patch_size < 1) return invalid("patch_size must be at least 1. Received: ", patch_size, ".");
  *patches = {images[0], -1, -1};
  VIT_RETURN_IF_ERROR(count_patches(images, patch_size, &(*patches)[1]));
  return product("A patch", {patch_size, patch_size, images[3]}, &(*patches)[2]);
}

// The ops accept images without a patch, as saved models may. Functions of Python refuse them.
inline Status check_holds_patch(const Dims& images, int64_t patch_size) {
  if (images[1] >= patch_size && images[2] >= patch_size) return {};
  return invalid("images of ", images[1], " x ", images[2], " pixels hold no patch of ", patch_size,
                 " x ", patch_size, ". Resize them, or use a smaller patch size.");
}

// Copies images to patches, or back.
class PatchCopyBody {
 public:
  template <class Attributes>
  Status init(Attributes* attributes) {
    VIT_RETURN_IF_ERROR(attributes->get("patch_size", &patch_size_));
    return attributes->get("T", &type_);
  }

 protected:
  PatchCopyProblem problem(const Dims& images, const Array& from, const Array& to) const {
    const PatchShape shape = {images[0], images[1], images[2], images[3], patch_size_, 0, 0};
    return {shape, size_of(type_), from.data, to.data};
  }

  int64_t patch_size_;
  ElementType type_;
};

class ExtractPatches : public PatchCopyBody {
 public:
  static constexpr char kName[] = "VitExtractPatches";
  static constexpr int kConstantInput = -1;

  Status check(const Arrays& inputs, Arrays* outputs) const {
    Dims images, patches;
    VIT_RETURN_IF_ERROR(check_count(inputs, 1));
    VIT_RETURN_IF_ERROR(check_type("images", inputs[0], type_));
    VIT_RETURN_IF_ERROR(get_dims("images", inputs[0], "[B, H, W, C]", &images));
    VIT_RETURN_IF_ERROR(patches_of(images, patch_size_, &patches));
    *outputs = {{type_, patches, nullptr, "patches"}};
    return {};
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

  Status check(const Arrays& inputs, Arrays* outputs) const {
    Dims images, patches;
    VIT_RETURN_IF_ERROR(check_count(inputs, 2));
    VIT_RETURN_IF_ERROR(check_type("d_patches", inputs[0], type_));
    VIT_RETURN_IF_ERROR(check_type("image_shape", inputs[1], ElementType::kInt64));
    VIT_RETURN_IF_ERROR(check_shape("image_shape", inputs[1], "the sizes of [B, H, W, C]", {4}));
    VIT_RETURN_IF_ERROR(get_images(inputs[1], &images));
    VIT_RETURN_IF_ERROR(patches_of(images, patch_size_, &patches));
    VIT_RETURN_IF_ERROR(check_shape("d_patches", inputs[0], "[B, N, P P C]", patches));
    *outputs = {{type_, images, nullptr, "d_images"}};
    return {};
  }

  template <class DeviceExecution>
  typename DeviceExecution::Result run(const Arrays& inputs, const Arrays& outputs,
                                       const DeviceExecution& execution) const {
    if (inputs[0].elements() == 0) return fill_with_zeros(outputs, execution);
    return restore_patches(problem(outputs[0].dims, inputs[0], outputs[0]), execution);
  }

 private:
  static Status get_images(const Array& shape, Dims* images) {
    *images = shape.known_values;
    images->resize(4, -1);
    if (!shape.data) return {};
    const auto* sizes = static_cast<const int64_t*>(shape.data);
    images->assign(sizes, sizes + 4);
    for (int64_t size : *images) {
      if (size >= 0) continue;
      return invalid("image_shape must hold sizes of at least 0. Received: ", size, ".");
    }
    return {};
  }
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_EXTRACT_PATCHES_OP_H_
