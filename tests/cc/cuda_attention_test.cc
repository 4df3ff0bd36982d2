// Attention forward and taps of a GPU, under the emulation of gpu_emulation.h, against loops over
// doubles; and how they are divided into blocks.
#include <algorithm>

#include "custom_ops/cuda/attention/geometry.h"
#include "custom_ops/cuda/device.h"
#include "tests/cc/attention_run.h"
#include "tests/cc/gpu_scratch.h"

namespace {

using namespace vit_test;
using vit::DType;

long long number(int64_t x) { return static_cast<long long>(x); }

// Runs a case in both orders of warps and blocks.
void compare_on_gpu(const AttentionCase& problem, const char* what, int shift) {
  const vit::AttentionShape& s = problem.shape;
  testing("%s: %s, batch %lld, %lld lines of %lld tokens, %lld heads of %lld, shift %d", what,
          name(problem.type), number(s.batch), number(s.lines), number(s.tokens), number(s.heads),
          number(s.head_size), shift);
  AttentionRun run(problem, shift), reversed(problem, shift);
  set_reversed(false);
  run.forward_and_taps(Gpu());
  run.expect_forward(AttentionOracle(problem, true).run());
  set_reversed(true);
  reversed.forward_and_taps(Gpu());
  run.expect_same(reversed);
}

// Adds a grid for the distance if the case has taps.
void set_grid(AttentionCase& problem, int64_t columns) {
  if (!problem.has_taps()) return;
  problem.columns = std::min(columns, problem.shape.tokens);
  problem.rows = problem.shape.tokens / problem.columns;
}

// Sizes around those of tiles, with different batches, axes, biases and alignments. The kernels
// without tensor cores have no cases of their own for a head size, so few suffice.
void test_sizes() {
  int turn = 0;
  for (int64_t size : {1, 3, 16, 40, 64, 72, 80, 128, 136}) {
    for (int64_t tokens : {1, 17, 50, 65, 130}) {
      for (DType type : kFloatTypes) {
        ++turn;
        const bool is_tensor = vit::attention_path(type, size) == vit::AttentionPath::kTensor;
        if (tokens > 65 && size % 16) continue;
        if (!is_tensor && (turn % 3 || tokens * size > 65 * 136)) continue;
        if (is_tensor && tokens > 50 && turn / 4 % 2 == (type == DType::kFloat16)) continue;
        Random random(static_cast<uint64_t>(turn));
        const int axis = tokens < 60 ? static_cast<int>(random.below(3)) : 0;
        const int64_t batch = tokens < 60 ? 1 + random.below(2) : 1;
        AttentionCase problem =
            make(random, type, shape_of(axis, batch, tokens, 1 + random.below(2), size));
        if (random.below(2)) {
          shape_bias(problem, static_cast<int>(random.below(32)));
          fill_bias(random, problem);
        }
        set_grid(problem, 1 + turn % 4);
        compare_on_gpu(problem, "sizes", random.below(4) ? 0 : 1);
      }
    }
  }
}

// Several blocks of queries, and several tiles of keys before the last one.
void test_long_lines() {
  for (DType type : {DType::kBfloat16, DType::kFloat16}) {
    for (int64_t size : {64, 80}) {
      Random random(3);
      const int64_t tokens = size == 64 ? 197 : 257;
      AttentionCase problem = make(random, type, vit::sequence_shape(1, tokens, 1, size));
      if (type == DType::kFloat16) {
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

// Every set of dimensions that a bias can be broadcast over.
void test_bias() {
  for (int mask = 0; mask < 32; ++mask) {
    const DType type = kFloatTypes[(mask + mask / 4) % 4];
    const int axis = mask % 3;
    Random random(static_cast<uint64_t>(mask));
    AttentionCase problem = make(random, type, shape_of(axis, 2, 19, 2, 8));
    std::vector<int> order = {0, 1, 2, 3, 4};
    if (mask % 8 > 3) std::swap(order[0], order[1 + static_cast<size_t>(axis)]);
    shape_bias(problem, mask, order);
    fill_bias(random, problem);
    set_grid(problem, 3);
    compare_on_gpu(problem, "bias", 0);
  }
}

// Large logits, whose weights the taps compute again, and queries without keys.
void test_values() {
  for (DType type : kFloatTypes) {
    for (double scale : {30.0, 1e4, 1e10}) {
      if (type == DType::kFloat16 && scale > 1e4) continue;
      Random random(9);
      compare_on_gpu(make(random, type, vit::sequence_shape(1, 37, 2, 24), scale), "large logits",
                     0);
    }
    for (int mask : {1, 3}) {
      Random random(5);
      AttentionCase problem = make(random, type, vit::sequence_shape(2, 21, 1, 8));
      shape_bias(problem, mask);
      std::fill(problem.bias.begin(), problem.bias.end(), -HUGE_VAL);
      set_grid(problem, 5);
      compare_on_gpu(problem, "closed rows", 0);
      AttentionRun run(problem, 0);
      for (int64_t i = 0; i < run.qkv.count(); i += 7) run.qkv.set(i, i % 2 ? NAN : HUGE_VAL);
      testing("closed rows of NaN: %s", name(type));
      run.forward(Gpu());
      for (int64_t i = 0; i < run.out.count(); ++i) EXPECT(run.out.at(i) == 0, "out is not 0");
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

void test_no_elements() {
  for (DType type : kFloatTypes) {
    for (int64_t batch : {0, 2}) {
      Random random(1);
      AttentionCase problem = make(random, type, vit::sequence_shape(batch, batch ? 0 : 5, 2, 8));
      compare_on_gpu(problem, "no elements", 0);
    }
  }
}

// Any set of outputs, and no scratch memory.
void test_outputs_of_taps() {
  for (DType type : {DType::kBfloat16, DType::kFloat64}) {
    Random random(4);
    AttentionCase problem = make(random, type, vit::sequence_shape(2, 70, 2, 16));
    problem.rows = 8;
    problem.columns = 8;
    AttentionRun all(problem, 0), some(problem, 0);
    all.forward_and_taps(Gpu());
    for (int mask = 0; mask < 8; ++mask) {
      testing("taps %d: %s", mask, name(type));
      const vit::AttentionTapsProblem wanted = {all.inputs(),
                                                all.statistics.data(),
                                                problem.rows,
                                                problem.columns,
                                                mask & 1 ? some.class_row.data() : nullptr,
                                                mask & 2 ? some.distance.data() : nullptr,
                                                mask & 4 ? some.entropy.data() : nullptr};
      for (Tensor* tensor : some.results()) tensor->forget();
      Gpu gpu;
      EXPECT(vit::attention_taps(wanted, execution(gpu)) == vit::CudaResult::kOk, "it fails");
      const AttentionRun none(problem, 0);
      EXPECT(some.class_row == (mask & 1 ? all : none).class_row, "class_row differs");
      EXPECT(some.distance == (mask & 2 ? all : none).distance, "distance differs");
      EXPECT(some.entropy == (mask & 4 ? all : none).entropy, "entropy differs");
      scratch_use().refuse = true;
      const auto result = vit::attention_taps(wanted, execution(gpu));
      EXPECT((result == vit::CudaResult::kOutOfMemory) == (mask > 1), "result %d without memory",
             static_cast<int>(result));
      scratch_use().refuse = false;
      some.expect_intact();
    }
  }
}

void expect_geometry(DType type, const vit::AttentionShape& shape) {
  testing("geometry: %s, %lld tokens, heads of %lld", name(type), number(shape.tokens),
          number(shape.head_size));
  const vit::ForwardGeometry g = vit::forward_geometry(type, shape);
  const int64_t lines = shape.batch * shape.lines * shape.heads;
  EXPECT(vit::is_launchable(g.launch), "%lld blocks of %d threads with %lld bytes",
         number(g.launch.blocks), g.launch.threads, number(g.launch.shared_bytes));
  EXPECT(g.launch.blocks == lines * g.query_tiles * g.chunks, "%lld blocks",
         number(g.launch.blocks));
  EXPECT(
      g.query_tiles * g.queries >= shape.tokens && (g.query_tiles - 1) * g.queries < shape.tokens,
      "%lld tiles of %d queries", number(g.query_tiles), g.queries);
  const bool is_tensor = g.path == vit::AttentionPath::kTensor;
  EXPECT(is_tensor == (vit::size_of(type) == 2 && shape.head_size <= 128), "the wrong path");
  if (is_tensor) {
    const int per_warp = shape.head_size > 80 ? 16 : 32;
    EXPECT(g.queries == g.launch.threads / 32 * per_warp && g.queries <= 128, "%d queries",
           g.queries);
    EXPECT(vit::padded_head_size(shape.head_size) >= shape.head_size, "head too large");
    // Fewer than one idle warp per block.
    EXPECT(g.query_tiles * g.queries < shape.tokens + g.query_tiles * per_warp, "%d queries",
           g.queries);
    // Two blocks fit a multiprocessor with 100 KB, which keeps 1 KB per block.
    EXPECT(shape.head_size > 80 || g.launch.shared_bytes <= 49 * 1024, "%lld bytes",
           number(g.launch.shared_bytes));
  } else {
    EXPECT(g.chunks * 64 >= shape.head_size && (g.chunks - 1) * 64 < shape.head_size, "%lld chunks",
           number(g.chunks));
  }
  vit::AttentionTapsProblem taps = {};
  taps.type = type;
  taps.shape = shape;
  taps.class_row = &taps;
  const vit::TapsGeometry row = vit::taps_geometry(taps);
  EXPECT(row.launch.blocks == lines && row.sum_bytes == 0 && row.sums.blocks == 0,
         "%lld blocks for the class row", number(row.launch.blocks));
  taps.entropy = &taps;
  const vit::TapsGeometry t = vit::taps_geometry(taps);
  EXPECT(vit::is_launchable(t.launch) && vit::is_launchable(t.sums), "taps cannot be launched");
  EXPECT(t.launch.blocks == lines * ((shape.tokens + 63) / 64), "%lld blocks",
         number(t.launch.blocks));
  EXPECT(t.sum_bytes == t.launch.blocks * 2 * vit::size_of(accumulator(type)), "%lld bytes",
         number(t.sum_bytes));
}

void test_geometry() {
  for (DType type : kFloatTypes) {
    for (int64_t size : {1, 3, 16, 63, 64, 65, 72, 80, 81, 96, 128, 129, 192, 256, 512}) {
      for (int64_t tokens = 1; tokens <= 4096; tokens += tokens < 300 ? 1 : 61) {
        expect_geometry(type, vit::sequence_shape(3, tokens, 2, size));
      }
    }
    // More blocks than the second and third dimension of a launch could have, and too many.
    expect_geometry(type, vit::sequence_shape(1 << 16, 50, 12, 64));
    const vit::AttentionShape large = vit::sequence_shape(1 << 28, 197, 12, 64);
    EXPECT(!vit::is_launchable(vit::forward_geometry(type, large).launch), "it is too large");
    const vit::AttentionForwardProblem problem = {{type, large, 1, nullptr, {}}, nullptr, nullptr};
    EXPECT(vit::attention_forward(problem, execution(Gpu())) == vit::CudaResult::kTooLarge,
           "a launch that is too large is not refused");
  }
}

// The scales of all kernels give the scale of the problem, and of_largest is what cc/attention.h
// says.
void test_logit_scales() {
  for (DType type : kFloatTypes) {
    for (int64_t size : {64, 256}) {
      for (double scale : {0x1p-100, 0x1p-20, 0.125, 0.3, 1.0, 5.0}) {
        for (bool has_bias : {false, true}) {
          testing("scales: %s, %g", name(type), scale);
          const double data = 0;
          vit::AttentionProblem problem = {
              type, vit::sequence_shape(1, 1, 1, size), scale, nullptr, {}};
          if (has_bias) problem.bias.data = &data;
          const vit::LogitScales s = vit::logit_scales(problem);
          const double log2e = 1 / log(2.0);
          EXPECT(s.of_queries * s.of_products == scale, "the product is %g",
                 s.of_queries * s.of_products);
          EXPECT(fabs(s.of_exponents / (has_bias ? log2e : log2e * s.of_products) - 1) < 1e-15,
                 "of_exponents is %g", s.of_exponents);
          EXPECT(s.of_largest * (has_bias ? 1 : s.of_queries) ==
                     (has_bias ? 1 : vit::query_factor(scale)),
                 "of_largest is %g", s.of_largest);
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
  if (wanted(argc, argv, "bias")) test_bias();
  if (wanted(argc, argv, "values")) test_values();
  if (wanted(argc, argv, "not_finite")) test_not_finite();
  if (wanted(argc, argv, "no_elements")) test_no_elements();
  if (wanted(argc, argv, "outputs_of_taps")) test_outputs_of_taps();
  if (wanted(argc, argv, "geometry")) test_geometry();
  if (wanted(argc, argv, "logit_scales")) test_logit_scales();
  return finish();
}
