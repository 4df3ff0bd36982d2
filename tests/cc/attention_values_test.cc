// Attention of special values: large numbers, NaN and infinities, a single key.
#include <algorithm>

#include "tests/cc/attention_run.h"

namespace {

using namespace vit_test;
using vit::DType;

// With a single key its weight is 1: the output is v, and only v has a gradient.
void test_one_key() {
  for (DType type : kFloatTypes) {
    for (int64_t tokens : {1, 23}) {
      for (int64_t size : {1, 5, 64, 300}) {
        for (double scale : {1.0, 3.0, 100.0}) {
          Random random(8);
          AttentionCase problem =
              make(random, type, vit::sequence_shape(1, tokens, 2, size), scale);
          const int64_t width = problem.width(), key = tokens / 2;
          if (tokens > 1) {
            shape_bias(problem, 1);
            std::fill(problem.bias.begin(), problem.bias.end(), -HUGE_VAL);
            problem.bias[static_cast<size_t>(key)] = 1;
          }
          AttentionRun run(problem, 1);
          for_each_isa([&] {
            testing("one key of %lld: %s %s, heads of %lld, times %g",
                    static_cast<long long>(tokens), isa(), name(type), static_cast<long long>(size),
                    scale);
            run.all(vit::serial());
            for (int64_t i = 0; i < tokens * width; ++i) {
              const int64_t at = i / width * 3 * width + i % width;
              const double value = run.qkv.at((3 * key + 2) * width + i % width);
              EXPECT(run.out.at(i) == value, "out is %.9g, not %.9g", run.out.at(i), value);
              EXPECT(run.d_qkv.at(at) == 0 && run.d_qkv.at(at + width) == 0,
                     "the gradients of q and k are %g and %g", run.d_qkv.at(at),
                     run.d_qkv.at(at + width));
            }
            for (int64_t i = 0; i < run.d_bias.count(); ++i) {
              EXPECT(run.d_bias.at(i) == 0, "the gradient of the bias is %g", run.d_bias.at(i));
            }
            for (int64_t i = 0; i < run.entropy.count(); ++i) {
              EXPECT(run.entropy.at(i) == 0, "the entropy is %g", run.entropy.at(i));
            }
            run.expect_row_sums();
            run.expect_gradient_sums();
          });
        }
      }
    }
  }
}

void test_large_logits() {
  for (DType type : kFloatTypes) {
    // Logits of about 1e3, 1e4, 1e8 and 1e20.
    for (double scale : {30.0, 100.0, 1e4, 1e10}) {
      if (type == DType::kFloat16 && scale > 100) continue;  // its gradients are infinite
      for (int64_t size : {3, 64}) {
        Random random(9);
        compare(make(random, type, vit::sequence_shape(1, 37, 2, size), scale), "large logits", 2);
      }
    }
    // One key has the whole weight: the exponentials of all other keys underflow.
    Random random(10);
    AttentionCase problem = make(random, type, vit::sequence_shape(1, 23, 1, 4));
    shape_bias(problem, 1);
    for (double& x : problem.bias) x = -1e4;
    problem.bias[11] = 1e4;
    compare(problem, "one key", 0);
  }
}

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
        compare(problem, "large bias", 1);

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
          testing("bias of %g: %s %s, heads of %lld", value, isa(), name(type),
                  static_cast<long long>(size));
          run.all(vit::serial());
          expect_near("class_row", run.class_row, expected.class_row);
          for (int64_t i : {0, 3, 36}) {
            for (int64_t c = 2 * size * i; c < 2 * size * (i + 1); ++c) {
              const double want = expected.out.value[static_cast<size_t>(c)];
              const double most =
                  expected.out.tolerance[static_cast<size_t>(c)] + 2 * unit(type) * fabs(want);
              EXPECT(fabs(run.out.at(c) - want) <= most, "out[%lld] is %.9g, not %.9g +- %.3g",
                     static_cast<long long>(c), run.out.at(c), want, most);
            }
          }
        });
      }
    }
  }
}

// Whether an element of a result depends on an element that is not finite. kNever: it keeps its
// bits. kAlways: it is not finite either. kMaybe: both are allowed.
enum Reach { kNever, kAlways, kMaybe };

