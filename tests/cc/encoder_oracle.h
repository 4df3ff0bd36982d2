// Cases of the encoder, their results by the definition in custom_ops/cc/encoder_problem.h, with
// loops over doubles, and a run of the kernels on them.
#ifndef TESTS_CC_ENCODER_ORACLE_H_
#define TESTS_CC_ENCODER_ORACLE_H_

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "custom_ops/cpu/encoder/cpu_encoder.h"
#include "tests/cc/memory.h"
#include "tests/cc/threads.h"

namespace vit_test {

struct DenseLayer {
  int64_t depth, columns;
  std::vector<double> kernel, bias;  // [depth, columns], [columns]
};

struct EncoderCase {
  vit::DType type;  // of the weights
  int64_t batch, tokens, width, heads, mlp_size;
  vit::Activation activation;
  bool first_row_only;
  double epsilon = 1e-6;
  std::vector<double> input = {};  // [batch, tokens, width]
  std::vector<std::array<DenseLayer, 4>> blocks = {};  // qkv, out, fc1, fc2

  int64_t out_tokens() const { return first_row_only ? 1 : tokens; }

  // Whether the kernels of the instruction set in use round activations to bfloat16.
  bool rounds() const {
    return type == vit::DType::kBfloat16 && width % 2 == 0 &&
           vit::current_isa() >= vit::Isa::kAvx512Bf16;
  }

  // Adds blocks whose kernels and biases are element(depth), rounded to their types.
  template <class Element>
  void add_blocks(int64_t count, const Element& element) {
    const int64_t sizes[4][2] = {
        {width, 3 * width}, {width, width}, {width, mlp_size}, {mlp_size, width}};
    for (int64_t i = 0; i < count; ++i) {
      std::array<DenseLayer, 4>& block = blocks.emplace_back();
      for (size_t j = 0; j < 4; ++j) {
        DenseLayer& layer = block[j];
        layer.depth = sizes[j][0];
        layer.columns = sizes[j][1];
        layer.kernel.resize(static_cast<size_t>(layer.depth * layer.columns));
        layer.bias.resize(static_cast<size_t>(layer.columns));
        for (double& x : layer.kernel) x = rounded_to(type, element(layer.depth));
        for (double& x : layer.bias) x = rounded_to(vit::DType::kFloat32, element(1));
      }
    }
  }

  // Normal inputs around `mean`, and weights that keep their size.
  void fill(Random& random, int64_t count, double mean) {
    input.resize(static_cast<size_t>(batch * tokens * width));
    for (double& x : input) x = rounded_to(vit::DType::kFloat32, mean + random.normal());
    add_blocks(count,
               [&](int64_t depth) { return random.normal() / sqrt(static_cast<double>(depth)); });
  }
};

// A layer in layout 1.
inline void pack(vit::DType type, const DenseLayer& layer, std::vector<double>& to) {
  const int64_t k = type == vit::DType::kFloat32 ? 1 : 2;
  for (int64_t panel = 0; panel < layer.columns; panel += 64) {
    for (int64_t step = 0; step < layer.depth; step += k) {
      for (int64_t column = panel; column < panel + 64; ++column) {
        for (int64_t row = step; row < step + k; ++row) {
          const bool there = row < layer.depth && column < layer.columns;
          const auto at = static_cast<size_t>(row * layer.columns + column);
          to.push_back(there ? layer.kernel[at] : 0);
        }
      }
    }
  }
}

inline std::vector<double> packed_weights(const EncoderCase& problem, size_t block) {
  std::vector<double> result;
  for (const DenseLayer& layer : problem.blocks[block]) pack(problem.type, layer, result);
  return result;
}

inline std::vector<double> all_biases(const EncoderCase& problem, size_t block) {
  std::vector<double> result;
  for (const DenseLayer& layer : problem.blocks[block]) {
    result.insert(result.end(), layer.bias.begin(), layer.bias.end());
  }
  return result;
}

inline double gelu(vit::Activation activation, double x) {
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
    for (const auto& block : c_.blocks) {
      add(stream, dense(block[1], attend(dense(block[0], norm(stream)))), activation_unit);
      Numbers hidden = dense(block[2], norm(stream));
      for (size_t i = 0; i < hidden.value.size(); ++i) {
        const double x = hidden.value[i], step = 1e-5;
        const double slope = (gelu(c_.activation, x + step) - gelu(c_.activation, x - step)) / 2e-5;
        hidden.value[i] = gelu(c_.activation, x);
        hidden.units[i] = hypot(hidden.value[i], slope * hidden.units[i]);
      }
      add(stream, dense(block[3], hidden), activation_unit);
    }
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
  Tensor input, out;
  std::vector<std::unique_ptr<Tensor>> weights, biases;
  std::vector<vit::EncoderBlock> block;

  // Weights are aligned to 4 bytes: pairs of bfloat16 are read together.
  EncoderRun(const EncoderCase& problem, int shift)
      : problem(problem),
        input(vit::DType::kFloat32, problem.input, shift),
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
    EXPECT(input.intact(), "the input was written");
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

inline void say(const char* what, const EncoderCase& c) {
  testing("%s: %s %s, batch %lld, %lld tokens, width %lld, %lld heads, MLP %lld, %zu blocks%s%s",
          what, isa(), name(c.type), number(c.batch), number(c.tokens), number(c.width),
          number(c.heads), number(c.mlp_size), c.blocks.size(),
          c.activation == vit::Activation::kGeluErf ? ", erf" : "",
          c.first_row_only ? ", first row" : "");
}

}  // namespace vit_test

#endif  // TESTS_CC_ENCODER_ORACLE_H_
