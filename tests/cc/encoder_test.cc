// The encoder against its definition in doubles.
#include "tests/cc/encoder_ends.h"

namespace {

using namespace vit_test;
using vit::Activation;
using vit::DType;

void compare(const char* what, const EncoderCase& problem, int shift) {
  EncoderRun run(problem, shift);
  for_each_isa([&] {
    say(what, problem);
    run.all(vit::serial());
    run.expect();
  });
}

// Around the edges of tiles, panels, pairs, and parts of a depth.
void test_sizes() {
  constexpr int64_t kRows[][2] = {{1, 1},  {3, 5},  {1, 16}, {1, 17}, {1, 31}, {2, 16},
                                  {3, 11}, {1, 47}, {3, 16}, {1, 49}, {2, 1},  {3, 1}};
  constexpr int64_t kWidths[][2] = {{30, 3}, {31, 1}, {32, 2}, {33, 3}, {34, 2}, {62, 2}, {63, 7},
                                    {64, 2}, {65, 5}, {66, 3}, {96, 6}, {1, 1},  {2, 1}};
  constexpr int64_t kMlpSizes[] = {128, 1, 3, 65, 130, 64, 31, 1025, 96, 33, 1100};
  Random random(21);
  int turn = 0;
  for (DType type : kTypes) {
    for (int i = 0; i < 26; ++i, ++turn) {
      const auto& rows = kRows[turn % 12];
      const auto& widths = kWidths[turn % 13];
      compare("sizes",
              make(random, type, rows[0], rows[1], widths[0], widths[1], kMlpSizes[turn % 11],
                   1 + turn % 5 / 4, turn % 3 == 0),
              turn % 4);
    }
    // Three parts of the depth of fc2, and several blocks of rows.
    compare("sizes", make(random, type, 1, 3, 64, 1, 2100), 0);
    for (bool first_row_only : {false, true}) {
      compare("sizes", make(random, type, 1, 197, 66, 3, 70, 2, first_row_only), 1);
    }
  }
}

// Heads that are whole in a panel, of fewer elements than a vector too, and heads that are not.
void test_heads() {
  constexpr int64_t kWidths[][2] = {{64, 1}, {128, 2}, {96, 3}, {24, 3},  {2, 1},
                                    {36, 3}, {144, 2}, {80, 1}, {128, 1}, {66, 1}};
  constexpr int64_t kMlpSizes[] = {64, 1, 31, 33, 70};
  Random random(31);
  int turn = 0;
  for (DType type : kTypes) {
    for (const auto& [width, heads] : kWidths) {
      for (bool first_row_only : {false, true}) {
        ++turn;
        compare("heads",
                make_modern(random, type, 2, 5 + turn % 3, width, heads, kMlpSizes[turn % 5], 2,
                            first_row_only, turn % 4),
                turn % 4);
      }
    }
  }
}

EndsCase make_ends(Random& random, DType type, DType image_type, const vit::PatchShape& shape,
                   int heads, int64_t blocks, int head, int64_t classes) {
  const bool has_head = head < 3;
  EndsCase result = {make(random, type, shape.batch, shape.tokens(), shape.features, heads, 40),
                     image_type,
                     shape,
                     0.25,
                     -1,
                     has_head,
                     has_head ? static_cast<vit::Pooling>(head) : vit::Pooling::kNone};
  result.blocks.blocks.clear();
  result.blocks.qk_norm.clear();
  result.blocks.rotary.clear();
  result.blocks.rotary_tokens = 0;
  result.blocks.has_rotary = false;
  result.blocks.first_row_only = has_head ? result.pooling == vit::Pooling::kToken : head == 4;
  result.fill(random, blocks, classes, random.below(3) > 0);
  add_features(random, result.blocks);
  return result;
}

void say(const EndsCase& c) {
  say("ends", c.blocks);
  testing("%s: %s of %lldx%lld, patches of %lld, %lld channels, %lld prefix, head %d, %lld classes",
          isa(), name(c.image_type), number(c.shape.height), number(c.shape.width),
          number(c.shape.patch_size), number(c.shape.channels), number(c.shape.prefix),
          c.has_head ? static_cast<int>(c.pooling) : -1, number(c.classes.columns));
}

// From images to tokens, their mean or token 0, or classes; pixels beyond the grid.
void test_ends() {
  constexpr DType kImages[] = {DType::kUint8, DType::kFloat32, DType::kBfloat16, DType::kFloat16};
  const vit::PatchShape shapes[] = {{2, 9, 14, 3, 4, 32, 1}, {1, 4, 4, 1, 1, 30, 0},
                                    {3, 7, 6, 3, 3, 66, 2},  {1, 33, 32, 2, 8, 34, 1},
                                    {2, 5, 3, 5, 1, 64, 0},  {2, 16, 16, 3, 16, 96, 1}};
  constexpr int64_t kClasses[] = {0, 1, 10, 65};
  Random random(25);
  uint64_t seed = 0;
  for (DType type : kTypes) {
    for (int turn = 0; turn < 30; ++turn) {
      const vit::PatchShape& shape = shapes[turn % 6];
      const int head = turn % 5, heads = shape.features % 3 ? 2 : 3;
      const bool has_token = shape.prefix > 0 || (head != 1 && head != 4);
      const EndsCase problem = make_ends(random, type, kImages[turn % 4], shape, heads,
                                         1 + turn % 2, has_token ? head : 2, kClasses[turn % 4]);
      EndsRun run(problem, turn % 4), many(problem, turn % 4);
      for_each_isa([&] {
        say(problem);
        expect_same_on_threads(run, many, seed);
        run.expect();
      });
    }
  }
}

// The mean of a row is subtracted before it is squared.
void test_large_means() {
  Random random(22);
  for (DType type : kTypes) {
    for (double mean : {1e2, -1e4}) {
      compare("large mean", make(random, type, 2, 5, 96, 3, 64, 1, false, mean), 0);
    }
  }
}

// A large epsilon makes normalised rows small.
void test_epsilon() {
  Random random(23);
  for (DType type : kTypes) {
    EncoderCase problem = make(random, type, 2, 5, 34, 2, 40);
    problem.epsilon = 0.5;
    compare("epsilon", problem, 0);
  }
}

// The products and sums of these numbers are exact in every type: each product counts once. Rows
// are balanced -1 and 1, so that LayerNorm does not change them (1 + epsilon is 1). There is one
// token, whose attention is v. The sums of fc1 are multiples of 16, for which GELU(x) is x or 0.
void test_exact_products() {
  Random random(24);
  for (DType type : kTypes) {
    for (int64_t width : {2, 30, 32, 34, 62, 64, 66, 96, 130}) {
      for (int64_t mlp_size : {1, 31, 33, 64, 97, 1056, 1100}) {
        const int64_t batch = 1 + random.below(49);
        EncoderCase problem = {
            type, batch, 1, width, 1, mlp_size, Activation::kGeluTanh, random.below(2) == 1};
        problem.epsilon = 0x1p-30;
        for (int64_t i = 0; i < batch * width; ++i) problem.input.push_back(i % 2 ? 1 : -1);
        for (int64_t i = 0; i < batch; ++i) {
          for (int64_t j = width; j > 2; j -= 2) {
            const auto row = static_cast<size_t>(i * width);
            std::swap(problem.input[row + static_cast<size_t>(j - 1)],
                      problem.input[row + static_cast<size_t>(random.below(j))]);
          }
        }
        problem.add_blocks(1, [&](int64_t) { return static_cast<double>(random.below(3) - 1); });
        auto& [qkv, out, fc1, fc2] = problem.blocks[0];
        // Attention is added in multiples of the row, to keep it balanced: out is 0.
        for (double& x : out.kernel) x = 0;
        for (double& x : out.bias) x = 0;
        for (double& x : fc1.kernel) x *= 16;
        for (double& x : fc1.bias) x *= 16;
        EncoderRun run(problem, 0);
        Expected expected(batch * width);
        std::vector<double> hidden(static_cast<size_t>(mlp_size));
        for (int64_t row = 0; row < batch; ++row) {
          const double* x = &problem.input[static_cast<size_t>(row * width)];
          const auto layer = [](const DenseLayer& dense, const double* from, int64_t column) {
            double sum = dense.bias[static_cast<size_t>(column)];
            for (int64_t i = 0; i < dense.depth; ++i) {
              sum += from[i] * dense.kernel[static_cast<size_t>(i * dense.columns + column)];
            }
            return sum;
          };
          for (int64_t j = 0; j < mlp_size; ++j) {
            hidden[static_cast<size_t>(j)] = fmax(layer(fc1, x, j), 0);
          }
          for (int64_t j = 0; j < width; ++j) {
            expected.set(row * width + j, x[j] + layer(fc2, hidden.data(), j), 0);
          }
        }
        for_each_isa([&] {
          say("exact products", problem);
          run.all(vit::serial());
          int64_t wrong = 0;
          for (int64_t i = 0; i < run.out.count(); ++i) {
            wrong += run.out.at(i) != expected.value[static_cast<size_t>(i)];
          }
          EXPECT(wrong == 0, "%lld elements are not exact", number(wrong));
        });
      }
    }
  }
}

// NaN and infinity in one image do not reach the others.
void test_not_finite() {
  Random random(25);
  for (DType type : kTypes) {
    for (int64_t width : {33, 64}) {
      const EncoderCase clean = make(random, type, 3, 7, width, 1, 65);
      EncoderCase problem = clean;
      const int64_t image = 7 * width;
      for (int64_t i = 0; i < image; ++i) {
        problem.input[static_cast<size_t>(image + i)] = i % 3 == 0        ? NAN
                                                        : i % 3 - 1.5 > 0 ? 3e38
                                                                          : HUGE_VAL;
      }
      EncoderRun run(problem, 0), other(clean, 0);
      for_each_isa([&] {
        say("not finite", problem);
        run.all(vit::serial());
        other.all(vit::serial());
        for (int64_t i = 0; i < 3 * image; ++i) {
          const bool same = run.out.at(i) == other.out.at(i);
          if (i / image != 1 && same) continue;
          if (i / image == 1 && isnan(run.out.at(i))) continue;
          EXPECT(false, "out[%lld] is %g", number(i), run.out.at(i));
          break;
        }
      });
    }
  }
}

void test_no_elements() {
  Random random(26);
  for (DType type : kTypes) {
    for (const auto& [batch, tokens] : {std::pair{0, 5}, {2, 0}}) {
      const EncoderCase problem = make(random, type, batch, tokens, 12, 3, 7);
      compare("no elements", problem, 0);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "sizes")) test_sizes();
  if (wanted(argc, argv, "heads")) test_heads();
  if (wanted(argc, argv, "ends")) test_ends();
  if (wanted(argc, argv, "large_means")) test_large_means();
  if (wanted(argc, argv, "epsilon")) test_epsilon();
  if (wanted(argc, argv, "exact_products")) test_exact_products();
  if (wanted(argc, argv, "not_finite")) test_not_finite();
  if (wanted(argc, argv, "no_elements")) test_no_elements();
  return finish();
}
