// The functions of the module for NumPy; their docstrings are in kernels_module.cc.
#ifndef CUSTOM_OPS_PYTHON_NUMPY_OPS_H_
#define CUSTOM_OPS_PYTHON_NUMPY_OPS_H_

#include <string>
#include <vector>

#include "custom_ops/cpu/attention/cpu_attention.h"
#include "custom_ops/cpu/patch_embed/cpu_patch_embed.h"
#include "custom_ops/python/numpy_arrays.h"

namespace vit {

// The inputs that all attention ops have, and their attributes.
struct AttentionArguments {
  std::vector<Argument> inputs;
  Options options;

  AttentionArguments(const py::object& qkv, int64_t num_heads, const py::object& bias,
                     const py::object& axis, const py::object& scale)
      : inputs{{"qkv", qkv}},
        options(attention_options(inputs[0].array, num_heads, !bias.is_none(), axis, scale)) {
    if (bias.is_none()) return;
    const Argument given("bias", bias);
    raise_if_error(check_float("bias", given.array.type));
    const char* type = name_of(accumulator(inputs[0].array.type));
    inputs.emplace_back("bias", given.numpy.attr("astype")(type));
  }

  template <class Body>
  std::vector<py::array> run(const py::object& threads) const {
    return vit::run(CheckedCall<Body>(options, arrays_of(inputs)), inputs, threads);
  }
};

inline py::tuple attention(const py::object& qkv, int64_t num_heads, const py::object& bias,
                           const py::object& axis, const py::object& scale,
                           const py::object& threads) {
  const AttentionArguments arguments(qkv, num_heads, bias, axis, scale);
  const auto results = arguments.run<Attention>(threads);
  return py::make_tuple(results[0], results[1]);
}

// Body: AttentionGrad or AttentionBiasGrad.
template <class Body>
py::array gradient(const py::object& qkv, int64_t num_heads, const py::object& out,
                   const py::object& statistics, const py::object& d_out, const py::object& bias,
                   const py::object& axis, const py::object& scale, const py::object& threads) {
  AttentionArguments arguments(qkv, num_heads, bias, axis, scale);
  arguments.inputs.emplace_back("out", out);
  arguments.inputs.emplace_back("statistics", statistics);
  arguments.inputs.emplace_back("d_out", d_out);
  return arguments.run<Body>(threads)[0];
}

inline py::dict taps(const py::object& qkv, int64_t num_heads, const py::object& statistics,
                     const py::object& bias, const py::object& grid, const py::object& scale,
                     const py::object& threads) {
  AttentionArguments arguments(qkv, num_heads, bias, py::none(), scale);
  arguments.inputs.emplace_back("statistics", statistics);
  set_taps(arguments.options, true, !grid.is_none(), true, grid);
  const auto results = arguments.run<AttentionTaps>(threads);
  py::dict found;
  found["class_row"] = results[0];
  found["entropy"] = results[2];
  if (!grid.is_none()) found["distance"] = results[1];
  return found;
}

inline py::array patch_embed(const py::object& images, const py::object& kernel,
                             const py::object& bias, double scale, double offset,
                             const py::object& prefix, const py::object& position,
                             const py::object& threads) {
  std::vector<Argument> inputs = {
      {"images", images, "uint8, "}, {"kernel", kernel}, {"bias", bias}};
  const bool has_prefix = !prefix.is_none(), has_position = !position.is_none();
  if (has_prefix) inputs.emplace_back("prefix", prefix);
  if (has_position) inputs.emplace_back("position", position);
  const Array &pixels = inputs[0].array, &weights = inputs[1].array;
  const CheckedCall<PatchEmbed> call(
      patch_options(pixels, weights, scale, offset, has_prefix, has_position), arrays_of(inputs));
  raise_if_error(check_holds_patch(pixels.dims, weights.dims[0]));
  return run(call, inputs, threads)[0];
}

inline py::dict patch_embed_gradient(const py::object& images, const py::object& kernel,
                                     const py::object& d_tokens, double scale, double offset,
                                     int64_t num_prefix, const py::object& threads) {
  const Argument pixels("images", images, "uint8, "), weights("kernel", kernel);
  const Argument d("d_tokens", d_tokens);
  const std::vector<Argument> arguments = {pixels, weights, d};
  const PatchTables tables(pixels.array, weights.array, num_prefix);
  raise_if_error(check_shape("d_tokens", d.array, "[B, T + N, D]", tables.tokens.dims));
  const Options options =
      patch_options(pixels.array, weights.array, scale, offset, num_prefix, true);
  py::dict found;
  if (pixels.array.type != ElementType::kUint8) {
    const CheckedCall<PatchEmbedImagesGrad> call(options, {pixels.array, weights.array, d.array});
    found["images"] = run(call, arguments, threads)[0];
  }
  const CheckedCall<PatchEmbedKernelGrad> call(options, {weights.array, pixels.array, d.array});
  found["kernel"] = run(call, arguments, threads)[0];
  Arrays inputs = {d.array, tables.position};
  if (num_prefix) inputs.insert(inputs.begin() + 1, tables.prefix);
  const auto results = run(CheckedCall<PatchEmbedTablesGrad>(options, inputs), arguments, threads);
  found["bias"] = results.front();
  if (num_prefix) found["prefix"] = results[1];
  found["position"] = results.back();
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
  Dims shape;
  const Array pixels = {ElementType::kUnknown, dims_of(images)};
  PatchCopyProblem problem = patch_copy(pixels, patch_size, images.itemsize(), &shape);
  py::array patches(images.dtype(), shape);
  problem.from = images.data();
  problem.to = patches.mutable_data();
  const Result result = run_on_threads(
      threads, [&](const Execution& execution) { return extract_patches(problem, execution); });
  raise_if_error(status_of(result, "extract_patches"));
  return patches;
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_NUMPY_OPS_H_
