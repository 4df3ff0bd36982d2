// Attention against loops over doubles: sizes, scale, bias.
#include <algorithm>

#include "tests/cc/attention_run.h"

namespace {

using namespace vit_test;
using vit::DType;

// Sizes around the widths of vectors and tiles, with different batches, axes and biases.
void test_sizes() {
  int turn = 0;
  for (int64_t tokens : {1, 3, 7, 15, 16, 17, 31, 33, 50, 97, 130, 197}) {
    for (int64_t size : {1, 3, 5, 20, 64, 80}) {
      ++turn;
      if (tokens > 100 && size % 20) continue;
      for (DType type : kFloatTypes) {
        Random random(static_cast<uint64_t>(turn));
        const int64_t batch = tokens < 60 && turn % 2 ? 3 : 1;
        AttentionCase problem =
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
      AttentionCase problem = make(random, type, vit::sequence_shape(1, c.tokens, 1, c.size));
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

// A scale other than the default, with a bias and without.
void test_scale() {
  int turn = 0;
  for (double scale : {0.02, 0.3, 1.0, 2.3}) {
    for (int64_t tokens : {5, 37, 197}) {
      for (DType type : kFloatTypes) {
        Random random(static_cast<uint64_t>(++turn));
        AttentionCase problem =
            make(random, type, shape_of(turn % 3, 2, tokens, 2, turn % 2 ? 20 : 5));
        problem.explicit_scale = scale;
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
      EXPECT(vit::is_attention_scale(type, scale), "%g is rejected", scale);
    }
    for (double scale : {0.0, -0.0, -1.0, double{NAN}, HUGE_VAL, -HUGE_VAL, 0x1p-1074,
                         wide ? 0.0 : 0x1p-127, wide ? 0.0 : 0x1p127}) {
      EXPECT(!vit::is_attention_scale(type, scale), "%g is accepted", scale);
    }
  }
}

// Every set of dimensions that a bias can be broadcast over, and several orders in memory.
void test_bias() {
  for (int axis = 0; axis < 3; ++axis) {
    for (int mask = 0; mask < 32; ++mask) {
      for (DType type : kFloatTypes) {
        Random random(static_cast<uint64_t>(100 * axis + mask));
        AttentionCase problem = make(random, type, shape_of(axis, 2, 19, 2, mask % 3 ? 6 : 5));
        std::vector<int> order = {0, 1, 2, 3, 4};
        if (mask % 4 == 3) std::swap(order[0], order[1 + static_cast<size_t>(axis)]);
        shape_bias(problem, mask, order);
        fill_bias(random, problem);
        compare(problem, "bias", mask % 3);
      }
    }
  }
}

// Many lines share each element of a bias: they are added in groups.
void test_bias_of_many_lines() {
  for (int mask : {0, 1, 2, 3, 7, 12}) {
    for (DType type : kFloatTypes) {
      Random random(static_cast<uint64_t>(mask));
      AttentionCase problem = make(random, type, vit::sequence_shape(40, 49, 2, 32));
      shape_bias(problem, mask);
      fill_bias(random, problem);
      compare(problem, "bias of many lines", 1);
    }
  }
}

// Queries without keys: exact zeros, whatever their tokens and gradients are.
void test_closed_rows() {
  for (DType type : kFloatTypes) {
    for (int mask : {0, 1, 2, 3, 8, 31}) {
      Random random(5);
      AttentionCase problem = make(random, type, vit::sequence_shape(2, 21, 2, 6));
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
    // Closes some rows of one head: their q and d_out must have no effect.
    for (int64_t size : {5, 20}) {
      Random random(6);
      AttentionCase problem = make(random, type, vit::sequence_shape(1, 37, 1, size));
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

void test_no_elements() {
  for (int axis = 0; axis < 3; ++axis) {
    for (DType type : kFloatTypes) {
      for (int64_t batch : {0, 2}) {
        for (int64_t tokens : {0, 5}) {
          if (batch && tokens) continue;
          for (int mask : {0, 4, 16}) {
            Random random(1);
            AttentionCase problem = make(random, type, shape_of(axis, batch, tokens, 2, 8));
            shape_bias(problem, mask);
            compare(problem, "no elements", 1);
          }
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "sizes")) test_sizes();
  if (wanted(argc, argv, "long_lines")) test_long_lines();
  if (wanted(argc, argv, "scale")) test_scale();
  if (wanted(argc, argv, "bias")) {
    test_bias();
    test_bias_of_many_lines();
  }
  if (wanted(argc, argv, "closed_rows")) test_closed_rows();
  if (wanted(argc, argv, "no_elements")) test_no_elements();
  return finish();
}
