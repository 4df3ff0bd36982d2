// The gradients of attention of a GPU, under the emulation of gpu_emulation.h, against loops over
// doubles; and how they are divided into blocks.
#include <algorithm>
#include <initializer_list>

#include "custom_ops/cuda/attention_gradient/backward_geometry.h"
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

// Runs a case in both orders of warps and blocks.
void compare_on_gpu(const AttentionCase& problem, const char* what, int shift) {
  const vit::AttentionShape& s = problem.shape;
  testing("%s: %s, batch %lld, %lld lines of %lld tokens, %lld heads of %lld, shift %d", what,
          name(problem.type), number(s.batch), number(s.lines), number(s.tokens), number(s.heads),
          number(s.head_size), shift);
  const AttentionExpected expected = AttentionOracle(problem, true).run();
  AttentionRun run(problem, shift), reversed(problem, shift);
  set_reversed(false);
  run_gradients(run);
  expect_near("d_qkv", run.d_qkv, expected.d_qkv);
  expect_near("d_bias", run.d_bias, expected.d_bias);
  run.expect_gradient_sums();
  run.expect_intact();
  set_reversed(true);
  run_gradients(reversed);
  reversed.expect_same(run);
  set_reversed(false);
}

// Sizes around those of tiles, with different batches, axes, biases and alignments. Types take
// turns.
void test_sizes() {
  int turn = 0;
  for (int64_t size : {1, 3, 40, 64, 72, 80, 128, 136}) {
    for (int64_t tokens : {1, 7, 17, 50, 65, 130}) {
      ++turn;
      if (tokens > 65 && size != 72) continue;
      if (tokens > 50 && size > 128) continue;
      const int pick = turn + turn / 6;
      const bool is_large = tokens * size > 800;
      for (DType type : {kFloatTypes[1 + pick % 2], kFloatTypes[pick % 2 * 3]}) {
        // The scalar kernels have one tile for all sizes.
        if (is_large && vit::size_of(type) > 2 && size != 40) continue;
        Random random(static_cast<uint64_t>(turn));
        const int64_t batch = !is_large && pick % 2 ? 2 : 1;
        AttentionCase problem = make(
            random, type,
            shape_of(is_large ? 0 : pick % 3, batch, tokens, is_large ? 1 : 1 + pick % 2, size));
        if (pick % 4 < 2) {
          shape_bias(problem, turn * 7 % 32);
          fill_bias(random, problem);
        }
        compare_on_gpu(problem, "sizes", pick % 3 ? 0 : 1);
      }
    }
  }
  // Several tiles without tensor cores.
  for (DType type : {DType::kFloat32, DType::kFloat64}) {
    Random random(1);
    compare_on_gpu(make(random, type, vit::sequence_shape(1, 66, 1, 67)), "sizes", 0);
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
    AttentionCase problem = make(random, type, shape_of(axis, 2, 18, 2, 8));
    std::vector<int> order = {0, 1, 2, 3, 4};
    if (mask % 8 > 3) std::swap(order[0], order[1 + static_cast<size_t>(axis)]);
    shape_bias(problem, mask, order);
    fill_bias(random, problem);
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

// An infinite k closes its key for queries of the other sign. The weight of the key is 0, but the
// gradient of q contains 0 * Inf. Neither reaches rows or columns that do not exist.
void test_infinite_key() {
  const int64_t key = 2, column = 1, size = 8;
  for (DType type : kFloatTypes) {
    for (int64_t tokens : {5, 17, 70}) {
      if (tokens > 64 && vit::size_of(type) > 2) continue;
      for (double sign : {-1.0, 1.0}) {
        testing("infinite key, q of sign %g: %s, %lld tokens", sign, name(type), number(tokens));
        Random random(13);
        AttentionCase problem = make(random, type, vit::sequence_shape(1, tokens, 1, size));
        for (int64_t i = 0; i < tokens; ++i) {
          double& q = problem.qkv[static_cast<size_t>(3 * i * size + column)];
          q = rounded_to(type, sign * (1 + fabs(q)));
        }
        problem.qkv[static_cast<size_t>((3 * key + 1) * size + column)] = HUGE_VAL;
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
      for (int mask : {0, 4, 16}) {
        Random random(1);
        AttentionCase problem = make(random, type, vit::sequence_shape(batch, batch ? 0 : 5, 2, 8));
        shape_bias(problem, mask);
        compare_on_gpu(problem, "no elements", 1);
      }
    }
  }
}

// Without scratch memory a launcher reports it and starts nothing.
void test_out_of_memory() {
  using vit::CudaResult;
  for (DType type : {DType::kBfloat16, DType::kFloat32}) {
    Random random(1);
    AttentionCase problem = make(random, type, vit::sequence_shape(2, 70, 1, 8));
    shape_bias(problem, 0);
    AttentionRun run(problem, 0);
    const Gpu gpu;
    testing("out of memory: %s", name(type));
    EXPECT(run.forward(gpu) == CudaResult::kOk, "forward fails");
    for (int64_t left : {0, 1}) {
      scratch_use().left = left;
      const bool is_enough = left == 1;
      EXPECT((run.backward(gpu) == CudaResult::kOk) == is_enough, "backward with %lld pieces",
             number(left));
      scratch_use().left = left;
      // float32 has its delta beside the sums of groups.
      const bool is_enough_for_bias = is_enough && type == DType::kBfloat16;
      EXPECT((run.bias_gradient(gpu) == CudaResult::kOk) == is_enough_for_bias,
             "the bias with %lld pieces", number(left));
    }
    scratch_use().left = INT64_MAX;
  }
}

void expect_launchable(const vit::LaunchShape& shape) {
  EXPECT(shape.blocks == 0 || vit::is_launchable(shape),
         "%lld blocks of %d threads with %lld bytes", number(shape.blocks), shape.threads,
         number(shape.shared_bytes));
}

// Every query and key has a block, and blocks fit every GPU.
void test_geometry() {
  for (DType type : kFloatTypes) {
    const int64_t sum = type == DType::kFloat64 ? 8 : 4;
    for (int64_t tokens = 1; tokens <= 4096; tokens += tokens < 1400 ? 1 : 67) {
      for (int64_t size : {1, 64, 65, 80, 81, 128, 129, 512}) {
        const vit::AttentionShape shape = vit::sequence_shape(3, tokens, 2, size);
        testing("geometry: %s, %lld tokens, heads of %lld", name(type), number(tokens),
                number(size));
        const vit::BackwardGeometry g = vit::backward_geometry(type, shape);
        EXPECT(vit::is_launchable(g) && !vit::is_empty(g), "it cannot be launched");
        for (const auto& launch : {g.delta, g.d_queries, g.d_keys, g.short_lines}) {
          expect_launchable(launch);
        }
        const bool is_short = g.short_lines.blocks > 0;
        EXPECT(!is_short || g.short_lines.threads == (tokens + 15) / 16 * 32, "%d threads",
               g.short_lines.threads);
        EXPECT(g.delta_bytes == (is_short ? 0 : 6 * tokens * sum), "%lld bytes of delta",
               number(g.delta_bytes));
        EXPECT((g.query_tiles - 1) * g.queries < tokens && g.query_tiles * g.queries >= tokens,
               "%lld tiles of %d queries", number(g.query_tiles), g.queries);
        EXPECT((g.key_tiles - 1) * 64 < tokens && g.key_tiles * 64 >= tokens, "%lld tiles of keys",
               number(g.key_tiles));
        const int64_t blocks = is_short ? g.short_lines.blocks : g.d_queries.blocks;
        EXPECT(blocks == 6 * g.query_tiles * g.chunks, "%lld blocks", number(blocks));
        EXPECT(is_short || g.d_keys.blocks == 6 * g.key_tiles * g.chunks, "%lld blocks of keys",
               number(g.d_keys.blocks));
        EXPECT(g.path == vit::AttentionPath::kTensor ? g.chunks == 1 : g.chunks * 64 >= size,
               "%lld chunks", number(g.chunks));
      }
    }
  }
}

void test_bias_geometry() {
  for (DType type : {DType::kBfloat16, DType::kFloat64}) {
    for (int64_t tokens : {1, 64, 65, 197, 4096}) {
      for (int64_t batch : {1, 5, 4096}) {
        for (int mask = 0; mask < 32; ++mask) {
          AttentionCase problem = {
              type, vit::sequence_shape(batch, tokens, 12, 64), 0, 0, {}, {}, {}, {}};
          const vit::AttentionBias bias = {nullptr,       mask >> 4 & 1, mask >> 3 & 1,
                                           mask >> 2 & 1, mask >> 1 & 1, mask & 1};
          testing("geometry of a bias: %s, batch %lld, %lld tokens, dimensions %d", name(type),
                  number(batch), number(tokens), mask);
          const vit::BiasGeometry g = vit::bias_geometry(type, problem.shape, bias);
          for (const auto& launch : {g.delta, g.logits, g.sums}) expect_launchable(launch);
          const int64_t elements = (mask & 16 ? batch : 1) * (mask & 4 ? 12 : 1) *
                                   (mask & 2 ? tokens : 1) * (mask & 1 ? tokens : 1);
          EXPECT(g.elements == elements, "%lld elements", number(g.elements));
          const int64_t pieces = g.logits.blocks / g.groups;
          EXPECT(pieces * g.units == batch * 12 * g.tiles * g.tiles, "%lld pieces of %lld units",
                 number(pieces), number(g.units));
          EXPECT(g.groups >= 1 && g.groups <= g.units, "%lld groups", number(g.groups));
          EXPECT(g.groups == 1 ? g.group_bytes == 0
                               : g.group_bytes <= int64_t{64} << 20 && g.sums.blocks > 0,
                 "%lld bytes of groups", number(g.group_bytes));
          const bool is_parallel = g.logits.blocks >= 1024 || g.groups == g.units;
          EXPECT(is_parallel, "%lld blocks", number(g.logits.blocks));
        }
      }
    }
  }
}

// Problems beyond the limits of a launch are refused; sizes do not overflow before.
void test_bounds() {
  testing("bounds");
  const auto backward = [](DType type, int64_t batch, int64_t tokens, int64_t size) {
    const vit::AttentionShape shape = vit::sequence_shape(batch, tokens, 1, size);
    return vit::is_launchable(vit::backward_geometry(type, shape));
  };
  const int64_t many = int64_t{1} << 31;
  EXPECT(backward(DType::kBfloat16, many - 1, 50, 64), "2^31 - 1 lines do not fit");
  EXPECT(!backward(DType::kBfloat16, many, 50, 64), "2^31 lines fit");
  EXPECT(!backward(DType::kFloat32, many / 2, 65, 8), "2^31 tiles fit");
  EXPECT(!backward(DType::kFloat64, int64_t{1} << 40, 1, 1), "2^40 lines fit");
  const vit::AttentionShape shape = vit::sequence_shape(int64_t{1} << 40, 1, 1, 8);
  const vit::AttentionBias whole = {nullptr, 1, 0, 0, 0, 0}, one = {nullptr, 0, 0, 0, 0, 0};
  EXPECT(!vit::is_launchable(vit::bias_geometry(DType::kBfloat16, shape, whole)), "2^40 parts fit");
  EXPECT(vit::is_launchable(vit::bias_geometry(DType::kBfloat16, shape, one)), "one part does not");
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "sizes")) test_sizes();
  if (wanted(argc, argv, "long_lines")) test_long_lines();
  if (wanted(argc, argv, "scale")) test_scale();
  if (wanted(argc, argv, "bias")) test_bias();
  if (wanted(argc, argv, "closed_rows")) test_closed_rows();
  if (wanted(argc, argv, "values")) {
    test_one_key();
    test_large_logits();
    test_infinite_key();
  }
  if (wanted(argc, argv, "no_elements")) {
    test_no_elements();
    test_out_of_memory();
  }
  if (wanted(argc, argv, "geometry")) {
    test_geometry();
    test_bias_geometry();
    test_bounds();
  }
  return finish();
}
