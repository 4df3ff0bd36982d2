// Attention against loops over doubles, and what holds besides: nothing outside of the outputs is
// written, nothing outside of the inputs matters, and threads change no bit.
#include <algorithm>

#include "tests/cc/attention_oracle.h"
#include "tests/cc/threads.h"

namespace {

using namespace vit_test;
using vit::DType;

// The numbers that a type holds, normal and times `scale`.
std::vector<double> normals(Random& random, DType type, int64_t count, double scale = 1) {
  std::vector<double> result(static_cast<size_t>(count));
  for (double& x : result) x = rounded_to(type, scale * random.normal());
  return result;
}

// A third of the keys is closed, and about every eighth query has none.
void fill_bias(Random& random, AttentionProblem& problem) {
  for (double& x : problem.bias) {
    x = random.below(3) ? rounded_to(accumulator(problem.type), random.normal()) : -HUGE_VAL;
  }
  if (!problem.strides.query_stride || !problem.strides.key_stride || problem.bias.empty()) return;
  const int64_t n = problem.shape.tokens;
  const int64_t last = n * (problem.strides.query_stride + problem.strides.key_stride);
  for (int64_t i = 0; i < n; ++i) {
    if (random.below(8)) continue;
    // For the first head, line and batch element; those of the others follow by chance.
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = i * problem.strides.query_stride + j * problem.strides.key_stride;
      if (at < last) problem.bias[static_cast<size_t>(at)] = -HUGE_VAL;
    }
  }
}

AttentionProblem make(Random& random, DType type, const vit::AttentionShape& shape,
                      double scale = 1) {
  AttentionProblem problem = {type, shape, 0, 0, {}, {}, {}, {}};
  const int64_t count = problem.positions() * problem.width();
  problem.qkv = normals(random, type, 3 * count, scale);
  problem.d_out = normals(random, type, count);
  return problem;
}

// Attention along `tokens`: of sequences, or of 3 lines of a grid along an axis.
vit::AttentionShape shape_of(int axis, int64_t batch, int64_t tokens, int64_t heads, int64_t size) {
  if (axis == 0) return vit::sequence_shape(batch, tokens, heads, size);
  const int64_t rows = axis == 1 ? tokens : 3, columns = axis == 1 ? 3 : tokens;
  return vit::grid_shape(batch, rows, columns, heads, size, axis);
}

void compare(const AttentionProblem& problem, const char* what, int shift) {
  const AttentionExpected expected = AttentionOracle(problem).run();
  AttentionRun run(problem, shift);
  for_each_isa([&] {
    const vit::AttentionShape& s = problem.shape;
    testing("%s: %s %s, batch %lld, %lld lines of %lld tokens, %lld heads of %lld, shift %d", what,
            isa(), name(problem.type), static_cast<long long>(s.batch),
            static_cast<long long>(s.lines), static_cast<long long>(s.tokens),
            static_cast<long long>(s.heads), static_cast<long long>(s.head_size), shift);
    run.all(vit::serial());
    run.expect(expected);
  });
}

// Around the widths of vectors and tiles, with batch, axis and bias in turn.
void test_sizes() {
  int turn = 0;
  for (int64_t tokens : {1, 3, 7, 15, 16, 17, 31, 33, 50, 97, 130, 197}) {
    for (int64_t size : {1, 3, 5, 20, 64, 80}) {
      ++turn;
      if (tokens > 100 && size % 20) continue;
      for (DType type : kFloatTypes) {
        Random random(static_cast<uint64_t>(turn));
        const int64_t batch = tokens < 60 && turn % 2 ? 3 : 1;
        AttentionProblem problem =
            make(random, type, shape_of(turn % 5 % 3, batch, tokens, 1 + turn % 3, size));
        if (turn % 4) {
          shape_bias(problem, turn * 7 % 32);
          fill_bias(random, problem);
        }
        if (problem.has_taps()) {
          problem.columns = 1 + turn % (tokens < 4 ? tokens : 4);
          problem.rows = tokens / problem.columns;
        }
        compare(problem, "sizes", turn % 6);
      }
    }
  }
}