// reach(row, column) returns the Reach of rows of `head`; for other heads it is kNever.
template <class ReachOf>
void expect_reached(const char* what, const Tensor& before, const Tensor& after, int64_t heads,
                    int64_t size, int64_t head, const ReachOf& reach) {
  for (int64_t i = 0; i < before.count(); ++i) {
    const bool same_head = i / size % heads == head;
    const Reach expected = same_head ? reach(i / size / heads, i % size) : kNever;
    if (expected == kAlways) {
      EXPECT(!isfinite(after.at(i)), "%s[%lld] stays finite: %g", what, static_cast<long long>(i),
             after.at(i));
    } else if (expected == kNever) {
      EXPECT(after.at(i) == before.at(i), "%s[%lld] changes from %g to %g", what,
             static_cast<long long>(i), before.at(i), after.at(i));
    }
  }
}

// NaN and Inf change the elements that depend on them and no others: no other lane of a vector, no
// other head, and not the other number of a pair.
void test_not_finite() {
  const int64_t tokens = 37, heads = 2, token = 20, head = 1, column = 3;
  enum Part { kQuery, kKey, kValue, kDOut };
  const char* names[] = {"q", "k", "v", "d_out"};
  const auto when = [](bool condition) { return condition ? kAlways : kNever; };
  for (int64_t size : {5, 20}) {
    for (DType type : kFloatTypes) {
      Random random(11);
      const AttentionCase problem = make(random, type, vit::sequence_shape(1, tokens, heads, size));
      for_each_isa([&] {
        AttentionRun before(problem, 1);
        before.all(vit::serial());
        for (int turn = 0; turn < 8; ++turn) {
          const int part = turn % 4;
          const double poison = turn < 4 ? double{NAN} : HUGE_VAL;
          testing("%g in %s: %s %s, heads of %lld", poison, names[part], isa(), name(type),
                  static_cast<long long>(size));
          AttentionRun after(problem, 1);
          const int64_t at = head * size + column;
          if (part == kDOut) {
            after.d_out.set(token * heads * size + at, poison);
          } else {
            after.qkv.set((token * 3 + part) * heads * size + at, poison);
          }
          after.all(vit::serial());
          // A logit of -Inf closes a key, a logit of +Inf gives NaN; which one depends on the sign
          // of q.
          const bool by_chance = part == kKey && isinf(poison);
          expect_reached("out", before.out, after.out, heads, size, head,
                         [&](int64_t row, int64_t c) {
                           if (by_chance) return kMaybe;
                           if (part == kQuery) return when(row == token);
                           return part == kValue ? when(c == column) : when(part == kKey);
                         });
          // Rows of d_qkv are the q, k and v rows of each token, in this order.
          expect_reached("d_qkv", before.d_qkv, after.d_qkv, heads, size, head,
                         [&](int64_t row, int64_t c) {
                           const int64_t of = row % 3;
                           if (by_chance) return kMaybe;
                           if (of == kQuery && (part == kQuery || part == kDOut)) {
                             return when(row / 3 == token);
                           }
                           if (of == kValue && part == kValue) return kNever;
                           if (of == kValue && part == kDOut) return when(c == column);
                           return kAlways;
                         });
        }
      });
    }
  }
}

// An infinite k closes its key for queries of the other sign. This also holds if the last element
// of a pair is no query or no key, where logits are 0 * Inf.
void test_infinite_key() {
  const int64_t column = 1;  // of the infinite element
  for (int64_t tokens : {4, 5, 17, 18, 37}) {
    for (int64_t size : {3, 8}) {
      for (DType type : kFloatTypes) {
        for (double sign : {-1.0, 1.0}) {
          const AttentionCase problem = infinite_key(type, tokens, size, sign);
          AttentionRun run(problem, 1);
          for_each_isa([&] {
            testing("infinite key, q of sign %g: %s %s, %lld tokens, heads of %lld", sign, isa(),
                    name(type), static_cast<long long>(tokens), static_cast<long long>(size));
            run.all(vit::serial());
            for (int64_t i = 0; i < run.out.count(); ++i) {
              EXPECT(isnan(run.out.at(i)) == (sign > 0), "out[%lld] is %g",
                     static_cast<long long>(i), run.out.at(i));
            }
            // The weight of the key is 0, but the gradient of q contains 0 * Inf.
            for (int64_t i = 0; i < run.d_qkv.count(); ++i) {
              const bool of_q = i / size % 3 == 0 && i % size == column;
              EXPECT(isfinite(run.d_qkv.at(i)) == (sign < 0 && !of_q), "d_qkv[%lld] is %g",
                     static_cast<long long>(i), run.d_qkv.at(i));
            }
          });
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "one_key")) test_one_key();
  if (wanted(argc, argv, "large_logits")) test_large_logits();
  if (wanted(argc, argv, "large_bias")) test_large_bias();
  if (wanted(argc, argv, "not_finite")) test_not_finite();
  if (wanted(argc, argv, "infinite_key")) test_infinite_key();
  return finish();
}
