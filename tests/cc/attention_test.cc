// Attention against loops over doubles: sizes, scale, bias.
#include "tests/cc/attention_scenarios.h"

namespace {

using namespace vit_test;

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
        set_grid(problem, 1 + turn % 4);
        compare<Cpu>(problem, "sizes", turn % 6);
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
      set_grid(problem, c.tokens / 20);
      compare<Cpu>(problem, "long lines", 1);
    }
  }
}

void test_allowed_scales() {
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

// Many lines share each element of a bias: they are added in groups.
void test_bias_of_many_lines() {
  for (int mask : {0, 1, 2, 3, 7, 12}) {
    for (DType type : kFloatTypes) {
      Random random(static_cast<uint64_t>(mask));
      AttentionCase problem = make(random, type, vit::sequence_shape(40, 49, 2, 32));
      shape_bias(problem, mask);
      fill_bias(random, problem);
      compare<Cpu>(problem, "bias of many lines", 1);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "sizes")) test_sizes();
  if (wanted(argc, argv, "long_lines")) test_long_lines();
  if (wanted(argc, argv, "scale")) {
    test_scale<Cpu>();
    test_allowed_scales();
  }
  if (wanted(argc, argv, "bias")) {
    test_bias<Cpu>();
    test_bias_of_many_lines();
  }
  if (wanted(argc, argv, "closed_rows")) {
    test_closed_lines<Cpu>();
    test_closed_rows<Cpu>();
  }
  if (wanted(argc, argv, "no_elements")) test_no_elements<Cpu>();
  return finish();
}
