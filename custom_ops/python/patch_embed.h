// The patch functions of the module; their docstrings are in kernels_module.cc.
#ifndef CUSTOM_OPS_PYTHON_PATCH_EMBED_H_
#define CUSTOM_OPS_PYTHON_PATCH_EMBED_H_

#include <string>
#include <vector>

#include "custom_ops/cpu/patch_embed/patch_embed.h"
#include "custom_ops/python/arrays.h"
#include "custom_ops/python/patch_checks.h"
#include "custom_ops/python/threads.h"

namespace vit {

// A table of the kernel's dtype, or null for None.
inline const void* table(const Patches& patches, const char* name, const py::object& object,
                         py::array& keep, const std::vector<int64_t>& expected) {
  if (object.is_none()) return nullptr;
  keep = dense(name, object);
  patches.check(tensor(name, keep), expected);
  return keep.data();
}

inline py::array patch_embed(const py::object& images, const py::object& kernel,
                             const py::object& bias, double scale, double offset,
                             const py::object& prefix, const py::object& position,
                             const py::object& threads) {
  int64_t rows = 0;
  if (!prefix.is_none()) {
    const py::array table = dense("prefix", prefix);
    if (table.ndim() != 2) {
      throw py::value_error(
          "prefix must be [T, D]. Received shape: " + shape_text(shape_of(table)) + ".");
    }
    rows = table.shape(0);
  }
  const Argument pixels("images", images), weights("kernel", kernel);
  const Patches p(pixels.tensor, weights.tensor, scale, offset, rows);
  py::array bias_array, prefix_array, position_array;
  PatchEmbedForwardProblem problem{};
  static_cast<PatchEmbedProblem&>(problem) = p.problem;
  problem.bias = table(p, "bias", bias, bias_array, {p.problem.shape.features});
  if (!problem.bias) throw py::value_error("bias must be [D]. Received: None.");
  problem.prefix = table(p, "prefix", prefix, prefix_array, p.prefix_shape());
  problem.position = table(p, "position", position, position_array, p.position_shape());
  py::array tokens = empty(p.tokens_shape(), weights.array.dtype());
  problem.tokens = tokens.mutable_data();
  run_on_threads(threads, patch_embed_forward, problem);
  return tokens;
}

inline py::dict patch_embed_gradient(const py::object& images, const py::object& kernel,
                                     const py::object& d_tokens, double scale, double offset,
                                     int64_t prefix, const py::object& threads) {
  const Argument pixels("images", images), weights("kernel", kernel), d("d_tokens", d_tokens);
  const Patches p(pixels.tensor, weights.tensor, scale, offset, prefix);
  p.check(d.tensor, p.tokens_shape());
  py::dict found;
  const auto add = [&found](const char* name, const std::vector<int64_t>& size,
                            const py::dtype& type) {
    py::array array = empty(size, type);
    found[name] = array;
    return array.mutable_data();
  };
  const py::dtype type = weights.array.dtype();
  PatchEmbedGradientProblem problem = {p.problem, d.array.data()};
  if (p.problem.image_type != DType::kUint8) {
    problem.d_images = add("images", p.images.shape, pixels.array.dtype());
  }
  problem.d_kernel = add("kernel", p.kernel.shape, type);
  problem.d_bias = add("bias", {p.problem.shape.features}, type);
  problem.d_prefix = prefix ? add("prefix", p.prefix_shape(), type) : nullptr;
  problem.d_position = add("position", p.position_shape(), type);
  run_on_threads(threads, patch_embed_backward, problem);
  return found;
}

inline py::array extract(const py::object& object, int64_t patch_size, const py::object& threads) {
  const py::array images = dense("images", object);
  // Elements are copied as bytes. Copied pointers to Python objects would not count as references.
  if (images.dtype().attr("hasobject").cast<bool>()) {
    throw py::value_error("images has dtype " +
                          py::str(images.dtype().attr("name")).cast<std::string>() +
                          ", whose elements are Python objects. Cast it to numbers.");
  }
  const PatchShape shape = copy_shape(shape_of(images), patch_size);
  py::array patches = empty({shape.batch, shape.patches(), shape.patch_elements()}, images.dtype());
  const PatchCopyProblem problem = {shape, images.itemsize(), images.data(),
                                    patches.mutable_data()};
  run_on_threads(threads, extract_patches, problem);
  return patches;
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_PATCH_EMBED_H_
