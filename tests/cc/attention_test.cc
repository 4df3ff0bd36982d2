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
  } cases[] = {{400, 16, 0}, {577, 2, 3}, {800, 3, 1}, {1030, 6, 4}};
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

// Rows without keys: exact zeros, whatever the tokens are.
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
  }
}

void test_large_logits() {
  for (DType type : kFloatTypes) {
    for (double scale : {30.0, 100.0}) {  // logits of about 1e3 and 1e4
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
  if (wanted(argc, argv, "bias")) test_bias();
  if (wanted(argc, argv, "closed_rows")) test_closed_rows();
  if (wanted(argc, argv, "large_logits")) test_large_logits();
  if (wanted(argc, argv, "not_finite")) test_not_finite();
  if (wanted(argc, argv, "no_elements")) test_no_elements();
  if (wanted(argc, argv, "threads")) test_threads();
  if (wanted(argc, argv, "scratch")) test_scratch();
  return finish();
}
