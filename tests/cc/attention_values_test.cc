// Attention of special values: large numbers, NaN and infinities, a single key.
#include "tests/cc/attention_scenarios.h"

namespace {

using namespace vit_test;

// Only -inf closes a key. Any other number is added to the logits, even if all keys of a query have
// it. If it is far below all logits, it makes them equal.
void test_large_bias() {
  for (DType type : kFloatTypes) {
    const bool is_double = type == DType::kFloat64;
    const double lowest = is_double ? -0x1.fffffffffffffp1023 : -0x1.fffffep127;
    for (double value : {-1e4, -1e6, -1e9, 1e9, -3e38, lowest, -lowest}) {
      for (int64_t size : {5, 20}) {
        Random random(12);
        AttentionCase problem = make(random, type, vit::sequence_shape(1, 37, 2, size));
        problem.rows = problem.columns = 6;
        shape_bias(problem, 3);
        const auto set = [&](int64_t i, int64_t j) {
          problem.bias[static_cast<size_t>(37 * i + j)] = value;
        };
        for (int64_t j = 0; j < 37; ++j) {
          for (int64_t i : {0, 3, 36}) set(i, j);  // whole rows
          if (j % 3 == 0) set(5, j);
          set(j, 7);  // a key for all queries
        }
        compare<Cpu>(problem, "large bias", 1);

        // The same bias as a mask: a query with only such numbers has equal weights, as if its
        // logits were 0.
        AttentionCase same = problem;
        for (int64_t i : {0, 3, 36}) {
          std::fill_n(same.qkv.begin() + 6 * i * size, 2 * size, 0.0);
          std::fill_n(same.bias.begin() + 37 * i, 37, 0.0);
        }
        if (fabs(value) < 1e30) continue;
        const AttentionExpected expected = AttentionOracle(same).run();
        AttentionRun run(problem, 0);
        for_each_isa([&] {
          testing("bias of %g: %s %s, heads of %lld", value, isa(), name(type), number(size));
          run.all(vit::serial());
          expect_near("class_row", run.class_row, expected.class_row);
          for (int64_t i : {0, 3, 36}) {
            for (int64_t c = 2 * size * i; c < 2 * size * (i + 1); ++c) {
              const double want = expected.out.value[static_cast<size_t>(c)];
              const double most =
                  expected.out.tolerance[static_cast<size_t>(c)] + 2 * unit(type) * fabs(want);
              EXPECT(fabs(run.out.at(c) - want) <= most, "out[%lld] is %.9g, not %.9g +- %.3g",
                     number(c), run.out.at(c), want, most);
            }
          }
        });
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "one_key")) test_one_key<Cpu>();
  if (wanted(argc, argv, "large_logits")) test_large_logits<Cpu>();
  if (wanted(argc, argv, "large_bias")) test_large_bias();
  if (wanted(argc, argv, "not_finite")) test_not_finite<Cpu>();
  if (wanted(argc, argv, "infinite_key")) test_infinite_key<Cpu>();
  return finish();
}
