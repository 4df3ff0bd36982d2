// How attention runs: the number of threads changes no bit, scratch is small, and calls without
// scratch fail.
#include <algorithm>
#include <cmath>

#include "tests/cc/attention_run.h"

namespace {

using namespace vit_test;
using vit::DType;

void test_threads() {
  struct {
    vit::AttentionShape shape;
    int mask;
  } cases[] = {
      {vit::sequence_shape(3, 50, 12, 20), 0}, {vit::sequence_shape(2, 35, 3, 6), 15},
      {vit::sequence_shape(1, 1030, 2, 4), 1},  // groups of queries
      {vit::sequence_shape(40, 49, 2, 32), 7},  // groups of lines with the same bias
      {vit::grid_shape(2, 9, 17, 2, 5, 1), 3}, {vit::grid_shape(2, 9, 17, 2, 6, 2), 29},
      {vit::sequence_shape(2, 70, 2, 3), 2},
  };
  uint64_t seed = 0;
  for (const auto& c : cases) {
    for (DType type : kFloatTypes) {
      Random random(3);
      AttentionCase problem = make(random, type, c.shape);
      if (c.mask) {
        shape_bias(problem, c.mask);
        fill_bias(random, problem);
      }
      AttentionRun one(problem, 1), many(problem, 1);
      for_each_isa([&] {
        testing("threads: %s %s, %lld tokens", isa(), name(type), number(c.shape.tokens));
        expect_same_on_threads(one, many, seed);
      });
    }
  }
}

// The units and the cycles of the kernels of a call. The kernels do not run.
struct Work {
  int64_t most_units = 0;
  double cycles = 0;
  // The part of the units of the largest kernel that the busiest of 32 threads gets.
  double time_of_32() const {
    const auto units = static_cast<double>(most_units);
    return std::ceil(units / 32) / units;
  }
  vit::ParallelFor parallel_for() {
    return {[](void* pool, int64_t total, int64_t cost, vit::RangeBody, void*) {
              Work& self = *static_cast<Work*>(pool);
              self.most_units = std::max(self.most_units, total);
              self.cycles += static_cast<double>(total) * static_cast<double>(cost);
            },
            nullptr, this, 32};
  }
};

// Work for 32 threads, and costs by which they are used: ViT-Ti/16, -S/16 and -B/16 at batch 1, and
// a bias that many windows share.
void test_units() {
  Random random(5);
  for_each_isa([&] {
    testing("units: %s", isa());
    for (DType type : {DType::kFloat32, DType::kBfloat16}) {
      for (int64_t heads : {3, 6, 12}) {
        const AttentionCase image = make(random, type, vit::sequence_shape(1, 197, heads, 64));
        AttentionRun run(image, 0);
        Work forward, backward;
        run.forward(forward.parallel_for());
        run.backward(backward.parallel_for());
        EXPECT(forward.time_of_32() < 1.0 / 20, "forward of %lld heads takes %g of its work",
               number(heads), forward.time_of_32());
        EXPECT(backward.time_of_32() < 1.0 / 20, "backward of %lld heads takes %g of its work",
               number(heads), backward.time_of_32());
      }
    }
    AttentionCase windows = make(random, DType::kFloat32, vit::sequence_shape(256, 49, 3, 32));
    shape_bias(windows, 7);
    AttentionRun many(windows, 0);
    Work bias;
    many.bias_gradient(bias.parallel_for());
    EXPECT(bias.most_units >= 32, "the gradient of the bias has %lld units",
           number(bias.most_units));
    const double products = 2.0 * 256 * 3 * 49 * 49 * 32;
    EXPECT(bias.cycles > products / 32 && bias.cycles < products,
           "the gradient of the bias has %g cycles for %g products", bias.cycles, products);

    // One long line: fewer groups, so that their sums take a bounded amount of memory.
    const AttentionCase line = make(random, DType::kFloat32, vit::sequence_shape(1, 16000, 1, 64));
    AttentionRun one(line, 0);
    Work backward;
    scratch_use().largest = 0;
    one.backward(backward.parallel_for());
    EXPECT(scratch_use().largest <= 64 << 20, "the sums of groups take %lld bytes",
           number(scratch_use().largest));
    EXPECT(backward.most_units > 1, "the line is not split");
  });
}

void test_scratch() {
  for (DType type : kFloatTypes) {
    for (int64_t size : {64, 5}) {
      for_each_isa([&] {
        testing("scratch: %s %s, head size %lld", isa(), name(type), number(size));
        const auto bytes = [&](int64_t tokens) {
          const vit::AttentionForwardProblem problem = {
              {type, vit::sequence_shape(1, tokens, 2, size), 1, nullptr, {}}, nullptr, nullptr};
          return vit::attention_forward_kernel(problem).scratch_bytes(problem);
        };
        EXPECT(bytes(4000) - bytes(2000) <= 2 * (bytes(2000) - bytes(1000)) + 256,
               "scratch grows faster than the tokens: %lld, %lld, %lld", number(bytes(1000)),
               number(bytes(2000)), number(bytes(4000)));
        EXPECT(type == DType::kFloat64 || bytes(1370) < 2 << 20, "1370 tokens take %lld bytes",
               number(bytes(1370)));

        Random random(4);
        AttentionCase problem = make(random, type, vit::sequence_shape(1, 40, 2, size));
        shape_bias(problem, 3);
        AttentionRun run(problem, 0);
        scratch_use().largest = 0;
        run.strides.data = nullptr;
        run.forward(vit::serial());
        EXPECT(scratch_use().largest == bytes(40), "%lld bytes are used, not %lld",
               number(scratch_use().largest), number(bytes(40)));
        run.strides.data = run.bias.data();

        scratch_use().refuse = true;
        const vit::Result out_of_memory = vit::Result::kOutOfMemory;
        EXPECT(run.forward(vit::serial()) == out_of_memory, "forward does not report it");
        EXPECT(run.backward(backwards()) == out_of_memory, "backward does not report it");
        EXPECT(run.bias_gradient(vit::serial()) == out_of_memory,
               "bias gradient does not report it");
        EXPECT(run.taps(vit::serial()) == out_of_memory, "taps do not report it");
        scratch_use().refuse = false;
        run.expect_intact();
      });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "threads")) test_threads();
  if (wanted(argc, argv, "units")) test_units();
  if (wanted(argc, argv, "scratch")) test_scratch();
  return finish();
}
