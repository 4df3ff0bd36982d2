// libFuzzer on the interface of cpu/encoder/encoder.h: sizes, types and contents. The encoder must
// not write outside of its output, and any order of the units must give the same bits. For plain
// numbers the results must match the oracle, and so be finite.
#include "tests/cc/encoder_oracle.h"
#include "tests/cc/fuzz.h"

namespace {

using namespace vit_test;

// Maximum products in one run of the oracle.
constexpr int64_t kMostProducts = 100000;

int64_t products(const EncoderCase& c, int64_t blocks) {
  return blocks * c.batch * c.tokens * (4 * c.width + 2 * c.mlp_size + 2 * c.tokens) * c.width;
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
  // Sometimes deeper than the parts of fc2.
  problem.mlp_size = input.pick(0, 15) == 15 ? 1000 + input.pick(0, 100) : input.pick(1, 150);
  problem.activation = input.pick(0, 1) ? vit::Activation::kGeluErf : vit::Activation::kGeluTanh;
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

  say("fuzzing", problem);
  const int shift = static_cast<int>(input.pick(0, 3));
  EncoderRun run(problem, shift), again(problem, shift);
  run.all(vit::serial());
  Shuffled shuffled(static_cast<uint64_t>(input.pick(0, 255)), 1);
  again.all(shuffled.parallel_for());
  again.expect_same(run);
  run.expect_intact();
  again.expect_intact();
  if (contents == Contents::kPlain && products(problem, blocks) <= kMostProducts) run.expect();
  return end_of_run();
}
