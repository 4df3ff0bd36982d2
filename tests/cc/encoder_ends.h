// Cases of an encoder between images and classes, with loops over doubles as encoder_oracle.h.
#ifndef TESTS_CC_ENCODER_ENDS_H_
#define TESTS_CC_ENCODER_ENDS_H_

#include "tests/cc/encoder_oracle.h"

namespace vit_test {

struct EndsCase {
  EncoderCase blocks;  // its input is not used
  vit::DType image_type;
  vit::PatchShape shape;
  double scale, offset;
  bool has_head;
  vit::Pooling pooling;
  std::vector<double> images = {}, prefix = {}, position = {};  // position may stay empty
  DenseLayer kernel = {};
  std::vector<double> norm_scale = {}, norm_bias = {};
  DenseLayer classes = {};  // no columns: no dense layer

  static constexpr vit::DType kFloat = vit::DType::kFloat32;

  // Numbers of the output for an image.
  int64_t out_size() const {
    const bool is_mean = has_head && pooling == vit::Pooling::kMean;
    const int64_t tokens = blocks.first_row_only || is_mean ? 1 : blocks.tokens;
    return tokens * (has_head && classes.columns ? classes.columns : blocks.width);
  }

  void fill(Random& random, int64_t count, int64_t num_classes, bool has_position) {
    const auto fill = [&](std::vector<double>& to, int64_t size, vit::DType type, double factor) {
      to.resize(static_cast<size_t>(size));
      for (double& x : to) x = rounded_to(type, factor * random.normal());
    };
    blocks.fill(random, count, 0);
    images.resize(static_cast<size_t>(shape.batch * shape.height * shape.width * shape.channels));
    for (double& x : images) {
      x = image_type == vit::DType::kUint8 ? static_cast<double>(random.below(256))
                                           : rounded_to(image_type, random.normal());
    }
    const int64_t width = blocks.width;
    kernel = {shape.patch_elements(), width, {}, {}};
    const double factor = 1 / sqrt(static_cast<double>(kernel.depth));
    fill(kernel.kernel, kernel.depth * width, blocks.type, factor);
    fill(kernel.bias, width, kFloat, 1);
    fill(prefix, shape.prefix * width, kFloat, 1);
    if (has_position) fill(position, blocks.tokens * width, kFloat, 1);
    fill(norm_scale, width, kFloat, 1);
    fill(norm_bias, width, kFloat, 1);
    classes = {width, num_classes, {}, {}};
    fill(classes.kernel, width * num_classes, kFloat, 1 / sqrt(static_cast<double>(width)));
    fill(classes.bias, num_classes, kFloat, 1);
  }
};

class EndsOracle : public EncoderOracle {
 public:
  explicit EndsOracle(const EndsCase& ends) : EncoderOracle(ends.blocks), e_(ends) {}

  Expected run(double activation_unit) const {
    Numbers tokens = embed(activation_unit);
    run_blocks(tokens, activation_unit);
    Numbers out = e_.has_head ? classify(tokens) : tokens;
    if (c_.first_row_only) out = first_rows(out);
    Expected result(static_cast<int64_t>(out.value.size()));
    for (size_t i = 0; i < out.value.size(); ++i) {
      result.set(static_cast<int64_t>(i), out.value[i], out.units[i]);
    }
    return result;
  }

