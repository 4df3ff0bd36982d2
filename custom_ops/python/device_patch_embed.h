// The patch functions of the module for GPUs; the docstrings are in cuda_module.cc.
#ifndef CUSTOM_OPS_PYTHON_DEVICE_PATCH_EMBED_H_
#define CUSTOM_OPS_PYTHON_DEVICE_PATCH_EMBED_H_

#include "custom_ops/cuda/patch_embed.h"
#include "custom_ops/python/device.h"
#include "custom_ops/python/patch_checks.h"

namespace vit {

// Images and the kernel that embeds them.
class DevicePatchEmbed {
 public:
  DevicePatchEmbed(const DeviceArray& images, const DeviceArray& kernel, double scale,
                   double offset, int64_t prefix)
      : patches_(computable("images", images, true), computable("kernel", kernel), scale, offset,
                 prefix) {}

  void forward(const DeviceExecution& execution, const DeviceArray& bias, const DeviceArray& tokens,
               const DeviceArray* prefix, const DeviceArray* position) const {
    if (!prefix && patches_.problem.shape.prefix) {
      throw py::value_error("prefix must have shape " + shape_text(patches_.prefix_shape()) +
                            ". Received: None.");
    }
    PatchEmbedForwardProblem problem{};
    static_cast<PatchEmbedProblem&>(problem) = patches_.problem;
    problem.bias = checked("bias", &bias, {patches_.problem.shape.features});
    problem.prefix = checked("prefix", prefix, patches_.prefix_shape());
    problem.position = checked("position", position, patches_.position_shape());
    problem.tokens = checked("tokens", &tokens, patches_.tokens_shape());
    execution.run("patch_embed forward", patch_embed_forward, problem);
  }

  void gradient(const DeviceExecution& execution, const DeviceArray& d_tokens,
                const DeviceArray* images, const DeviceArray* kernel, const DeviceArray* bias,
                const DeviceArray* prefix, const DeviceArray* position) const {
    PatchEmbedGradientProblem problem{};
    static_cast<PatchEmbedProblem&>(problem) = patches_.problem;
    problem.d_tokens = checked("d_tokens", &d_tokens, patches_.tokens_shape());
    if (images) {
      if (patches_.problem.image_type == DType::kUint8) {
        throw py::value_error("images of uint8 have no gradient.");
      }
      check_type(images->as("the gradient of images"), patches_.images);
      check_shape(images->as("the gradient of images"), patches_.images.shape);
      problem.d_images = images->data();
    }
    problem.d_kernel = checked("kernel", kernel, patches_.kernel.shape);
    problem.d_bias = checked("bias", bias, {patches_.problem.shape.features});
    problem.d_prefix = checked("prefix", prefix, patches_.prefix_shape());
    problem.d_position = checked("position", position, patches_.position_shape());
    execution.run("patch_embed gradient", patch_embed_backward, problem);
  }

 private:
  // The memory of tokens or of a table; null for None.
  void* checked(const char* name, const DeviceArray* array,
                const std::vector<int64_t>& shape) const {
    if (!array) return nullptr;
    patches_.check(array->as(name), shape);
    return array->data();
  }

  Patches patches_;
};

// Copies images to patches, or with `restore` patches to images.
inline void copy_patches(const DeviceExecution& execution, const DeviceArray& images,
                         const DeviceArray& patches, int64_t patch_size, bool restore) {
  const PatchShape shape = copy_shape(images.shape(), patch_size);
  check_type(patches.as("patches"), images.as("images"));
  check_shape(patches.as("patches"), {shape.batch, shape.patches(), shape.patch_elements()});
  if (restore) {
    const PatchCopyProblem problem = {shape, images.element_size(), patches.data(), images.data()};
    execution.run("restore_patches", restore_patches, problem);
  } else {
    const PatchCopyProblem problem = {shape, images.element_size(), images.data(), patches.data()};
    execution.run("extract_patches", extract_patches, problem);
  }
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_DEVICE_PATCH_EMBED_H_