// Several blocks of keys and of queries, packed rows, and groups of queries of one line.
void test_long_lines() {
  struct {
    int64_t tokens, size;
    int mask;
  } cases[] = {{400, 16, 0}, {577, 2, 3}, {1040, 3, 1}, {1030, 6, 4}};
  for (const auto& c : cases) {
    for (DType type : kFloatTypes) {
      Random random(static_cast<uint64_t>(c.tokens));
      AttentionProblem problem = make(random, type, vit::sequence_shape(1, c.tokens, 1, c.size));
      if (c.mask) {
        shape_bias(problem, c.mask);
        fill_bias(random, problem);
      }
      problem.rows = 20;
      problem.columns = c.tokens / 20;
      compare(problem, "long lines", 1);
    }
  }
}

// Another scale than that of the head size, with a bias and without.
void test_scale() {
  int turn = 0;
  for (double scale : {0.02, 0.3, 1.0, 2.3}) {
    for (int64_t tokens : {5, 37, 197}) {
      for (DType type : kFloatTypes) {
        Random random(static_cast<uint64_t>(++turn));
        AttentionProblem problem =
            make(random, type, shape_of(turn % 3, 2, tokens, 2, turn % 2 ? 20 : 5));
        problem.asked_scale = scale;
        if (turn % 5 % 2) {
          shape_bias(problem, 3);
          fill_bias(random, problem);
        }
        if (problem.has_taps()) {
          problem.rows = 2;
          problem.columns = tokens / 2;
        }
        compare(problem, "scale", turn % 2);
      }
    }
  }
  for (DType type : kFloatTypes) {
    testing("allowed scales: %s", name(type));
    const bool wide = type == DType::kFloat64;
    for (double scale : {1.0, 0x1p-126, 0x1p126, wide ? 0x1p-1022 : 1, wide ? 0x1p1022 : 1}) {
      EXPECT(vit::is_attention_scale(type, scale), "%g is refused", scale);
    }
    for (double scale : {0.0, -0.0, -1.0, double{NAN}, HUGE_VAL, -HUGE_VAL, 0x1p-1074,
                         wide ? 0.0 : 0x1p-127, wide ? 0.0 : 0x1p127}) {
      EXPECT(!vit::is_attention_scale(type, scale), "%g is taken", scale);
    }
  }
}

// Whatever the bias is broadcast over, and however it lies.
void test_bias() {
  for (int axis = 0; axis < 3; ++axis) {
    for (int mask = 0; mask < 32; ++mask) {
      for (DType type : kFloatTypes) {
        Random random(static_cast<uint64_t>(100 * axis + mask));
        AttentionProblem problem =
            make(random, type, shape_of(axis, 2, 19, 2, mask % 3 ? 6 : 5));
        std::vector<int> order = {0, 1, 2, 3, 4};
        if (mask % 4 == 3) std::swap(order[0], order[1 + static_cast<size_t>(axis)]);
        shape_bias(problem, mask, order);
        fill_bias(random, problem);
        compare(problem, "bias", mask % 3);
      }
    }
  }
}

