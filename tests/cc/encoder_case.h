// Cases of the encoder.
#ifndef TESTS_CC_ENCODER_CASE_H_
#define TESTS_CC_ENCODER_CASE_H_

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
  // Of every block: [4, head_size], the scale and bias of queries and those of keys. None: no norm.
  std::vector<std::vector<double>> qk_norm = {};
  // [rotary_tokens, 2, head_size / 2]: cosines and sines.
  std::vector<double> rotary = {};
  int64_t rotary_tokens = 0;
  bool has_rotary = false;

  int64_t out_tokens() const { return first_row_only ? 1 : tokens; }

  // Whether the kernels of the instruction set in use round activations to bfloat16.
  bool rounds() const {
    return type == vit::DType::kBfloat16 && width % 2 == 0 &&
           vit::current_isa() >= vit::Isa::kAvx512Bf16;
  }

  // Adds blocks whose kernels and biases are element(depth), rounded to their types.
  template <class Element>
  void add_blocks(int64_t count, const Element& element) {
    const int64_t sizes[4][2] = {{width, 3 * width},
                                 {width, width},
                                 {width, vit::fc1_columns(activation, mlp_size)},
                                 {mlp_size, width}};
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

  // Adds a norm of queries and keys to the blocks, or rotary positions of the last tokens.
  void add_qk_norm(Random& random) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      std::vector<double>& norm = qk_norm.emplace_back();
      for (int64_t j = 0; j < vit::qk_norm_size(width / heads); ++j) {
        norm.push_back(rounded_to(vit::DType::kFloat32, 1 + 0.5 * random.normal()));
      }
    }
  }
  void add_rotary(Random& random, int64_t count) {
    has_rotary = true;
    rotary_tokens = count;
    const int64_t half = width / heads / 2;
    for (int64_t i = 0; i < count; ++i) {
      std::vector<double> angles(static_cast<size_t>(half));
      for (double& x : angles) x = 3 * random.normal();
      for (double x : angles) rotary.push_back(rounded_to(vit::DType::kFloat32, cos(x)));
      for (double x : angles) rotary.push_back(rounded_to(vit::DType::kFloat32, sin(x)));
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

// fc1 of SwiGLU, gate | up, with the columns in the order of its panels.
inline DenseLayer in_panels(const DenseLayer& layer) {
  const int64_t size = layer.columns / 2, columns = (size + 31) / 32 * 64;
  DenseLayer result = {layer.depth, columns, {}, {}};
  for (int64_t row = 0; row < layer.depth; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t j = column / 64 * 32 + column % 32;
      const int64_t from = row * layer.columns + (column % 64 < 32 ? 0 : size) + j;
      result.kernel.push_back(j < size ? layer.kernel[static_cast<size_t>(from)] : 0);
    }
  }
  return result;
}

inline std::vector<double> packed_weights(const EncoderCase& problem, size_t block) {
  std::vector<double> result;
  const auto& layers = problem.blocks[block];
  const bool is_gated = problem.activation == vit::Activation::kSwiglu;
  for (size_t i = 0; i < 4; ++i) {
    pack(problem.type, is_gated && i == 2 ? in_panels(layers[i]) : layers[i], result);
  }
  return result;
}

inline std::vector<double> all_biases(const EncoderCase& problem, size_t block) {
  std::vector<double> result;
  for (const DenseLayer& layer : problem.blocks[block]) {
    result.insert(result.end(), layer.bias.begin(), layer.bias.end());
  }
  if (!problem.qk_norm.empty()) {
    const std::vector<double>& norm = problem.qk_norm[block];
    result.insert(result.end(), norm.begin(), norm.end());
  }
  return result;
}

constexpr vit::DType kTypes[] = {vit::DType::kFloat32, vit::DType::kBfloat16};

// Maybe a norm of queries and keys, and rotary positions of all tokens but up to two.
inline void add_features(Random& random, EncoderCase& problem) {
  if (random.below(3) == 0) problem.add_qk_norm(random);
  if (problem.width / problem.heads % 2 == 0 && random.below(2)) {
    const int64_t most = problem.tokens < 2 ? problem.tokens : 2;
    problem.add_rotary(random, problem.tokens - random.below(most + 1));
  }
}

inline EncoderCase make(Random& random, vit::DType type, int64_t batch, int64_t tokens,
                        int64_t width, int64_t heads, int64_t mlp_size, int64_t blocks = 1,
                        bool first_row_only = false, double mean = 0) {
  EncoderCase result = {type,
                        batch,
                        tokens,
                        width,
                        heads,
                        mlp_size,
                        static_cast<vit::Activation>(random.below(3)),
                        first_row_only};
  result.fill(random, blocks, mean);
  add_features(random, result);
  return result;
}

// SwiGLU with a norm of queries and keys and rotary positions.
inline EncoderCase make_modern(Random& random, vit::DType type, int64_t batch, int64_t tokens,
                               int64_t width, int64_t heads, int64_t mlp_size, int64_t blocks,
                               bool first_row_only, int64_t prefix) {
  EncoderCase result = {
      type, batch, tokens, width, heads, mlp_size, vit::Activation::kSwiglu, first_row_only};
  result.fill(random, blocks, 0);
  result.add_qk_norm(random);
  result.add_rotary(random, tokens - prefix);
  return result;
}

inline void say(const char* what, const EncoderCase& c) {
  constexpr const char* kActivations[] = {"", ", erf", ", SwiGLU"};
  testing(
      "%s: %s %s, batch %lld, %lld tokens, width %lld, %lld heads, MLP %lld, %zu blocks%s%s%s%s",
      what, isa(), name(c.type), number(c.batch), number(c.tokens), number(c.width),
      number(c.heads), number(c.mlp_size), c.blocks.size(),
      kActivations[static_cast<int>(c.activation)], c.first_row_only ? ", first row" : "",
      c.qk_norm.empty() ? "" : ", norm of queries and keys", c.has_rotary ? ", rotary" : "");
}

}  // namespace vit_test

#endif  // TESTS_CC_ENCODER_CASE_H_
