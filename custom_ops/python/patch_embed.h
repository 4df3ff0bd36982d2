// The patch functions of the module; their docstrings are in kernels_module.cc.
#ifndef CUSTOM_OPS_PYTHON_PATCH_EMBED_H_
#define CUSTOM_OPS_PYTHON_PATCH_EMBED_H_

#include <string>
#include <vector>

#include "custom_ops/cpu/patch_embed/patch_embed.h"
#include "custom_ops/python/arrays.h"
#include "custom_ops/python/threads.h"

namespace vit {

// Images, the kernel that embeds them, and the other arguments of patch_embed.
struct Patches {
  py::array images, kernel;
  PatchEmbedProblem problem{};

  Patches(const py::object& image_object, const py::object& kernel_object, double scale,
          double offset, int64_t prefix)
      : images(dense("images", image_object)), kernel(dense("kernel", kernel_object)) {
    problem.image_type = type_of("images", images, true);
    problem.type = type_of("kernel", kernel);
    check_isa();
    if (images.ndim() != 4) {
      throw py::value_error("images must be [B, H, W, C]. Received shape: " + shape_text(images) +
                            ".");
    }
    if (kernel.ndim() != 4 || kernel.shape(0) != kernel.shape(1) || kernel.shape(0) < 1 ||
        kernel.shape(2) != images.shape(3)) {
      throw py::value_error("kernel must be [P, P, C, D] with the channels of images, " +
                            std::to_string(images.shape(3)) +
                            ". Received shape: " + shape_text(kernel) + ".");
    }
    PatchShape& shape = problem.shape;
    shape = {images.shape(0), images.shape(1), images.shape(2), images.shape(3),
             kernel.shape(0), kernel.shape(3), prefix};
    if (shape.height < shape.patch_size || shape.width < shape.patch_size) {
      throw py::value_error("images of " + std::to_string(shape.height) + " x " +
                            std::to_string(shape.width) + " pixels hold no patch of " +
                            std::to_string(shape.patch_size) + " x " +
                            std::to_string(shape.patch_size) + ".");
    }
    problem.images = images.data();
    problem.scale = scale;
    problem.offset = offset;
    problem.kernel = kernel.data();
  }

  // A table of the kernel's dtype, or None.
  const void* table(const char* name, const py::object& object, py::array& keep,
                    const std::vector<int64_t>& expected) const {
    if (object.is_none()) return nullptr;
    keep = dense(name, object);
    check_type(name, keep, "kernel", kernel);
    check_shape(name, keep, expected);
    return keep.data();
  }
};

inline py::array patch_embed(const py::object& images, const py::object& kernel,
                             const py::object& bias, double scale, double offset,
                             const py::object& prefix, const py::object& position, int threads) {
  int64_t rows = 0;
  if (!prefix.is_none()) {
    const py::array table = dense("prefix", prefix);
    if (table.ndim() != 2) {
      throw py::value_error("prefix must be [T, D]. Received shape: " + shape_text(table) + ".");
    }
    rows = table.shape(0);
  }
  const Patches p(images, kernel, scale, offset, rows);
  const PatchShape& shape = p.problem.shape;
  py::array bias_array, prefix_array, position_array;
  const int64_t width = shape.features;
  PatchEmbedForwardProblem problem{};
  static_cast<PatchEmbedProblem&>(problem) = p.problem;
  problem.bias = p.table("bias", bias, bias_array, {width});
  if (!problem.bias) throw py::value_error("bias must be [D]. Received: None.");
  problem.prefix = p.table("prefix", prefix, prefix_array, {rows, width});
  problem.position = p.table("position", position, position_array, {shape.tokens(), width});
  py::array tokens = empty({shape.batch, shape.tokens(), width}, p.kernel.dtype());
  problem.tokens = tokens.mutable_data();
  run_on_threads(threads, patch_embed_forward, problem);
  return tokens;
}

inline py::dict patch_embed_gradient(const py::object& images, const py::object& kernel,
                                     const py::object& d_tokens, double scale, double offset,
                                     int64_t prefix, int threads) {
  if (prefix < 0) {
    throw py::value_error("prefix must be a number of tokens. Received: " + std::to_string(prefix) +
                          ".");
  }
  const Patches p(images, kernel, scale, offset, prefix);
  const PatchShape& shape = p.problem.shape;
  const int64_t width = shape.features;
  py::array d = dense("d_tokens", d_tokens);
  check_type("d_tokens", d, "kernel", p.kernel);
  check_shape("d_tokens", d, {shape.batch, shape.tokens(), width});
  py::dict found;
  const auto add = [&found](const char* name, const std::vector<int64_t>& size,
                            const py::dtype& type) {
    py::array array = empty(size, type);
    found[name] = array;
    return array.mutable_data();
  };
  const py::dtype type = p.kernel.dtype();
  PatchEmbedGradientProblem problem = {p.problem, d.data()};
  if (p.problem.image_type != DType::kUint8) {
    problem.d_images = add("images", shape_of(p.images), p.images.dtype());
  }
  problem.d_kernel = add("kernel", shape_of(p.kernel), type);
  problem.d_bias = add("bias", {width}, type);
  problem.d_prefix = prefix ? add("prefix", {prefix, width}, type) : nullptr;
  problem.d_position = add("position", {shape.tokens(), width}, type);
  run_on_threads(threads, patch_embed_backward, problem);
  return found;
}

inline py::array extract(const py::object& object, int64_t patch_size, int threads) {
  const py::array images = dense("images", object);
  check_isa();
  // Elements are copied as bytes. Copied pointers to Python objects would not count as references.
  if (images.dtype().attr("hasobject").cast<bool>()) {
    throw py::value_error("images has dtype " +
                          py::str(images.dtype().attr("name")).cast<std::string>() +
                          ", whose elements are Python objects. Cast it to numbers.");
  }
  if (images.ndim() != 4 || patch_size < 1 || images.shape(1) < patch_size ||
      images.shape(2) < patch_size) {
    throw py::value_error("images must be [B, H, W, C] with sides of at least patch_size=" +
                          std::to_string(patch_size) +
                          ", which is at least 1. Received shape: " + shape_text(images) + ".");
  }
  const PatchShape shape{
      images.shape(0), images.shape(1), images.shape(2), images.shape(3), patch_size, 0, 0};
  py::array patches = empty({shape.batch, shape.patches(), shape.patch_elements()}, images.dtype());
  const PatchCopyProblem problem = {shape, images.itemsize(), images.data(),
                                    patches.mutable_data()};
  run_on_threads(threads, extract_patches, problem);
  return patches;
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_PATCH_EMBED_H_
