// Attention of a GPU, under the emulation of gpu_emulation.h, against loops over doubles.
#include <algorithm>
#include <initializer_list>

#include "custom_ops/cuda/attention/geometry.h"
#include "custom_ops/cuda/device.h"
#include "tests/cc/attention_run.h"
#include "tests/cc/gpu_scratch.h"

namespace {

using namespace vit_test;
using vit::DType;

long long number(int64_t x) { return static_cast<long long>(x); }

// Forward, d_qkv and d_bias.
void run_gradients(AttentionRun& run) {
  using vit::CudaResult;
  for (Tensor* tensor : run.results()) tensor->forget();
  const Gpu gpu;
  const bool ok = run.forward(gpu) == CudaResult::kOk && run.backward(gpu) == CudaResult::kOk &&
                  run.bias_gradient(gpu) == CudaResult::kOk;
  EXPECT(ok, "a kernel reports that it failed");
}

enum class Parts { kForwardAndTaps, kAll };

// Runs a case in both orders of warps and blocks.
void compare_on_gpu(const AttentionCase& problem, const char* what, int shift,
                    Parts parts = Parts::kAll) {
  const vit::AttentionShape& s = problem.shape;
  testing("%s: %s, batch %lld, %lld lines of %lld tokens, %lld heads of %lld, shift %d", what,
          name(problem.type), number(s.batch), number(s.lines), number(s.tokens), number(s.heads),
          number(s.head_size), shift);
  const AttentionExpected expected = AttentionOracle(problem, true).run();
  AttentionRun run(problem, shift), reversed(problem, shift);
  for (AttentionRun* each : {&run, &reversed}) {
    set_reversed(each == &reversed);
    if (parts == Parts::kAll) {
      each->all(Gpu());
    } else {
      each->forward_and_taps(Gpu());
    }
  }
  set_reversed(false);
  if (parts == Parts::kAll) {
    run.expect(expected);
  } else {
    run.expect_forward(expected);
  }
  reversed.expect_same(run);
}

// Adds a grid for the distance if the case has taps.
void set_grid(AttentionCase& problem, int64_t columns) {
  if (!problem.has_taps()) return;
  problem.columns = std::min(columns, problem.shape.tokens);
  problem.rows = problem.shape.tokens / problem.columns;
}

// Sizes around those of tiles, with different batches, axes, biases and alignments. A kernel
// without tensor cores is the same for all head sizes, which only are limits of its loops: few
// suffice.
void test_sizes() {
  int turn = 0;
  for (int64_t size : {1, 3, 16, 40, 64, 72, 80, 128, 136}) {
    for (int64_t tokens : {1, 7, 17, 50, 65, 130}) {
      for (DType type : kFloatTypes) {
        ++turn;
        const bool is_tensor = vit::attention_path(type, size) == vit::AttentionPath::kTensor;
        const bool is_large = tokens * size > 800, is_half = type == DType::kFloat16;
        if (tokens > 65 && size % 16 && size != 72) continue;
        const int pick = turn + turn / 24;
        if (!is_tensor && (pick % 3 || (is_large && tokens != 50))) continue;
        if (is_tensor && (tokens > 50 || tokens == 7) && pick / 4 % 2 == is_half) continue;
        Random random(static_cast<uint64_t>(turn));
        const int axis = is_large ? 0 : static_cast<int>(random.below(3));
        const int64_t batch = is_large ? 1 : 1 + random.below(2);
        const int64_t heads = is_large ? 1 : 1 + random.below(2);
        AttentionCase problem = make(random, type, shape_of(axis, batch, tokens, heads, size));
        if (random.below(2)) {
          shape_bias(problem, static_cast<int>(random.below(32)));
          fill_bias(random, problem);
        }
        set_grid(problem, 1 + turn % 4);
        compare_on_gpu(problem, "sizes", random.below(4) ? 0 : 1);
      }
    }
  }
  // Several tiles without tensor cores.
  for (DType type : kFloatTypes) {
    Random random(1);
    const bool is_16_bit = vit::size_of(type) == 2;
    AttentionCase problem = make(random, type, vit::sequence_shape(1, 66, 1, is_16_bit ? 136 : 67));
    if (is_16_bit) {
      shape_bias(problem, 2);
      fill_bias(random, problem);
    }
    set_grid(problem, 8);
    compare_on_gpu(problem, "sizes", 0);
  }
}

// Several blocks of queries and of keys, and several tiles in each.
void test_long_lines() {
  int turn = 0;
  for (DType type : {DType::kBfloat16, DType::kFloat16}) {
    for (int64_t size : {64, 80}) {
      Random random(3);
      AttentionCase problem =
          make(random, type, vit::sequence_shape(1, size == 64 ? 257 : 197, 1, size));
      if (++turn % 2) {
        shape_bias(problem, 3);
        fill_bias(random, problem);
      }
      set_grid(problem, 14);
      compare_on_gpu(problem, "long lines", 0);
    }
  }
}

void test_scale() {
  int turn = 0;
  for (double scale : {0x1p-40, 0.02, 0.3, 2.3}) {
    for (DType type : kFloatTypes) {
      Random random(static_cast<uint64_t>(++turn));
      AttentionCase problem = make(random, type, shape_of(turn % 3, 1, 37, 2, 16));
      problem.explicit_scale = scale;
      if (turn % 8 > 4) {
        shape_bias(problem, 3);
        fill_bias(random, problem);
      }
      set_grid(problem, 6);
      compare_on_gpu(problem, "scale", 0);
    }
  }
}

// Every set of dimensions that a bias can be broadcast over, in two orders in memory.
void test_bias() {
  for (int mask = 0; mask < 32; ++mask) {
    const DType type = kFloatTypes[(mask + mask / 4 + mask / 16) % 4];
    const int axis = mask % 3;
    Random random(static_cast<uint64_t>(mask));
    AttentionCase problem = make(random, type, shape_of(axis, 2, 19, 2, 8));
    std::vector<int> order = {0, 1, 2, 3, 4};
    if (mask % 8 > 3) std::swap(order[0], order[1 + static_cast<size_t>(axis)]);
    shape_bias(problem, mask, order);
    fill_bias(random, problem);
    set_grid(problem, 3);
    compare_on_gpu(problem, "bias", mask % 2);
  }
  // Several tiles share an element of the bias.
  for (int mask : {0, 1, 2, 3}) {
    Random random(static_cast<uint64_t>(mask));
    AttentionCase problem =
        make(random, DType::kBfloat16, vit::sequence_shape(2, 70, 1, mask == 3 ? 80 : 16));
    shape_bias(problem, mask);
    fill_bias(random, problem);
    compare_on_gpu(problem, "bias of long lines", 0);
  }
}

// Queries without keys have no effect, whatever their numbers are.
void test_closed_rows() {
  for (DType type : kFloatTypes) {
    for (int64_t tokens : {37, 70}) {
      if (tokens > 64 && vit::size_of(type) > 2) continue;
      Random random(6);
      const int64_t size = 16;
      AttentionCase problem = make(random, type, vit::sequence_shape(1, tokens, 1, size));
      shape_bias(problem, 3);
      const std::initializer_list<int64_t> closed = {0, 3, tokens - 2, tokens - 1};
      for (int64_t i : closed) {
        std::fill_n(problem.bias.begin() + i * tokens, tokens, -HUGE_VAL);
      }
      compare_on_gpu(problem, "closed rows", 0);
      for (double poison : {double{NAN}, HUGE_VAL}) {
        testing("closed rows with %g: %s, %lld tokens", poison, name(type), number(tokens));
        AttentionRun before(problem, 1), after(problem, 1);
        for (int64_t i : closed) {
          for (int64_t c = 0; c < size; ++c) {
            after.qkv.set(3 * i * size + c, poison);
            after.d_out.set(i * size + c, poison);
          }
        }
        run_gradients(before);
        run_gradients(after);
        after.expect_same(before);
      }
    }
  }
}

// Logits whose gradients are too large, and lines without keys at all.
void test_values() {
  for (DType type : kFloatTypes) {
    for (double scale : {1e4, 1e10}) {
      if (type == DType::kFloat16 && scale > 1e4) continue;
      Random random(9);
      compare_on_gpu(make(random, type, vit::sequence_shape(1, 37, 2, 24), scale), "large logits",
                     0, Parts::kForwardAndTaps);
    }
    for (int mask : {1, 3}) {
      Random random(5);
      AttentionCase problem = make(random, type, vit::sequence_shape(2, 21, 1, 8));
      shape_bias(problem, mask);
      std::fill(problem.bias.begin(), problem.bias.end(), -HUGE_VAL);
      set_grid(problem, 5);
      compare_on_gpu(problem, "closed lines", 0);
      AttentionRun run(problem, 0);
      for (int64_t i = 0; i < run.qkv.count(); i += 7) run.qkv.set(i, i % 2 ? NAN : HUGE_VAL);
      testing("closed lines of NaN: %s", name(type));
      run.forward(Gpu());
      for (int64_t i = 0; i < run.out.count(); ++i) EXPECT(run.out.at(i) == 0, "out is not 0");
    }
  }
}

// With a single key its weight is 1: only v has a gradient, and the others are exactly 0.
void test_one_key() {
  for (DType type : kFloatTypes) {
    for (int64_t tokens : {1, 23, 70}) {
      for (int64_t size : {5, 64, 80, 128}) {
        for (double scale : {1.0, 100.0}) {
          if (tokens > 1 && (scale > 1 || size == 80)) continue;
          testing("one key of %lld: %s, heads of %lld, times %g", number(tokens), name(type),
                  number(size), scale);
          Random random(8);
          AttentionCase problem =
              make(random, type, vit::sequence_shape(1, tokens, 1, size), scale);
          if (tokens > 1) {
            shape_bias(problem, 1);
            std::fill(problem.bias.begin(), problem.bias.end(), -HUGE_VAL);
            problem.bias[static_cast<size_t>(tokens / 2)] = 1;
          }
          AttentionRun run(problem, 0);
          run_gradients(run);
          for (int64_t i = 0; i < run.d_qkv.count(); ++i) {
            if (i / size % 3 == 2) continue;
            EXPECT(run.d_qkv.at(i) == 0, "d_qkv[%lld] is %g", number(i), run.d_qkv.at(i));
          }
          for (int64_t i = 0; i < run.d_bias.count(); ++i) {
            EXPECT(run.d_bias.at(i) == 0, "d_bias[%lld] is %g", number(i), run.d_bias.at(i));
          }
          run.expect_gradient_sums();
        }
      }
    }
  }
}

// Logits of about 1e3 and 1e6, whose weights depend on the last bits of their sums.
void test_large_logits() {
  for (DType type : kFloatTypes) {
    for (double scale : {30.0, 1e3}) {
      if (type == DType::kFloat16 && scale > 100) continue;  // its gradients are infinite
      for (int64_t tokens : {37, 70}) {
        if (tokens > 64 && vit::size_of(type) > 2) continue;
        Random random(9);
        compare_on_gpu(make(random, type, vit::sequence_shape(1, tokens, 1, 40), scale),
                       "large logits", 0);
      }
    }
  }
}

// NaN and Inf in q, k and v change what depends on them and nothing else. An infinite k closes its
// key for queries of the other sign.
void test_not_finite() {
  const int64_t tokens = 37, size = 8, token = 20, column = 3;
  for (DType type : kFloatTypes) {
    Random random(11);
    AttentionCase problem = make(random, type, vit::sequence_shape(1, tokens, 1, size));
    for (int64_t i = 0; i < tokens; ++i) {
      double& q = problem.qkv[static_cast<size_t>(3 * i * size + column)];
      q = rounded_to(type, -1 - fabs(q));
    }
    AttentionRun before(problem, 0);
    before.forward(Gpu());
    for (int part = 0; part < 3; ++part) {
      for (double poison : {double{NAN}, HUGE_VAL}) {
        testing("%g in part %d: %s", poison, part, name(type));
        AttentionRun after(problem, 0);
        after.qkv.set((token * 3 + part) * size + column, poison);
        after.forward(Gpu());
        const bool closes = part == 1 && poison > 0;
        for (int64_t i = 0; i < after.out.count(); ++i) {
          const bool reached = part == 0   ? i / size == token
                               : part == 1 ? !closes
                                           : i % size == column;
          EXPECT(isfinite(after.out.at(i)) == !reached, "out[%lld] is %g", number(i),
                 after.out.at(i));
          if (reached || closes) continue;
          EXPECT(after.out.at(i) == before.out.at(i), "out[%lld] changes", number(i));
        }
      }
    }
  }
}

// An infinite k closes its key for queries of the other sign. The weight of the key is 0, but the
// gradient of q contains 0 * Inf. Neither reaches rows or columns that do not exist.
void test_infinite_key() {
  const int64_t column = 1, size = 8;  // of the infinite element; of the head
  for (DType type : kFloatTypes) {
    for (int64_t tokens : {5, 17, 70}) {
      if (tokens > 64 && vit::size_of(type) > 2) continue;
      for (double sign : {-1.0, 1.0}) {
        testing("infinite key, q of sign %g: %s, %lld tokens", sign, name(type), number(tokens));
        const AttentionCase problem = infinite_key(type, tokens, size, sign);
        AttentionRun run(problem, 0);
        run_gradients(run);
        for (int64_t i = 0; i < run.d_qkv.count(); ++i) {
          const bool of_q = i / size % 3 == 0 && i % size == column;
          EXPECT(isfinite(run.d_qkv.at(i)) == (sign < 0 && !of_q), "d_qkv[%lld] is %g", number(i),
                 run.d_qkv.at(i));
        }
      }
    }
  }
}

void test_no_elements() {
  for (DType type : kFloatTypes) {
    for (int64_t batch : {0, 2}) {
      for (int mask : {-1, 0, 4, 16}) {
        Random random(1);
        AttentionCase problem = make(random, type, vit::sequence_shape(batch, batch ? 0 : 5, 2, 8));
        if (mask >= 0) shape_bias(problem, mask);
        compare_on_gpu(problem, "no elements", mask >= 0);
      }
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
  if (wanted(argc, argv, "values")) {
    test_values();
    test_one_key();
    test_large_logits();
  }
  if (wanted(argc, argv, "not_finite")) {
    test_not_finite();
    test_infinite_key();
  }
  if (wanted(argc, argv, "no_elements")) test_no_elements();
  return finish();
}