 private:
  // The tokens; their units are errors.
  Numbers embed(double activation_unit) const {
    const vit::PatchShape& shape = e_.shape;
    const int64_t side = shape.patch_size * shape.channels, count = shape.patches();
    Numbers patches(shape.batch * count * shape.patch_elements());
    for (int64_t i = 0; i < shape.batch * count * shape.patch_elements(); ++i) {
      const int64_t element = i % shape.patch_elements(), patch = i / shape.patch_elements();
      const int64_t row = patch % count / shape.columns() * shape.patch_size + element / side;
      const int64_t line = (patch / count * shape.height + row) * shape.width * shape.channels;
      const int64_t pixel = line + patch % count % shape.columns() * side + element % side;
      const double x = e_.images[static_cast<size_t>(pixel)] * e_.scale;
      patches.value[static_cast<size_t>(i)] = x + e_.offset;
      // The product and the sum are rounded, and then the activation.
      const double lost = (fabs(x) + fabs(x + e_.offset)) * unit(EndsCase::kFloat);
      patches.units[static_cast<size_t>(i)] = fabs(x + e_.offset) + lost / activation_unit;
    }
    const Numbers embedded = dense(e_.kernel, patches);
    const int64_t width = c_.width;
    Numbers tokens(c_.batch * c_.tokens * width);
    for (int64_t i = 0; i < c_.batch * c_.tokens * width; ++i) {
      const int64_t at = i % (c_.tokens * width), patch = at - shape.prefix * width;
      const auto to = static_cast<size_t>(i);
      if (patch < 0) {
        tokens.value[to] = e_.prefix[static_cast<size_t>(at)];
      } else {
        const auto from = static_cast<size_t>(i / (c_.tokens * width) * count * width + patch);
        tokens.value[to] = embedded.value[from];
        tokens.units[to] = kUnits * activation_unit * embedded.units[from];
      }
      if (!e_.position.empty()) tokens.value[to] += e_.position[static_cast<size_t>(at)];
      tokens.units[to] += kUnits * unit(EndsCase::kFloat) * (fabs(tokens.value[to]) + 1);
    }
    return tokens;
  }

  // Final LayerNorm, pooling and dense layer in float; all units are errors.
  Numbers classify(const Numbers& tokens) const {
    const auto width = static_cast<size_t>(c_.width);
    const double rounding = unit(EndsCase::kFloat);
    Numbers normal(static_cast<int64_t>(tokens.value.size()));
    for (size_t row = 0; row < tokens.value.size(); row += width) {
      double mean = 0, variance = 0, error = 0;
      for (size_t j = row; j < row + width; ++j) {
        mean += tokens.value[j] / static_cast<double>(width);
        error = fmax(error, tokens.units[j] + rounding * fabs(tokens.value[j]));
      }
      for (size_t j = row; j < row + width; ++j) {
        variance += pow(tokens.value[j] - mean, 2) / static_cast<double>(width);
      }
      const double deviation = sqrt(variance + c_.epsilon);
      for (size_t j = row; j < row + width; ++j) {
        const double x = (tokens.value[j] - mean) / deviation, scale = e_.norm_scale[j - row];
        normal.value[j] = x * scale + e_.norm_bias[j - row];
        normal.units[j] = fabs(scale) * (error / deviation * (1 + fabs(x)) + rounding * fabs(x)) +
                          rounding * (fabs(x * scale) + fabs(normal.value[j]));
      }
    }
    const Numbers pooled = e_.pooling == vit::Pooling::kMean ? mean_of(normal) : normal;
    if (e_.classes.columns == 0) return pooled;
    Numbers logits = dense(e_.classes, pooled);
    Numbers rounded = pooled;
    for (size_t i = 0; i < rounded.value.size(); ++i) rounded.units[i] = fabs(rounded.value[i]);
    const Numbers sums = dense(e_.classes, rounded);
    for (size_t i = 0; i < logits.units.size(); ++i) {
      // The bias of the layer counts as an error in `dense`.
      const double bias = e_.classes.bias[i % e_.classes.bias.size()];
      logits.units[i] = sqrt(fmax(0, pow(logits.units[i], 2) - bias * bias)) +
                        kUnits * rounding * (sums.units[i] + fabs(logits.value[i]));
    }
    return logits;
  }

  Numbers mean_of(const Numbers& rows) const {
    Numbers mean(c_.batch * c_.width);
    const int64_t image = c_.tokens * c_.width;
    for (int64_t i = 0; i < c_.batch * image; ++i) {
      const auto from = static_cast<size_t>(i);
      const auto to = static_cast<size_t>(i / image * c_.width + i % c_.width);
      mean.value[to] += rows.value[from] / static_cast<double>(c_.tokens);
      mean.units[to] += (rows.units[from] + unit(EndsCase::kFloat) * fabs(rows.value[from])) /
                        static_cast<double>(c_.tokens);
    }
    return mean;
  }

