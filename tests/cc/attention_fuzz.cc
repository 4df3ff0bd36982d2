// libFuzzer on attention of CPUs and of the GPU of gpu_emulation.h: shapes, strides, types and
// contents. Kernels must not write outside of their outputs, and any order of the units, or of
// blocks and warps, must give the same bits. For plain numbers the results must match the oracle,
// and so be finite.
#include <algorithm>

#include "tests/cc/attention_run.h"
#include "tests/cc/fuzz.h"
#include "tests/cc/gpu_emulation.h"
#include "tests/cc/gpu_scratch.h"

namespace {

using namespace vit_test;

// Maximum products in one run of the oracle, and of the emulation, which takes 100 times as long as
// a CPU; streams of warpgroups, which few inputs are, may have more.
constexpr int64_t kMostProducts = 40000, kMostEmulated = 10000;

vit::AttentionShape pick_shape(Input& input) {
  const int axis = static_cast<int>(input.pick(0, 2));
  const int64_t heads = input.pick(1, 3), size = input.pick(1, 40), batch = input.pick(0, 3);
  if (axis) return vit::grid_shape(batch, input.pick(0, 24), input.pick(0, 24), heads, size, axis);
  // Sometimes uses more keys than a block holds, or so many that rows are packed.
  if (input.pick(0, 15) == 15) {
    return vit::sequence_shape(1, 4 * input.pick(90, 270) + input.pick(0, 3), 1, 1 + size % 2);
  }
  return vit::sequence_shape(batch, input.pick(0, 70), heads, size);
}

// Lines of more than a tile, and heads of whole octets: with 16 bits and no bias, warpgroups take
// them as streams.
vit::AttentionShape pick_stream_shape(Input& input) {
  const int axis = static_cast<int>(input.pick(0, 2));
  const int64_t tokens = input.pick(65, 82), lines = input.pick(1, 2);
  const int64_t heads = input.pick(1, 2), size = 8 * input.pick(1, 10);
  if (axis == 0) return vit::sequence_shape(lines, tokens, heads, size);
  return axis == 1 ? vit::grid_shape(1, tokens, lines, heads, size, axis)
                   : vit::grid_shape(1, lines, tokens, heads, size, axis);
}

int64_t products(const vit::AttentionShape& s) {
  return s.batch * s.lines * s.heads * s.tokens * s.tokens * s.head_size;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  input.pick_isa();
  const bool is_stream = input.pick(0, 15) == 15;
  constexpr vit::DType kStreamTypes[] = {vit::DType::kBfloat16, vit::DType::kFloat16};
  const vit::DType type =
      is_stream ? kStreamTypes[input.pick(0, 1)] : kFloatTypes[input.pick(0, 3)];
  const vit::AttentionShape shape = is_stream ? pick_stream_shape(input) : pick_shape(input);
  AttentionCase problem = {type, shape, 0, 0, {}, {}, {}, {}};
  const bool is_long = shape.tokens > 100;
  if (!is_stream && !is_long && products(shape) > 4 * kMostProducts) return 0;
  const Contents contents = input.contents();
  const int64_t count = problem.positions() * problem.width();
  problem.qkv = input.numbers(problem.type, 3 * count, contents);
  // Large logits, scaled by powers of two, as long as gradients of 16-bit numbers stay finite.
  const bool plain = contents == Contents::kPlain;
  const int64_t most = type == vit::DType::kFloat16 ? 1 : 3;
  const double times = plain ? ldexp(1, 4 * static_cast<int>(input.pick(0, most))) : 1;
  for (double& x : problem.qkv) x *= times;
  problem.d_out = input.numbers(problem.type, count, contents);
  if (!is_stream && input.pick(0, 2)) {
    std::vector<int> order = {0, 1, 2, 3, 4};
    for (int turn = 0; turn < 2; ++turn) {
      std::swap(order[static_cast<size_t>(input.pick(0, 4))],
                order[static_cast<size_t>(input.pick(0, 4))]);
    }
    shape_bias(problem, static_cast<int>(input.pick(0, 31)), order);
    if (problem.bias.size() > 200000) return 0;
    const int64_t numbers = static_cast<int64_t>(problem.bias.size());
    problem.bias = input.numbers(accumulator(problem.type), numbers, contents);
    const double bias_times = plain ? ldexp(1, 10 * static_cast<int>(input.pick(0, 3))) : 1;
    for (double& x : problem.bias) x *= bias_times;
    const int64_t closed = input.pick(0, 4);
    Random random(static_cast<uint64_t>(numbers));
    for (double& x : problem.bias) {
      if (random.below(4) < closed) x = -HUGE_VAL;
    }
  }
  if (problem.has_taps() && problem.shape.tokens) {
    problem.columns = input.pick(1, std::min<int64_t>(problem.shape.tokens, 9));
    problem.rows = problem.shape.tokens / problem.columns - input.pick(0, 1);
    if (problem.rows == 0) problem.columns = 0;
  }

  const bool is_emulated = type != vit::DType::kFloat64 && products(shape) <= kMostEmulated;
  const bool on_gpu = is_stream || (is_emulated && input.pick(0, 7) == 7);
  testing("%s %s", on_gpu ? "gpu" : isa(), name(problem.type));
  const int shift = is_stream ? 0 : static_cast<int>(input.pick(0, 3));
  AttentionRun run(problem, shift), again(problem, shift);
  if (on_gpu) {
    const int multiprocessors = static_cast<int>(input.pick(is_stream, 4));
    set_warpgroup_multiprocessors(multiprocessors);
    set_most_shared_bytes(multiprocessors ? 227 << 10 : kLeastSharedBytes);
    set_reversed(false);
    run.all(Gpu());
    set_reversed(true);
    again.all(Gpu());
  } else {
    run.all(vit::serial());
    Shuffled shuffled(static_cast<uint64_t>(input.pick(0, 255)), 1);
    again.all(shuffled.parallel_for());
  }
  again.expect_same(run);
  run.expect_intact();
  again.expect_intact();
  if (contents == Contents::kPlain && (is_stream || products(shape) <= kMostProducts)) {
    run.expect(AttentionOracle(problem, on_gpu).run());
  }
  return end_of_run();
}
