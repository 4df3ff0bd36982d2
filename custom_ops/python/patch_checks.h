// Checks the arguments of the patch functions, in whichever memory they are, and describes the
// problem.
#ifndef CUSTOM_OPS_PYTHON_PATCH_CHECKS_H_
#define CUSTOM_OPS_PYTHON_PATCH_CHECKS_H_

#include <string>
#include <utility>

#include "custom_ops/cc/patch_embed.h"
#include "custom_ops/python/tensor.h"

namespace vit {

// Images, the kernel that embeds them, and the numbers that rescale the pixels.
struct Patches {
  Tensor images, kernel;
  PatchEmbedProblem problem{};

  // `prefix` is the number of prefix tokens.
  Patches(Tensor image_tensor, Tensor kernel_tensor, double scale, double offset, int64_t prefix)
      : images(std::move(image_tensor)), kernel(std::move(kernel_tensor)) {
    problem.image_type = type_of(images, true);
    problem.type = type_of(kernel);
    if (images.rank() != 4) {
      throw py::value_error(
          "images must be [B, H, W, C]. Received shape: " + shape_text(images.shape) + ".");
    }
    const int64_t channels = images.shape[3];
    if (kernel.rank() != 4 || kernel.shape[0] != kernel.shape[1] || kernel.shape[0] < 1 ||
        kernel.shape[2] != channels) {
      throw py::value_error("kernel must be [P, P, C, D] with the channels of images, " +
                            std::to_string(channels) +
                            ". Received shape: " + shape_text(kernel.shape) + ".");
    }
    if (prefix < 0) {
      throw py::value_error(
          "prefix must be a number of tokens. Received: " + std::to_string(prefix) + ".");
    }
    PatchShape& shape = problem.shape;
    shape = {images.shape[0], images.shape[1], images.shape[2], channels,
             kernel.shape[0], kernel.shape[3], prefix};
    if (shape.height < shape.patch_size || shape.width < shape.patch_size) {
      throw py::value_error("images of " + std::to_string(shape.height) + " x " +
                            std::to_string(shape.width) + " pixels hold no patch of " +
                            std::to_string(shape.patch_size) + " x " +
                            std::to_string(shape.patch_size) + ".");
    }
    problem.images = images.data;
    problem.scale = scale;
    problem.offset = offset;
    problem.kernel = kernel.data;
  }

  std::vector<int64_t> tokens_shape() const {
    return {problem.shape.batch, problem.shape.tokens(), problem.shape.features};
  }
  std::vector<int64_t> position_shape() const {
    return {problem.shape.tokens(), problem.shape.features};
  }
  std::vector<int64_t> prefix_shape() const {
    return {problem.shape.prefix, problem.shape.features};
  }

  // Tokens, or a table that is added to them: they have the dtype of the kernel.
  void check(const Tensor& tensor, const std::vector<int64_t>& expected) const {
    check_type(tensor, kernel);
    check_shape(tensor, expected);
  }
};

// The shape of a copy between images and patches.
inline PatchShape copy_shape(const std::vector<int64_t>& images, int64_t patch_size) {
  if (images.size() != 4 || patch_size < 1 || images[1] < patch_size || images[2] < patch_size) {
    throw py::value_error("images must be [B, H, W, C] with sides of at least patch_size=" +
                          std::to_string(patch_size) +
                          ", which is at least 1. Received shape: " + shape_text(images) + ".");
  }
  return {images[0], images[1], images[2], images[3], patch_size, 0, 0};
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_PATCH_CHECKS_H_
