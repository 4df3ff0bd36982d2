// libFuzzer on the interface of cpu/encoder/cpu_encoder.h: sizes, types and contents. The encoder
// must not write outside of its output, and any order of the units must give the same bits. For
// plain numbers the results must match the oracle, and so be finite.
#include "tests/cc/encoder_ends.h"
#include "tests/cc/fuzz.h"

namespace {

using namespace vit_test;

// Maximum products in one run of the oracle.
constexpr int64_t kMostProducts = 100000;

int64_t products(const EncoderCase& c, int64_t blocks) {
  return blocks * c.batch * c.tokens * (4 * c.width + 3 * c.mlp_size + 2 * c.tokens) * c.width;
}

// Checks two runs of a case, one of them on a thread that takes any ranges.
template <class Run, class Case>
void check(Input& input, const Case& problem, bool is_plain) {
  const int shift = static_cast<int>(input.pick(0, 3));
  Run run(problem, shift), again(problem, shift);
  run.all(vit::serial());
  Shuffled shuffled(static_cast<uint64_t>(input.pick(0, 255)), 1);
  again.all(shuffled.parallel_for());
  again.expect_same(run);
  run.expect_intact();
  again.expect_intact();
  if (is_plain) run.expect();
}

// Images before the blocks, and maybe the final LayerNorm, pooling and a dense layer behind them.
EndsCase ends_of(Input& input, const EncoderCase& blocks, const vit::PatchShape& shape,
                 Contents contents) {
  constexpr vit::DType kImages[] = {vit::DType::kUint8, vit::DType::kFloat32, vit::DType::kBfloat16,
                                    vit::DType::kFloat16};
  const int64_t head = input.pick(blocks.first_row_only ? 1 : 0, 3);
  const bool has_head = head < 3;
  EndsCase ends = {blocks,
                   kImages[input.pick(0, 3)],
                   shape,
                   0.5,
                   -1,
                   has_head,
                   has_head ? static_cast<vit::Pooling>(head) : vit::Pooling::kNone};
  ends.blocks.first_row_only = has_head ? head == 1 : blocks.first_row_only;
  const auto draw = [&](vit::DType type, int64_t count) {
    return input.numbers(type, count, contents);
  };
  constexpr vit::DType kFloat = vit::DType::kFloat32;
  const int64_t width = blocks.width, classes = input.pick(0, 70);
  ends.images = draw(ends.image_type, shape.batch * shape.height * shape.width * shape.channels);
  ends.kernel = {shape.patch_elements(), width, draw(blocks.type, shape.patch_elements() * width),
                 draw(kFloat, width)};
  ends.prefix = draw(kFloat, shape.prefix * width);
  if (input.pick(0, 1)) ends.position = draw(kFloat, blocks.tokens * width);
  ends.norm_scale = draw(kFloat, width);
  ends.norm_bias = draw(kFloat, width);
  ends.classes = {width, classes, draw(kFloat, width * classes), draw(kFloat, classes)};
  return ends;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  input.pick_isa();
  EncoderCase problem = {};
  problem.type = input.pick(0, 1) ? vit::DType::kFloat32 : vit::DType::kBfloat16;
  problem.heads = input.pick(1, 4);
  problem.width = problem.heads * input.pick(1, 40);
  problem.batch = input.pick(0, 3);
  problem.first_row_only = input.pick(0, 1);
  problem.tokens = input.pick(problem.first_row_only, 70);
  vit::PatchShape shape = {};
  const bool has_images = input.pick(0, 1);
  if (has_images) {
    const int64_t patch = input.pick(1, 6), rows = input.pick(1, 6), columns = input.pick(1, 6);
    shape = {problem.batch,
             rows * patch + input.pick(0, patch - 1),
             columns * patch + input.pick(0, patch - 1),
             input.pick(1, 4),
             patch,
             problem.width,
             input.pick(0, 2)};
    problem.tokens = shape.tokens();
  }
  // Sometimes deeper than the parts of fc2.
  problem.mlp_size = input.pick(0, 15) == 15 ? 2000 + input.pick(0, 100) : input.pick(1, 150);
  problem.activation = static_cast<vit::Activation>(input.pick(0, 2));
  const double epsilons[] = {1e-6, 1e-3, 1};
  problem.epsilon = epsilons[input.pick(0, 2)];
  const int64_t blocks = input.pick(1, 3);
  if (products(problem, blocks) > 4 * kMostProducts) return 0;
  const Contents contents = input.contents();
  const vit::DType float_type = vit::DType::kFloat32;
  problem.input =
      input.numbers(float_type, problem.batch * problem.tokens * problem.width, contents);
  problem.add_blocks(blocks, [](int64_t) { return 0; });
  for (auto& block : problem.blocks) {
    for (DenseLayer& layer : block) {
      layer.kernel = input.numbers(problem.type, layer.depth * layer.columns, contents);
      layer.bias = input.numbers(float_type, layer.columns, contents);
      // Weights keep the size of the tokens. Powers of two stay exact.
      const double factor = ldexp(1, -ilogb(sqrt(static_cast<double>(layer.depth))));
      for (double& x : layer.kernel) x = rounded_to(problem.type, x * factor);
    }
  }
  const int64_t head_size = problem.width / problem.heads;
  if (input.pick(0, 1)) {
    for (int64_t i = 0; i < blocks; ++i) {
      problem.qk_norm.push_back(input.numbers(float_type, vit::qk_norm_size(head_size), contents));
    }
  }
  problem.has_rotary = head_size % 2 == 0 && input.pick(0, 1);
  if (problem.has_rotary) {
    problem.rotary_tokens = input.pick(0, problem.tokens);
    problem.rotary = input.numbers(float_type, problem.rotary_tokens * head_size, contents);
  }

  say("fuzzing", problem);
  const bool is_plain = contents == Contents::kPlain && products(problem, blocks) <= kMostProducts;
  if (has_images) {
    check<EndsRun>(input, ends_of(input, problem, shape, contents), is_plain);
  } else {
    check<EncoderRun>(input, problem, is_plain);
  }
  return end_of_run();
}
