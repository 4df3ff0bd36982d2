// The patch embedding by its definition, in loops over doubles. Tests compare the kernels with it.
// It also computes tolerances: the largest errors that rounding to the types can cause.
#ifndef TESTS_CC_PATCH_ORACLE_H_
#define TESTS_CC_PATCH_ORACLE_H_

#include <math.h>

#include <vector>

#include "custom_ops/cpu/patch_embed/cpu_patch_embed.h"
#include "custom_ops/cuda/cuda_patch_embed.h"
#include "tests/cc/memory.h"

namespace vit_test {

struct PatchCase {
  vit::DType image_type, type;
  vit::PatchShape shape;
  double scale = 1, offset = 0;
  bool has_position = true;
  std::vector<double> images, kernel, bias, prefix, position, d_tokens;

  int64_t pixels() const { return shape.batch * shape.height * shape.width * shape.channels; }
  int64_t kernel_size() const { return shape.patch_elements() * shape.features; }
  int64_t token_count() const { return shape.batch * shape.tokens() * shape.features; }
  int64_t table_size() const { return has_position ? shape.tokens() * shape.features : 0; }
};

struct PatchExpected {
  Expected tokens;
  Expected d_images, d_kernel, d_bias, d_prefix, d_position;
};

// The offset in the images of element `i` of patch `patch` of image `b`.
inline int64_t pixel_place(const vit::PatchShape& s, int64_t b, int64_t patch, int64_t i) {
  const int64_t channel = i % s.channels, x = i / s.channels % s.patch_size;
  const int64_t y = i / s.channels / s.patch_size;
  const int64_t row = patch / s.columns() * s.patch_size + y;
  const int64_t column = patch % s.columns() * s.patch_size + x;
  return ((b * s.height + row) * s.width + column) * s.channels + channel;
}

inline PatchExpected patch_oracle(const PatchCase& p) {
  const vit::PatchShape& s = p.shape;
  const int64_t features = s.features, elements = s.patch_elements();
  const auto at = [](const std::vector<double>& x, int64_t i) { return x[static_cast<size_t>(i)]; };
  PatchExpected result;
  result.tokens = Expected(p.token_count());
  result.d_images = Expected(p.pixels());
  result.d_kernel = Expected(p.kernel_size());
  result.d_bias = Expected(features);
  result.d_prefix = Expected(s.prefix * features);
  result.d_position = Expected(p.table_size());

  // Rescaling runs in float or double; its result is rounded to the type of the kernel.
  const bool wide = p.image_type == vit::DType::kFloat64 || p.type == vit::DType::kFloat64;
  const double rescaling = unit(wide ? vit::DType::kFloat64 : vit::DType::kFloat32);
  // The error of a sum of products, relative to the sum of their absolute values.
  const double u = unit(accumulator(p.type));
  const double terms = static_cast<double>(elements + features + s.batch * s.patches());
  // For doubles both the result and the oracle are sums of doubles, so errors count twice.
  const double times = p.type == vit::DType::kFloat64 ? 2 : 1;
  const double sum_error = times * u * (4 + terms / 8);
  std::vector<double> x(static_cast<size_t>(elements)), x_error(x.size());

  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t token = 0; token < s.tokens(); ++token) {
      const int64_t row = (b * s.tokens() + token) * features, patch = token - s.prefix;
      for (int64_t f = 0; f < features; ++f) {
        const double d = at(p.d_tokens, row + f);
        const double added = p.has_position ? at(p.position, token * features + f) : 0;
        const double base = at(patch < 0 ? p.prefix : p.bias, patch < 0 ? token * features + f : f);
        result.tokens.set(row + f, base + added, u * 4 * (fabs(base) + fabs(added)));
        if (p.has_position) {
          result.d_position.add(token * features + f, d, sum_error * fabs(d));
        }
        if (patch < 0) {
          result.d_prefix.add(token * features + f, d, sum_error * fabs(d));
        } else {
          result.d_bias.add(f, d, sum_error * fabs(d));
        }
      }
      if (patch < 0) continue;
      for (int64_t i = 0; i < elements; ++i) {
        const double scaled = at(p.images, pixel_place(s, b, patch, i)) * p.scale;
        x[static_cast<size_t>(i)] = scaled + p.offset;
        x_error[static_cast<size_t>(i)] = 3 * rescaling * (fabs(scaled) + fabs(p.offset)) +
                                          unit(p.type) * fabs(scaled + p.offset);
      }
      for (int64_t i = 0; i < elements; ++i) {
        const int64_t pixel = pixel_place(s, b, patch, i);
        const double value = at(x, i), error = at(x_error, i) + sum_error * fabs(value);
        for (int64_t f = 0; f < features; ++f) {
          const double weight = at(p.kernel, i * features + f), d = at(p.d_tokens, row + f);
          result.tokens.add(row + f, value * weight, error * fabs(weight));
          result.d_kernel.add(i * features + f, value * d, error * fabs(d));
          const double pull = d * weight * p.scale;
          result.d_images.add(pixel, pull, (sum_error + 3 * rescaling) * fabs(pull));
        }
      }
    }
  }
  return result;
}

