// The ops of the module for GPUs; the docstrings are in cuda_module.cc.
#ifndef CUSTOM_OPS_PYTHON_DEVICE_OPS_H_
#define CUSTOM_OPS_PYTHON_DEVICE_OPS_H_

#include <functional>
#include <string>
#include <vector>

#include "custom_ops/cuda/cuda_attention.h"
#include "custom_ops/cuda/cuda_patch_embed.h"
#include "custom_ops/python/device_arrays.h"

namespace vit {

// An array that kernels for GPUs compute with, as the argument of this name. Raises a ValueError
// for other dtypes.
inline const Array& computable(const char* name, const DeviceArray& array,
                               bool with_uint8 = false) {
  const ElementType type = array.array().type;
  if ((is_float(type) && type != ElementType::kFloat64) ||
      (type == ElementType::kUint8 && with_uint8)) {
    return array.array();
  }
  throw py::value_error(std::string(name) + " has dtype " + name_of(type) +
                        ", which the kernels for GPUs do not take. Cast it to " +
                        (with_uint8 ? "uint8, " : "") + "float16, bfloat16 or float32.");
}

// A packed projection and what else decides its attention weights.
class DeviceAttention {
 public:
  DeviceAttention(const DeviceArray& qkv, int64_t num_heads, const DeviceArray* bias,
                  const py::object& axis, const py::object& scale)
      : inputs_{computable("qkv", qkv)},
        options_(attention_options(inputs_[0], num_heads, bias != nullptr, axis, scale)) {
    if (bias) inputs_.push_back(bias->array());
    CheckedCall<Attention>(options_, inputs_);
  }

  void forward(const DeviceExecution& execution, const DeviceArray& out,
               const DeviceArray& statistics) const {
    execution.prepare<Attention>(options_, inputs_, {&out, &statistics})();
  }

  void gradient(const DeviceExecution& execution, const DeviceArray& out,
                const DeviceArray& statistics, const DeviceArray& d_out,
                const DeviceArray& d_qkv) const {
    execution.prepare<AttentionGrad>(options_, inputs({&out, &statistics, &d_out}), {&d_qkv})();
  }

  void bias_gradient(const DeviceExecution& execution, const DeviceArray& out,
                     const DeviceArray& statistics, const DeviceArray& d_out,
                     const DeviceArray& d_bias) const {
    execution.prepare<AttentionBiasGrad>(options_, inputs({&out, &statistics, &d_out}),
                                         {&d_bias})();
  }

  void taps(const DeviceExecution& execution, const DeviceArray& statistics,
            const DeviceArray* class_row, const DeviceArray* distance, const DeviceArray* entropy,
            const py::object& grid) const {
    Options options = options_;
    set_taps(options, class_row, distance, entropy, grid);
    execution.prepare<AttentionTaps>(options, inputs({&statistics}),
                                     {class_row, distance, entropy})();
  }

 private:
  Arrays inputs(const std::vector<const DeviceArray*>& own) const {
    Arrays all = inputs_;
    for (const DeviceArray* array : own) all.push_back(array->array());
    return all;
  }

  Arrays inputs_;
  Options options_;
};

// Images and the kernel that embeds them.
class DevicePatchEmbed {
 public:
  DevicePatchEmbed(const DeviceArray& images, const DeviceArray& kernel, double scale,
                   double offset, int64_t num_prefix)
      : images_(computable("images", images, true)),
        kernel_(computable("kernel", kernel)),
        scale_(scale),
        offset_(offset),
        tables_(images_, kernel_, num_prefix) {}

  void forward(const DeviceExecution& execution, const DeviceArray& bias, const DeviceArray& tokens,
               const DeviceArray* prefix, const DeviceArray* position) const {
    Arrays inputs = {images_, kernel_, bias.array()};
    if (prefix) {
      check_prefix(*prefix);
      inputs.push_back(prefix->array());
    } else if (has_prefix()) {
      throw py::value_error("prefix must have shape " + text(tables_.prefix.dims) +
                            ". Received: None.");
    }
    if (position) inputs.push_back(position->array());
    execution.prepare<PatchEmbed>(options(prefix, position), inputs, {&tokens})();
  }

  void gradient(const DeviceExecution& execution, const DeviceArray& d_tokens,
                const DeviceArray* images, const DeviceArray* kernel, const DeviceArray* bias,
                const DeviceArray* prefix, const DeviceArray* position) const {
    const Array d = d_tokens.array();
    raise_if_error(check_shape("d_tokens", d, "[B, T + N, D]", tables_.tokens.dims));
    const Options attributes = options(has_prefix(), true);
    std::vector<std::function<void()>> calls;
    if (images) {
      calls.push_back(
          execution.prepare<PatchEmbedImagesGrad>(attributes, {images_, kernel_, d}, {images}));
    }
    if (kernel) {
      calls.push_back(
          execution.prepare<PatchEmbedKernelGrad>(attributes, {kernel_, images_, d}, {kernel}));
    }
    Arrays inputs = {d, tables_.position};
    std::vector<const DeviceArray*> outputs = {bias, position};
    if (has_prefix()) {
      inputs.insert(inputs.begin() + 1, tables_.prefix);
      outputs.insert(outputs.begin() + 1, prefix);
    } else if (prefix) {
      check_prefix(*prefix);
    }
    if (bias || position || (has_prefix() && prefix)) {
      calls.push_back(execution.prepare<PatchEmbedTablesGrad>(attributes, inputs, outputs));
    }
    for (const auto& call : calls) call();
  }

 private:
  bool has_prefix() const { return tables_.prefix.dims[0] > 0; }

  Options options(bool has_prefix, bool has_position) const {
    return patch_options(images_, kernel_, scale_, offset_, has_prefix, has_position);
  }

  void check_prefix(const DeviceArray& prefix) const {
    raise_if_error(check_shape("prefix", prefix.array(), "[T, D]", tables_.prefix.dims));
  }

  Array images_, kernel_;
  double scale_, offset_;
  PatchTables tables_;
};

// Copies images to patches, or with `restore` patches to images.
inline void copy_patches(const DeviceExecution& execution, const DeviceArray& images,
                         const DeviceArray& patches, int64_t patch_size, bool restore) {
  const Array &pixels = images.array(), &rows = patches.array();
  Dims expected;
  PatchCopyProblem problem = patch_copy(pixels, patch_size, size_of(pixels.type), &expected);
  raise_if_error(check_type("patches", rows, pixels.type, ", like images."));
  raise_if_error(check_shape("patches", rows, "[B, N, P P C]", expected));
  problem.from = restore ? rows.data : pixels.data;
  problem.to = restore ? pixels.data : rows.data;
  execution.run(restore ? "restore_patches" : "extract_patches", problem.to,
                [&](const CudaExecution& on) {
                  return restore ? restore_patches(problem, on) : extract_patches(problem, on);
                });
}

}  // namespace vit

#endif  // CUSTOM_OPS_PYTHON_DEVICE_OPS_H_