// Rows without keys: exact zeros, whatever the tokens and the gradients of these rows are.
void test_closed_rows() {
  for (DType type : kFloatTypes) {
    for (int mask : {0, 1, 2, 3, 8, 31}) {
      Random random(5);
      AttentionProblem problem = make(random, type, vit::sequence_shape(2, 21, 2, 6));
      shape_bias(problem, mask);
      std::fill(problem.bias.begin(), problem.bias.end(), -HUGE_VAL);
      problem.rows = 4;
      problem.columns = 5;
      compare(problem, "closed rows", 0);
      AttentionRun run(problem, 0);
      for (int64_t i = 0; i < run.qkv.count(); i += 7) run.qkv.set(i, i % 2 ? NAN : HUGE_VAL);
      for_each_isa([&] {
        testing("closed rows of NaN: %s %s, mask %d", isa(), name(type), mask);
        run.out.forget();
        run.forward(vit::serial());
        for (int64_t i = 0; i < run.out.count(); ++i) EXPECT(run.out.at(i) == 0, "out is not 0");
      });
    }
    // Some rows of one head: what their q and d_out hold goes nowhere.
    for (int64_t size : {5, 20}) {
      Random random(6);
      AttentionProblem problem = make(random, type, vit::sequence_shape(1, 37, 1, size));
      shape_bias(problem, 3);
      problem.rows = problem.columns = 6;
      for (int64_t i : {0, 3, 35, 36}) {
        for (int64_t j = 0; j < 37; ++j) problem.bias[static_cast<size_t>(37 * i + j)] = -HUGE_VAL;
      }
      compare(problem, "closed rows among others", 1);
      for (double poison : {double{NAN}, HUGE_VAL}) {
        for_each_isa([&] {
          testing("closed rows with %g: %s %s, heads of %lld", poison, isa(), name(type),
                  static_cast<long long>(size));
          AttentionRun before(problem, 1), after(problem, 1);
          for (int64_t i : {0, 3, 35, 36}) {
            for (int64_t c = 0; c < size; ++c) {
              after.qkv.set(3 * i * size + c, poison);
              after.d_out.set(i * size + c, poison);
            }
          }
          before.all(vit::serial());
          after.all(vit::serial());
          after.expect_same(before);
        });
      }
    }
  }
}

// Of a query with one key the weight is 1, and nothing but v and its gradient depends on anything.
void test_one_key() {
  for (DType type : kFloatTypes) {
    for (int64_t tokens : {1, 23}) {
      for (int64_t size : {1, 5, 64, 300}) {
        for (double scale : {1.0, 3.0, 100.0}) {
          Random random(8);
          AttentionProblem problem =
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
                    static_cast<long long>(tokens), isa(), name(type),
                    static_cast<long long>(size), scale);
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
            run.expect_sums();
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
    // One key takes all, and exponentials of anything else are far below the smallest number.
    Random random(10);
    AttentionProblem problem = make(random, type, vit::sequence_shape(1, 23, 1, 4));
    shape_bias(problem, 1);
    for (double& x : problem.bias) x = -1e4;
    problem.bias[11] = 1e4;
    compare(problem, "one key", 0);
  }
}

// Only -inf closes a key. Any other number is one to be added, for a row of them too: far below all
// logits they make them equal.
void test_large_bias() {
  for (DType type : kFloatTypes) {
    const bool is_double = type == DType::kFloat64;
    const double lowest = is_double ? -0x1.fffffffffffffp1023 : -0x1.fffffep127;
    for (double value : {-1e4, -1e6, -1e9, 1e9, -3e38, lowest, -lowest}) {
      for (int64_t size : {5, 20}) {
        Random random(12);
        AttentionProblem problem = make(random, type, vit::sequence_shape(1, 37, 2, size));
        problem.rows = problem.columns = 6;
        shape_bias(problem, 3);
        const auto set = [&](int64_t i, int64_t j) {
          problem.bias[static_cast<size_t>(37 * i + j)] = value;
        };
        for (int64_t j = 0; j < 37; ++j) {
          for (int64_t i : {0, 3, 36}) set(i, j);  // whole rows
          if (j % 3 == 0) set(5, j);
          set(j, 7);  // a key for all
        }
        compare(problem, "large bias", 1);

        // As a mask: rows of nothing else are as if all of their logits were 0.
        AttentionProblem same = problem;
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
              const double most = expected.out.tolerance[static_cast<size_t>(c)] +
                                  2 * unit(type) * fabs(want);
              EXPECT(fabs(run.out.at(c) - want) <= most, "out[%lld] is %.9g, not %.9g +- %.3g",
                     static_cast<long long>(c), run.out.at(c), want, most);
            }
          }
        });
      }
    }
  }
}

// Whether an element of a result depends on one that is not finite: never, so that it keeps its
// bits, always, so that it is not finite itself, or by chance.
enum Reach { kNever, kAlways, kMaybe };