// The tensors of a problem, and the kernels that run on them: with a vit::Execution, or a
// ParallelFor alone, those for CPUs, with a vit::CudaExecution those for GPUs.
struct PatchRun {
  const PatchCase& problem;
  Tensor images, kernel, bias, prefix, position, d_tokens;
  Tensor tokens, d_images, d_kernel, d_bias, d_prefix, d_position;

  PatchRun(const PatchCase& p, int shift)
      : problem(p),
        images(p.image_type, p.images, shift),
        kernel(p.type, p.kernel, shift),
        bias(p.type, p.bias, shift),
        prefix(p.type, p.prefix, shift),
        position(p.type, p.position, shift),
        d_tokens(p.type, p.d_tokens, shift),
        tokens(p.type, p.token_count(), Tensor::kOutput, shift),
        d_images(p.image_type, has_images() ? p.pixels() : 0, Tensor::kOutput, shift),
        d_kernel(p.type, p.kernel_size(), Tensor::kOutput, shift),
        d_bias(p.type, p.shape.features, Tensor::kOutput, shift),
        d_prefix(p.type, prefix.count(), Tensor::kOutput, shift),
        d_position(p.type, position.count(), Tensor::kOutput, shift) {}

  // Whether the images have a gradient.
  bool has_images() const { return problem.image_type != vit::DType::kUint8; }

  vit::Result forward(vit::ParallelFor parallel_for) { return forward(execution(parallel_for)); }
  template <class Execution>
  typename Execution::Result forward(const Execution& execution) {
    const PatchCase& p = problem;
    const vit::PatchEmbedForwardProblem forward = {
        {p.image_type, p.type, p.shape, images.data(), p.scale, p.offset, kernel.data()},
        bias.data(),
        p.shape.prefix ? prefix.data() : nullptr,
        p.has_position ? position.data() : nullptr,
        tokens.data()};
    return patch_embed_forward(forward, execution);
  }
  // Computes the gradients of `wanted`: bits 0 to 4 for images, kernel, bias, prefix and position.
  vit::Result backward(int wanted, vit::ParallelFor parallel_for) {
    return backward(wanted, execution(parallel_for));
  }
  template <class Execution>
  typename Execution::Result backward(int wanted, const Execution& execution) {
    const PatchCase& p = problem;
    const auto if_wanted = [&](int bit, bool possible, Tensor& tensor) {
      return possible && wanted >> bit & 1 ? tensor.data() : nullptr;
    };
    vit::PatchEmbedGradientProblem gradient = {
        {p.image_type, p.type, p.shape, nullptr, p.scale, p.offset, nullptr},
        d_tokens.data(),
        if_wanted(0, has_images(), d_images),
        if_wanted(1, true, d_kernel),
        if_wanted(2, true, d_bias),
        if_wanted(3, true, d_prefix),
        if_wanted(4, p.has_position, d_position)};
    // Inputs that are not read may be null: images are read for the kernel's gradient only, and the
    // kernel for the images' gradient only.
    if (gradient.d_kernel) gradient.images = images.data();
    if (gradient.d_images) gradient.kernel = kernel.data();
    return patch_embed_backward(gradient, execution);
  }
  void all(vit::ParallelFor parallel_for, int wanted = 31) { all(execution(parallel_for), wanted); }
  template <class Execution>
  void all(const Execution& execution, int wanted = 31) {
    using Result = typename Execution::Result;
    for (Tensor* tensor : results()) tensor->forget();
    const bool ok = forward(execution) == Result::kOk && backward(wanted, execution) == Result::kOk;
    EXPECT(ok, "a kernel reports that it failed");
  }

  std::vector<Tensor*> results() {
    return {&d_images, &d_kernel, &d_bias, &d_prefix, &d_position, &tokens};
  }
  void expect_intact() {
    for (Tensor* tensor : {&images, &kernel, &bias, &prefix, &position, &d_tokens}) {
      EXPECT(tensor->intact(), "an input was written");
    }
    for (Tensor* tensor : results()) {
      EXPECT(tensor->intact(), "something was written outside of an output");
    }
  }
  void expect(const PatchExpected& expected) {
    expect_near("tokens", tokens, expected.tokens);
    if (has_images()) expect_near("d_images", d_images, expected.d_images);
    expect_near("d_kernel", d_kernel, expected.d_kernel);
    expect_near("d_bias", d_bias, expected.d_bias);
    expect_near("d_prefix", d_prefix, expected.d_prefix);
    expect_near("d_position", d_position, expected.d_position);
    expect_intact();
  }
  void expect_same(PatchRun& other) {
    const std::vector<Tensor*> a = results(), b = other.results();
    for (size_t i = 0; i < a.size(); ++i) EXPECT(*a[i] == *b[i], "result %zu differs", i);
  }
};

}  // namespace vit_test

#endif  // TESTS_CC_PATCH_ORACLE_H_