  // Of each image the numbers of its first token.
  Numbers first_rows(const Numbers& all) const {
    const int64_t size = e_.out_size();
    Numbers first(c_.batch * size);
    for (int64_t i = 0; i < c_.batch * size; ++i) {
      const auto from = static_cast<size_t>(i / size * c_.tokens * size + i % size);
      first.value[static_cast<size_t>(i)] = all.value[from];
      first.units[static_cast<size_t>(i)] = all.units[from];
    }
    return first;
  }

  const EndsCase& e_;
};

// The tensors of a case.
struct EndsRun {
  const EndsCase& problem;
  EncoderRun blocks;
  Tensor images, kernel, bias, prefix, position, norm_scale, norm_bias, classes, class_bias, out;
  vit::EncoderImages from = {};
  vit::EncoderHead head = {};

  EndsRun(const EndsCase& problem, int shift)
      : problem(problem),
        blocks(problem.blocks, shift),
        images(problem.image_type, problem.images, shift),
        kernel(problem.blocks.type, packed(problem.blocks.type, problem.kernel), 2 * shift),
        bias(EndsCase::kFloat, problem.kernel.bias, shift),
        prefix(EndsCase::kFloat, problem.prefix, shift),
        position(EndsCase::kFloat, problem.position, shift),
        norm_scale(EndsCase::kFloat, problem.norm_scale, shift),
        norm_bias(EndsCase::kFloat, problem.norm_bias, shift),
        classes(EndsCase::kFloat, packed(EndsCase::kFloat, problem.classes), shift),
        class_bias(EndsCase::kFloat, problem.classes.bias, shift),
        out(EndsCase::kFloat, problem.blocks.batch * problem.out_size(), Tensor::kOutput, shift) {}

  static std::vector<double> packed(vit::DType type, const DenseLayer& layer) {
    std::vector<double> result;
    pack(type, layer, result);
    return result;
  }
  static const float* floats(Tensor& tensor) { return static_cast<const float*>(tensor.data()); }

  vit::EncoderProblem arguments() {
    vit::EncoderProblem result = blocks.arguments();
    from.type = problem.image_type;
    from.shape = problem.shape;
    from.scale = problem.scale;
    from.offset = problem.offset;
    from.images = images.data();
    from.kernel = kernel.data();
    from.bias = floats(bias);
    from.prefix = floats(prefix);
    from.position = problem.position.empty() ? nullptr : floats(position);
    head = {floats(norm_scale),      floats(norm_bias), problem.pooling,
            problem.classes.columns, classes.data(),    floats(class_bias)};
    result.input = nullptr;
    result.images = &from;
    result.head = problem.has_head ? &head : nullptr;
    result.out = static_cast<float*>(out.data());
    return result;
  }
  void all(vit::ParallelFor parallel_for) {
    out.forget();
    EXPECT(vit::encoder(arguments(), execution(parallel_for)) == vit::Result::kOk,
           "the encoder reports that it failed");
  }
  void expect_same(const EndsRun& other) { EXPECT(out == other.out, "the output differs"); }
  void expect_intact() {
    blocks.expect_intact();
    for (Tensor* tensor : {&images, &kernel, &bias, &prefix, &position, &norm_scale, &norm_bias,
                           &classes, &class_bias}) {
      EXPECT(tensor->intact(), "an input was written");
    }
    EXPECT(out.intact(), "something was written outside of the output");
  }
  void expect() {
    const bool rounds = problem.blocks.rounds();
    const vit::DType activation = rounds ? vit::DType::kBfloat16 : vit::DType::kFloat32;
    expect_near("out", out, EndsOracle(problem).run(unit(activation)));
    expect_intact();
  }
};

}  // namespace vit_test

#endif  // TESTS_CC_ENCODER_ENDS_H_