// reach(row, column) is asked for rows of `head`; nothing reaches the others.
template <class ReachOf>
void expect_reached(const char* what, const Tensor& before, const Tensor& after, int64_t heads,
                    int64_t size, int64_t head, const ReachOf& reach) {
  for (int64_t i = 0; i < before.count(); ++i) {
    const bool same_head = i / size % heads == head;
    const Reach expected = same_head ? reach(i / size / heads, i % size) : kNever;
    if (expected == kAlways) {
      EXPECT(!isfinite(after.at(i)), "%s[%lld] hides it: %g", what, static_cast<long long>(i),
             after.at(i));
    } else if (expected == kNever) {
      EXPECT(after.at(i) == before.at(i), "%s[%lld] changes from %g to %g", what,
             static_cast<long long>(i), before.at(i), after.at(i));
    }
  }
}

// NaN and Inf go where the formula takes them and nowhere else: not along the lanes of a vector,
// not into another head, not into the other number of a pair.
void test_not_finite() {
  const int64_t tokens = 37, heads = 2, token = 20, head = 1, column = 3;
  enum Part { kQuery, kKey, kValue, kDOut };
  const char* names[] = {"q", "k", "v", "d_out"};
  const auto when = [](bool condition) { return condition ? kAlways : kNever; };
  for (int64_t size : {5, 20}) {
    for (DType type : kFloatTypes) {
      Random random(11);
      const AttentionProblem problem =
          make(random, type, vit::sequence_shape(1, tokens, heads, size));
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
          // Logits of -Inf close a key, those of +Inf give NaN: the signs of q decide.
          const bool by_chance = part == kKey && isinf(poison);
          expect_reached("out", before.out, after.out, heads, size, head,
                         [&](int64_t row, int64_t c) {
                           if (by_chance) return kMaybe;
                           if (part == kQuery) return when(row == token);
                           return part == kValue ? when(c == column) : when(part == kKey);
                         });
          // Rows of d_qkv are q, k and v of a token in turn.
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

// An infinite k closes its key for queries of the other sign, also where the last element of a pair
// is no query or no key: then logits are 0 * Inf.
void test_infinite_key() {
  const int64_t key = 2, column = 1;
  for (int64_t tokens : {4, 5, 17, 18, 37}) {
    for (int64_t size : {3, 8}) {
      for (DType type : kFloatTypes) {
        for (double sign : {-1.0, 1.0}) {
          Random random(13);
          AttentionProblem problem = make(random, type, vit::sequence_shape(1, tokens, 1, size));
          for (int64_t i = 0; i < tokens; ++i) {
            double& q = problem.qkv[static_cast<size_t>(3 * i * size + column)];
            q = rounded_to(type, sign * (1 + fabs(q)));
          }
          problem.qkv[static_cast<size_t>((3 * key + 1) * size + column)] = HUGE_VAL;
          AttentionRun run(problem, 1);
          for_each_isa([&] {
            testing("infinite key, q of sign %g: %s %s, %lld tokens, heads of %lld", sign, isa(),
                    name(type), static_cast<long long>(tokens), static_cast<long long>(size));
            run.all(vit::serial());
            for (int64_t i = 0; i < run.out.count(); ++i) {
              EXPECT(isnan(run.out.at(i)) == (sign > 0), "out[%lld] is %g",
                     static_cast<long long>(i), run.out.at(i));
            }
            // Its weight is 0, but 0 * Inf is part of the gradient of q.
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

void test_no_elements() {
  for (int axis = 0; axis < 3; ++axis) {
    for (DType type : kFloatTypes) {
      for (int64_t batch : {0, 2}) {
        for (int64_t tokens : {0, 5}) {
          if (batch && tokens) continue;
          for (int mask : {0, 4, 16}) {
            Random random(1);
            AttentionProblem problem = make(random, type, shape_of(axis, batch, tokens, 2, 8));
            shape_bias(problem, mask);
            compare(problem, "no elements", 1);
          }
        }
      }
    }
  }
}

void test_threads() {
  struct {
    vit::AttentionShape shape;
    int mask;
  } cases[] = {
      {vit::sequence_shape(3, 50, 12, 20), 0},
      {vit::sequence_shape(2, 35, 3, 6), 15},
      {vit::sequence_shape(1, 1030, 2, 4), 1},  // groups of queries
      {vit::grid_shape(2, 9, 17, 2, 5, 1), 3},
      {vit::grid_shape(2, 9, 17, 2, 6, 2), 29},
      {vit::sequence_shape(2, 70, 2, 3), 2},
  };
  uint64_t seed = 0;
  for (const auto& c : cases) {
    for (DType type : kFloatTypes) {
      Random random(3);
      AttentionProblem problem = make(random, type, c.shape);
      if (c.mask) {
        shape_bias(problem, c.mask);
        fill_bias(random, problem);
      }
      AttentionRun one(problem, 1), many(problem, 1);
      for_each_isa([&] {
        testing("threads: %s %s, %lld tokens", isa(), name(type),
                static_cast<long long>(c.shape.tokens));
        one.all(vit::serial());
        one.all(vit::serial());
        many.all(backwards());
        many.expect_same(one);
        for (int threads : {2, 3, 5}) {
          Shuffled shuffled(++seed, threads);
          many.all(shuffled.parallel_for());
          many.expect_same(one);
        }
        many.expect_intact();
      });
    }
  }
}

void test_scratch() {
  for (DType type : kFloatTypes) {
    for (int64_t size : {64, 5}) {
      for_each_isa([&] {
        testing("scratch: %s %s, head size %lld", isa(), name(type), static_cast<long long>(size));
        const auto bytes = [&](int64_t tokens) {
          return vit::attention_forward_scratch(type, vit::sequence_shape(1, tokens, 2, size));
        };
        EXPECT(bytes(4000) - bytes(2000) <= 2 * (bytes(2000) - bytes(1000)) + 256,
               "it does not grow with the tokens: %lld, %lld, %lld",
               static_cast<long long>(bytes(1000)), static_cast<long long>(bytes(2000)),
               static_cast<long long>(bytes(4000)));
        EXPECT(type == DType::kFloat64 || bytes(1370) < 2 << 20, "1370 tokens take %lld bytes",
               static_cast<long long>(bytes(1370)));

        Random random(4);
        AttentionProblem problem = make(random, type, vit::sequence_shape(1, 40, 2, size));
        shape_bias(problem, 3);
        AttentionRun run(problem, 0);
        scratch_use().largest = 0;
        run.strides.data = nullptr;
        run.forward(vit::serial());
        EXPECT(scratch_use().largest == (bytes(40) + 63) / 64 * 64, "%lld bytes are used, not %lld",
               static_cast<long long>(scratch_use().largest), static_cast<long long>(bytes(40)));
        run.strides.data = run.bias.data();

        scratch_use().refuse = true;
        const vit::Result out_of_memory = vit::Result::kOutOfMemory;
        EXPECT(run.forward(vit::serial()) == out_of_memory, "forward does not say so");
        EXPECT(run.backward(backwards()) == out_of_memory, "backward does not say so");
        EXPECT(run.bias_gradient(vit::serial()) == out_of_memory, "bias gradient does not say so");
        EXPECT(run.taps(vit::serial()) == out_of_memory, "taps do not say so");
        scratch_use().refuse = false;
        run.expect_intact();
      });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "sizes")) test_sizes();
  if (wanted(argc, argv, "long_lines")) test_long_lines();
  if (wanted(argc, argv, "scale")) test_scale();
  if (wanted(argc, argv, "bias")) test_bias();
  if (wanted(argc, argv, "closed_rows")) test_closed_rows();
  if (wanted(argc, argv, "one_key")) test_one_key();
  if (wanted(argc, argv, "large_logits")) test_large_logits();
  if (wanted(argc, argv, "large_bias")) test_large_bias();
  if (wanted(argc, argv, "not_finite")) test_not_finite();
  if (wanted(argc, argv, "infinite_key")) test_infinite_key();
  if (wanted(argc, argv, "no_elements")) test_no_elements();
  if (wanted(argc, argv, "threads")) test_threads();
  if (wanted(argc, argv, "scratch")) test_scratch();
  return finish();
}
