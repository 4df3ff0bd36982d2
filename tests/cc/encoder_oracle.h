// The results of the encoder by its definition in custom_ops/cc/encoder_problem.h, with loops over
// doubles, and a run of the kernels.
#ifndef TESTS_CC_ENCODER_ORACLE_H_
#define TESTS_CC_ENCODER_ORACLE_H_

#include "tests/cc/encoder_case.h"

namespace vit_test {

inline double activated(vit::Activation activation, double x) {
  if (activation == vit::Activation::kSwiglu) return x / (1 + exp(-x));
  if (activation == vit::Activation::kGeluErf) return 0.5 * x * erfc(-x * M_SQRT1_2);
  return x / (1 + exp(-2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// Values with what their errors are proportional to: an error of `units` is as large as rounding
// the numbers that were added to the value.
struct Numbers {
  std::vector<double> value, units;
  explicit Numbers(int64_t count)
      : value(static_cast<size_t>(count)), units(static_cast<size_t>(count)) {}
};

// The errors of products are independent, so that the squares of `units` are added.
class EncoderOracle {
 public:
  explicit EncoderOracle(const EncoderCase& problem) : c_(problem) {}

  // `activation_unit`: the rounding error of activations.
  Expected run(double activation_unit) const {
    Numbers stream(c_.batch * c_.tokens * c_.width);
    stream.value = c_.input;
    run_blocks(stream, activation_unit);
    const int64_t width = c_.width, out_width = c_.out_tokens() * width;
    Expected result(c_.batch * out_width);
    for (int64_t i = 0; i < c_.batch * out_width; ++i) {
      const auto from = static_cast<size_t>(i / out_width * c_.tokens * width + i % out_width);
      result.set(i, stream.value[from], stream.units[from]);
    }
    return result;
  }

 protected:
  // A measured error is at most 2 units.
  static constexpr double kUnits = 6;

  // The units of the stream are errors.
  void run_blocks(Numbers& stream, double activation_unit) const {
    for (size_t i = 0; i < c_.blocks.size(); ++i) {
      const auto& block = c_.blocks[i];
      Numbers qkv = dense(block[0], norm(stream));
      transform_heads(i, qkv);
      add(stream, dense(block[1], attend(qkv)), activation_unit);
      add(stream, dense(block[3], activate(dense(block[2], norm(stream)))), activation_unit);
    }
  }

  // GELU, or silu(gate) * up for rows of gate | up.
  Numbers activate(const Numbers& sums) const {
    const bool is_gated = c_.activation == vit::Activation::kSwiglu;
    const int64_t rows = c_.batch * c_.tokens,
                  columns = vit::fc1_columns(c_.activation, c_.mlp_size);
    Numbers hidden(rows * c_.mlp_size);
    for (int64_t i = 0; i < rows * c_.mlp_size; ++i) {
      const auto to = static_cast<size_t>(i);
      const auto at = static_cast<size_t>(i / c_.mlp_size * columns + i % c_.mlp_size);
      const double x = sums.value[at], step = 1e-5, value = activated(c_.activation, x);
      const double slope =
          (activated(c_.activation, x + step) - activated(c_.activation, x - step)) / 2e-5;
      const size_t up = at + static_cast<size_t>(c_.mlp_size);
      const double factor = is_gated ? sums.value[up] : 1;
      const double lost = is_gated ? value * sums.units[up] : 0;
      hidden.value[to] = value * factor;
      hidden.units[to] = hypot(hypot(hidden.value[to], lost), factor * slope * sums.units[at]);
    }
    return hidden;
  }

  // Adds a branch. The units of the stream are errors.
  void add(Numbers& stream, const Numbers& branch, double activation_unit) const {
    const double float_unit = unit(vit::DType::kFloat32);
    for (size_t i = 0; i < stream.value.size(); ++i) {
      stream.value[i] += branch.value[i];
      stream.units[i] += kUnits * (activation_unit * branch.units[i] +
                                   float_unit * (fabs(stream.value[i]) + branch.units[i]));
    }
  }

  // LayerNorm and rotation of each head of queries and keys.
  void transform_heads(size_t block, Numbers& qkv) const {
    const int64_t size = c_.width / c_.heads, rotated = c_.tokens - c_.rotary_tokens;
    for (int64_t i = 0; i < c_.batch * c_.tokens * 2 * c_.heads; ++i) {
      const int64_t row = i / (2 * c_.heads), head = i % (2 * c_.heads);
      double* const x = &qkv.value[static_cast<size_t>(row * 3 * c_.width + head * size)];
      double* const units = &qkv.units[static_cast<size_t>(row * 3 * c_.width + head * size)];
      if (!c_.qk_norm.empty()) {
        const double* scale =
            &c_.qk_norm[block][static_cast<size_t>(head < c_.heads ? 0 : 2 * size)];
        normalize_head(size, scale, scale + size, x, units);
      }
      const int64_t patch = row % c_.tokens - rotated;
      if (!c_.has_rotary || patch < 0) continue;
      const int64_t half = size / 2;
      const double* table = &c_.rotary[static_cast<size_t>(patch * size)];
      for (int64_t j = 0; j < half; ++j) {
        const double c = table[j], s = table[half + j], a = x[j], b = x[half + j];
        const double of_a = units[j], of_b = units[half + j];
        x[j] = a * c - b * s;
        x[half + j] = b * c + a * s;
        units[j] = hypot(of_a * c, of_b * s) + hypot(a * c, b * s);
        units[half + j] = hypot(of_b * c, of_a * s) + hypot(b * c, a * s);
      }
    }
  }

  void normalize_head(int64_t size, const double* scale, const double* bias, double* x,
                      double* units) const {
    double mean = 0, variance = 0, lost = 0;
    for (int64_t j = 0; j < size; ++j) mean += x[j] / static_cast<double>(size);
    for (int64_t j = 0; j < size; ++j) {
      variance += pow(x[j] - mean, 2) / static_cast<double>(size);
      // Elements are rounded to activations before the norm where a panel has parts of heads.
      lost = fmax(lost, units[j] + fabs(x[j]));
    }
    const double deviation = sqrt(variance + c_.epsilon);
    for (int64_t j = 0; j < size; ++j) {
      const double normal = (x[j] - mean) / deviation;
      x[j] = normal * scale[j] + bias[j];
      units[j] =
          fabs(scale[j]) * (lost / deviation * (1 + fabs(normal)) + fabs(normal)) + fabs(x[j]);
    }
  }

  Numbers norm(const Numbers& x) const {
    Numbers result(static_cast<int64_t>(x.value.size()));
    const auto width = static_cast<size_t>(c_.width);
    for (size_t row = 0; row < x.value.size(); row += width) {
      double mean = 0, variance = 0, largest = 0, error = 0;
      for (size_t j = row; j < row + width; ++j) mean += x.value[j] / static_cast<double>(width);
      for (size_t j = row; j < row + width; ++j) {
        variance += pow(x.value[j] - mean, 2) / static_cast<double>(width);
        largest = fmax(largest, fabs(x.value[j]));
        error = fmax(error, x.units[j]);
      }
      const double deviation = sqrt(variance + c_.epsilon);
      // Of the subtraction of the mean, and of the blocks before, in units of this rounding.
      const double least = unit(c_.rounds() ? vit::DType::kBfloat16 : vit::DType::kFloat32);
      const double lost = (largest * unit(vit::DType::kFloat32) + error) / deviation / least;
      for (size_t j = row; j < row + width; ++j) {
        result.value[j] = (x.value[j] - mean) / deviation;
        result.units[j] = fabs(result.value[j]) + lost;
      }
    }
    return result;
  }

  Numbers dense(const DenseLayer& layer, const Numbers& x) const {
    const auto depth = static_cast<size_t>(layer.depth);
    const auto columns = static_cast<size_t>(layer.columns);
    const size_t rows = x.value.size() / depth;
    Numbers result(static_cast<int64_t>(rows * columns));
    for (size_t row = 0; row < rows; ++row) {
      double* value = &result.value[row * columns];
      double* squares = &result.units[row * columns];
      for (size_t j = 0; j < columns; ++j) {
        value[j] = layer.bias[j];
        squares[j] = layer.bias[j] * layer.bias[j];
      }
      for (size_t i = 0; i < depth; ++i) {
        const double a = x.value[row * depth + i], error = x.units[row * depth + i];
        const double* kernel = &layer.kernel[i * columns];
        for (size_t j = 0; j < columns; ++j) {
          value[j] += a * kernel[j];
          squares[j] += error * error * kernel[j] * kernel[j];
        }
      }
      for (size_t j = 0; j < columns; ++j) squares[j] = sqrt(squares[j]);
    }
    return result;
  }

  const EncoderCase& c_;

 private:
  Numbers attend(const Numbers& qkv) const {
    const int64_t width = c_.width, size = width / c_.heads, tokens = c_.tokens;
    Numbers result(c_.batch * tokens * width);
    std::vector<double> weights(static_cast<size_t>(tokens));
    for (int64_t unit = 0; unit < c_.batch * c_.heads * tokens; ++unit) {
      const int64_t query = unit % tokens, head = unit / tokens % c_.heads;
      const int64_t image = unit / tokens / c_.heads;
      const auto at = [&](int64_t token, int64_t part, int64_t j) {
        return static_cast<size_t>(((image * tokens + token) * 3 + part) * width + head * size + j);
      };
      double largest = -HUGE_VAL, logit_units = 0, total = 0;
      for (int64_t i = 0; i < tokens; ++i) {
        double logit = 0, squares = 0;
        for (int64_t j = 0; j < size; ++j) {
          const size_t q = at(query, 0, j), k = at(i, 1, j);
          logit += qkv.value[q] * qkv.value[k];
          squares += pow(qkv.units[q] * qkv.value[k], 2) + pow(qkv.value[q] * qkv.units[k], 2);
        }
        weights[static_cast<size_t>(i)] = logit / sqrt(static_cast<double>(size));
        logit_units = fmax(logit_units, sqrt(squares / static_cast<double>(size)));
        largest = fmax(largest, weights[static_cast<size_t>(i)]);
      }
      for (double& w : weights) total += w = exp(w - largest);
      for (int64_t j = 0; j < size; ++j) {
        double value = 0, units = 0;
        for (int64_t i = 0; i < tokens; ++i) {
          const double weight = weights[static_cast<size_t>(i)] / total;
          value += weight * qkv.value[at(i, 2, j)];
          units += weight * (qkv.units[at(i, 2, j)] + logit_units * fabs(qkv.value[at(i, 2, j)]));
        }
        const auto to = static_cast<size_t>((image * tokens + query) * width + head * size + j);
        result.value[to] = value;
        result.units[to] = units;
      }
    }
    return result;
  }
};

// The tensors of a case.
struct EncoderRun {
  const EncoderCase& problem;
  Tensor input, rotary, out;
  std::vector<std::unique_ptr<Tensor>> weights, biases;
  std::vector<vit::EncoderBlock> block;

  // Weights are aligned to 4 bytes: pairs of bfloat16 are read together.
  EncoderRun(const EncoderCase& problem, int shift)
      : problem(problem),
        input(vit::DType::kFloat32, problem.input, shift),
        rotary(vit::DType::kFloat32, problem.rotary, shift),
        out(vit::DType::kFloat32, problem.batch * problem.out_tokens() * problem.width,
            Tensor::kOutput, shift) {
    for (size_t i = 0; i < problem.blocks.size(); ++i) {
      weights.push_back(
          std::make_unique<Tensor>(problem.type, packed_weights(problem, i), 2 * shift));
      biases.push_back(
          std::make_unique<Tensor>(vit::DType::kFloat32, all_biases(problem, i), shift));
      block.push_back({weights[i]->data(), static_cast<const float*>(biases[i]->data())});
    }
  }

  // The problem; a test may replace the pointers.
  vit::EncoderProblem arguments() {
    vit::EncoderProblem result = {};
    result.type = problem.type;
    result.batch = problem.batch;
    result.tokens = problem.tokens;
    result.width = problem.width;
    result.heads = problem.heads;
    result.mlp_size = problem.mlp_size;
    result.blocks = static_cast<int64_t>(problem.blocks.size());
    result.activation = problem.activation;
    result.epsilon = static_cast<float>(problem.epsilon);
    result.first_row_only = problem.first_row_only;
    result.qk_norm = !problem.qk_norm.empty();
    if (problem.has_rotary) {
      result.rotary = static_cast<const float*>(rotary.data());
      result.rotary_tokens = problem.rotary_tokens;
    }
    result.input = static_cast<const float*>(input.data());
    result.block = block.data();
    result.out = static_cast<float*>(out.data());
    return result;
  }
  vit::Result run(vit::ParallelFor parallel_for) {
    return vit::encoder(arguments(), execution(parallel_for));
  }
  void all(vit::ParallelFor parallel_for) {
    out.forget();
    EXPECT(run(parallel_for) == vit::Result::kOk, "the encoder reports that it failed");
  }
  void expect_same(const EncoderRun& other) { EXPECT(out == other.out, "the output differs"); }
  void expect_intact() {
    EXPECT(input.intact() && rotary.intact(), "the input was written");
    for (size_t i = 0; i < block.size(); ++i) {
      EXPECT(weights[i]->intact() && biases[i]->intact(), "weights or biases were written");
    }
    EXPECT(out.intact(), "something was written outside of the output");
  }
  // Compares with the oracle, for the instruction set in use.
  void expect() {
    const vit::DType activation = problem.rounds() ? vit::DType::kBfloat16 : vit::DType::kFloat32;
    expect_near("out", out, EncoderOracle(problem).run(unit(activation)));
    expect_intact();
  }
};

}  // namespace vit_test

#endif  // TESTS_CC_ENCODER_ORACLE_H_
