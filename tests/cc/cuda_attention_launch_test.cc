// The launches of attention on a GPU: how it is divided into blocks, which outputs are written, and
// what happens without memory. Kernels run under the emulation of gpu_emulation.h.
#include <algorithm>

#include "custom_ops/cuda/attention/line_stream.h"
#include "custom_ops/cuda/attention_gradient/backward_geometry.h"
#include "tests/cc/attention_run.h"
#include "tests/cc/gpu_scratch.h"

namespace {

using namespace vit_test;
using vit::DType;

// What a block may have on some GPUs: on none of today, sm_86, sm_80, sm_90.
constexpr int64_t kMostShared[] = {48 << 10, 99 << 10, 163 << 10, 227 << 10};

// Whether heads of this size fit tensor cores.
bool fits_tensor_cores(DType type, int64_t size, int64_t most_shared) {
  return vit::size_of(type) == 2 && size <= (most_shared < 99 << 10 ? 64 : 128);
}

void expect_forward_geometry(DType type, const vit::AttentionShape& shape, int64_t most_shared) {
  testing("geometry: %s, %lld tokens, heads of %lld, shared memory of %lld bytes", name(type),
          number(shape.tokens), number(shape.head_size), number(most_shared));
  const vit::ForwardGeometry g = vit::forward_geometry(type, shape, most_shared);
  const int64_t lines = shape.batch * shape.lines * shape.heads;
  EXPECT(vit::is_launchable(g.launch, most_shared), "%lld blocks of %d threads with %lld bytes",
         number(g.launch.blocks), g.launch.threads, number(g.launch.shared_bytes));
  EXPECT(g.launch.blocks == lines * g.query_tiles * g.column_tiles, "%lld blocks",
         number(g.launch.blocks));
  EXPECT(
      g.query_tiles * g.queries >= shape.tokens && (g.query_tiles - 1) * g.queries < shape.tokens,
      "%lld tiles of %d queries", number(g.query_tiles), g.queries);
  const bool is_tensor = g.path == vit::AttentionPath::kTensor;
  EXPECT(is_tensor == fits_tensor_cores(type, shape.head_size, most_shared), "the wrong path");
  if (is_tensor) {
    const int per_warp = shape.head_size > 80 ? 16 : 32;
    EXPECT(g.queries == g.launch.threads / 32 * per_warp && g.queries <= 128, "%d queries",
           g.queries);
    EXPECT(vit::padded_head_size(shape.head_size) >= shape.head_size, "head too large");
    // Fewer than one idle warp per block.
    EXPECT(g.query_tiles * g.queries < shape.tokens + g.query_tiles * per_warp, "%d queries",
           g.queries);
    EXPECT(g.launch.threads == 32 || g.launch.blocks >= 132,
           "%lld blocks of %d threads leave multiprocessors without work", number(g.launch.blocks),
           g.launch.threads);
    // Two blocks fit a multiprocessor with 100 KB, which keeps 1 KB per block.
    EXPECT(shape.head_size > 80 || g.launch.shared_bytes <= 49 * 1024, "%lld bytes",
           number(g.launch.shared_bytes));
  } else {
    EXPECT(g.column_tiles * 64 >= shape.head_size && (g.column_tiles - 1) * 64 < shape.head_size,
           "%lld column_tiles", number(g.column_tiles));
  }
  vit::AttentionTapsProblem taps = {};
  taps.type = type;
  taps.shape = shape;
  taps.class_row = &taps;
  const vit::TapsGeometry row = vit::taps_geometry(taps, most_shared);
  EXPECT(row.launch.blocks == lines && row.sum_bytes == 0 && row.sums.blocks == 0,
         "%lld blocks for the class row", number(row.launch.blocks));
  taps.entropy = &taps;
  const vit::TapsGeometry t = vit::taps_geometry(taps, most_shared);
  EXPECT(vit::is_launchable(t.launch, most_shared) && vit::is_launchable(t.sums, most_shared),
         "taps cannot be launched");
  EXPECT(t.path == g.path, "taps take another path");
  EXPECT(t.launch.blocks == lines * ((shape.tokens + 63) / 64), "%lld blocks",
         number(t.launch.blocks));
  EXPECT(t.sum_bytes == t.launch.blocks * 2 * 4, "%lld bytes", number(t.sum_bytes));
}

void test_forward_geometry() {
  for (DType type : Gpu::kTypes) {
    for (int64_t size : {1, 3, 16, 63, 64, 65, 72, 80, 81, 96, 128, 129, 192, 256, 512}) {
      for (int64_t tokens = 1; tokens <= 4096; tokens += tokens < 300 ? 1 : 61) {
        expect_forward_geometry(type, vit::sequence_shape(3, tokens, 2, size),
                                kMostShared[tokens % 4]);
      }
    }
    // More blocks than the second and third dimension of a launch could have, and too many.
    for (int64_t most_shared : kMostShared) {
      expect_forward_geometry(type, vit::sequence_shape(1 << 16, 50, 12, 64), most_shared);
    }
    const vit::AttentionShape large = vit::sequence_shape(1 << 28, 197, 12, 64);
    const vit::ForwardGeometry g = vit::forward_geometry(type, large, kLeastSharedBytes);
    EXPECT(!vit::is_launchable(g.launch, kLeastSharedBytes), "it is too large");
    const vit::AttentionForwardProblem problem = {{type, large, 1, nullptr, {}}, nullptr, nullptr};
    EXPECT(vit::attention_forward(problem, execution(Gpu())) == vit::CudaResult::kTooLarge,
           "a launch that is too large is not refused");
  }
}

// The scales of all kernels give the scale of the problem, and of_largest is what
// cc/attention_problem.h says.
void test_logit_scales() {
  for (DType type : Gpu::kTypes) {
    for (int64_t size : {64, 256}) {
      for (double scale : {0x1p-100, 0x1p-20, 0.125, 0.3, 1.0, 5.0}) {
        for (bool has_bias : {false, true}) {
          testing("scales: %s, %g", name(type), scale);
          const double data = 0;
          vit::AttentionProblem problem = {
              type, vit::sequence_shape(1, 1, 1, size), scale, nullptr, {}};
          if (has_bias) problem.bias.data = &data;
          const auto path = vit::attention_path(type, size, kLeastSharedBytes);
          const vit::LogitScales s = vit::logit_scales(problem, path);
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

void expect_launchable(const vit::LaunchShape& shape, int64_t most_shared) {
  EXPECT(shape.blocks == 0 || vit::is_launchable(shape, most_shared),
         "%lld blocks of %d threads with %lld bytes", number(shape.blocks), shape.threads,
         number(shape.shared_bytes));
}

// Every query and key has a block, and blocks fit every GPU.
void test_gradient_geometry() {
  for (DType type : Gpu::kTypes) {
    for (int64_t tokens = 1; tokens <= 4096; tokens += tokens < 1400 ? 1 : 67) {
      for (int64_t size : {1, 64, 65, 80, 81, 128, 129, 512}) {
        const vit::AttentionShape shape = vit::sequence_shape(3, tokens, 2, size);
        testing("geometry: %s, %lld tokens, heads of %lld", name(type), number(tokens),
                number(size));
        const int64_t most_shared = kMostShared[tokens % 4];
        const vit::BackwardGeometry g = vit::backward_geometry(type, shape, most_shared);
        EXPECT(vit::is_launchable(g, most_shared) && !vit::is_empty(g), "it cannot be launched");
        EXPECT(
            (g.path == vit::AttentionPath::kTensor) == fits_tensor_cores(type, size, most_shared),
            "the wrong path");
        for (const auto& launch : {g.delta, g.d_queries, g.d_keys, g.short_lines}) {
          expect_launchable(launch, most_shared);
        }
        const bool is_short = g.short_lines.blocks > 0;
        EXPECT(!is_short || g.short_lines.threads == (tokens + 15) / 16 * 32, "%d threads",
               g.short_lines.threads);
        EXPECT(g.delta_bytes == (is_short ? 0 : 6 * tokens * 4), "%lld bytes of delta",
               number(g.delta_bytes));
        EXPECT((g.query_tiles - 1) * g.queries < tokens && g.query_tiles * g.queries >= tokens,
               "%lld tiles of %d queries", number(g.query_tiles), g.queries);
        EXPECT((g.key_tiles - 1) * 64 < tokens && g.key_tiles * 64 >= tokens, "%lld tiles of keys",
               number(g.key_tiles));
        const int64_t blocks = is_short ? g.short_lines.blocks : g.d_queries.blocks;
        EXPECT(blocks == 6 * g.query_tiles * g.column_tiles, "%lld blocks", number(blocks));
        EXPECT(is_short || g.d_keys.blocks == 6 * g.key_tiles * g.column_tiles,
               "%lld blocks of keys", number(g.d_keys.blocks));
        EXPECT(g.path == vit::AttentionPath::kTensor ? g.column_tiles == 1
                                                     : g.column_tiles * 64 >= size,
               "%lld column_tiles", number(g.column_tiles));
      }
    }
  }
}

// `groups`: that multiply.
void expect_stream(const vit::StreamGeometry& g, const vit::LaunchShape& launch, int64_t tokens,
                   int first_rows, int other_rows, int groups, int64_t most_shared,
                   int multiprocessors) {
  expect_launchable(launch, most_shared);
  const int64_t lines = 6, tiles = (tokens + 63) / 64;
  EXPECT(g.tiles == tiles && g.all_tiles == lines * tiles, "%d tiles", g.tiles);
  EXPECT(g.blocks == launch.blocks && g.blocks == std::min<int64_t>(multiprocessors, g.all_tiles),
         "%lld blocks", number(g.blocks));
  EXPECT(launch.threads == (groups + 1) * 128, "%d threads", launch.threads);
  const int64_t all = g.sections[0] * first_rows + g.sections[1] * other_rows;
  EXPECT(all >= tokens && all < tokens + 64, "%lld rows", number(all));
  const int sections = g.sections[0] + g.sections[1];
  EXPECT(g.slots >= 2 && g.slots <= 3 * sections, "%d slots", g.slots);

  EXPECT(g.tiles_per_pass == (g.slots < sections && tiles > groups ? groups : tiles),
         "%d tiles of a pass with %d slots for %d sections", g.tiles_per_pass, g.slots, sections);
}

// Quotients of kernels equal the processor's, up to the largest number.
void test_divisors() {
  constexpr int64_t kLargest = 0x7fffffff;
  for (int64_t divisor : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{12}, int64_t{16},
                          (int64_t{1} << 30) + 1, kLargest - 1, kLargest}) {
    testing("quotients by %lld", number(divisor));
    const vit::Divisor d = vit::divisor_of(divisor);
    const auto expect_quotient = [&](int64_t n) {
      if (n < 0 || n > kLargest) return;
      const int64_t found = vit::quotient(static_cast<uint32_t>(n), d);
      EXPECT(found == n / divisor, "%lld is %lld", number(n), number(found));
    };
    const int64_t most = kLargest / divisor;
    for (int64_t i = 0; i <= 1000; ++i) {
      // Multiples, from 0 to the last one, and their neighbors.
      const int64_t multiple = most * i / 1000 * divisor;
      for (int64_t n : {multiple - 1, multiple, multiple + 1}) expect_quotient(n);
      expect_quotient(kLargest - i);
    }
  }
}

// All rows have a place in sections, and rings fit the shared memory.
void test_warpgroup_geometry() {
  for (int64_t tokens = 65; tokens <= 4096; tokens += tokens < 1400 ? 1 : 67) {
    for (int size : {8, 64, 72, 80}) {
      const vit::AttentionShape shape = vit::sequence_shape(3, tokens, 2, size);
      testing("streams: %lld tokens, heads of %d", number(tokens), size);
      const int64_t most_shared = kMostShared[1 + tokens % 3];
      const int multiprocessors = tokens % 2 ? 132 : 5;
      const auto f =
          vit::forward_warpgroup_geometry(DType::kFloat16, shape, most_shared, multiprocessors);
      EXPECT(f.is_possible, "forward is not possible");
      expect_stream(f.stream, f.launch, tokens, 80, 64, 3, most_shared, multiprocessors);
      const auto b =
          vit::backward_warpgroup_geometry(DType::kBfloat16, shape, most_shared, multiprocessors);
      EXPECT(b.is_possible, "gradients are not possible");
      expect_stream(b.queries, b.d_queries, tokens, 64, 16, size > 64 ? 2 : 3, most_shared,
                    multiprocessors);
      expect_stream(b.keys, b.d_keys, tokens, 64, 16, 2, most_shared, multiprocessors);
      const int64_t rows = 64 * b.keys.sections[0] + 16 * b.keys.sections[1];
      const int64_t without = (tokens + 63) / 64 * 64, with = 16 + (tokens - 16 + 63) / 64 * 64;
      EXPECT(rows == std::min(without, with), "%lld rows", number(rows));
    }
  }
  testing("streams: what they do not take");
  const auto expect_impossible = [](DType type, int64_t tokens, int64_t size, int64_t most_shared) {
    const vit::AttentionShape shape = vit::sequence_shape(1, tokens, 1, size);
    EXPECT(!vit::forward_warpgroup_geometry(type, shape, most_shared, 132).is_possible, "forward");
    EXPECT(!vit::backward_warpgroup_geometry(type, shape, most_shared, 132).is_possible,
           "gradients");
  };
  expect_impossible(DType::kFloat32, 65, 64, 227 << 10);
  expect_impossible(DType::kBfloat16, 65, 81, 227 << 10);
  expect_impossible(DType::kBfloat16, 65, 64, 32 << 10);
  expect_impossible(DType::kBfloat16, int64_t{1} << 40, 64, 227 << 10);
}

void test_bias_geometry() {
  for (DType type : {DType::kBfloat16, DType::kFloat32}) {
    for (int64_t tokens : {1, 64, 65, 197, 4096}) {
      for (int64_t batch : {1, 5, 4096}) {
        for (int mask = 0; mask < 32; ++mask) {
          AttentionCase problem = {
              type, vit::sequence_shape(batch, tokens, 12, mask % 8 < 4 ? 64 : 128),
              0,    0,
              {},   {},
              {},   {}};
          const vit::AttentionBias bias = {nullptr,       mask >> 4 & 1, mask >> 3 & 1,
                                           mask >> 2 & 1, mask >> 1 & 1, mask & 1};
          testing("geometry of a bias: %s, batch %lld, %lld tokens, dimensions %d", name(type),
                  number(batch), number(tokens), mask);
          const int64_t most_shared = kMostShared[mask % 4];
          const vit::BiasGeometry g = vit::bias_geometry(type, problem.shape, bias, most_shared);
          for (const auto& launch : {g.delta, g.logits, g.sums}) {
            expect_launchable(launch, most_shared);
          }
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

// A GPU that has too little for any kernel gets none.
void test_too_little_shared_memory() {
  testing("too little shared memory");
  Random random(6);
  AttentionCase problem = make(random, DType::kBfloat16, vit::sequence_shape(1, 5, 1, 8));
  shape_bias(problem, 0);
  AttentionRun run(problem, 0);
  const Gpu gpu;
  set_most_shared_bytes(1024);
  EXPECT(run.forward(gpu) == vit::CudaResult::kTooLarge, "forward starts");
  EXPECT(run.backward(gpu) == vit::CudaResult::kTooLarge, "backward starts");
  EXPECT(run.bias_gradient(gpu) == vit::CudaResult::kTooLarge, "the gradient of the bias starts");
  EXPECT(run.taps(gpu) == vit::CudaResult::kTooLarge, "taps start");
  set_most_shared_bytes(kLeastSharedBytes);
  run.expect_intact();
}

// Problems beyond the limits of a launch are refused; sizes do not overflow before.
void test_bounds() {
  testing("bounds");
  const auto backward = [](DType type, int64_t batch, int64_t tokens, int64_t size) {
    const vit::AttentionShape shape = vit::sequence_shape(batch, tokens, 1, size);
    return vit::is_launchable(vit::backward_geometry(type, shape, kLeastSharedBytes),
                              kLeastSharedBytes);
  };
  const int64_t many = int64_t{1} << 31;
  EXPECT(backward(DType::kBfloat16, many - 1, 50, 64), "2^31 - 1 lines do not fit");
  EXPECT(!backward(DType::kBfloat16, many, 50, 64), "2^31 lines fit");
  EXPECT(!backward(DType::kFloat32, many / 2, 65, 8), "2^31 tiles fit");
  EXPECT(!backward(DType::kFloat32, int64_t{1} << 40, 1, 1), "2^40 lines fit");
  const vit::AttentionShape shape = vit::sequence_shape(int64_t{1} << 40, 1, 1, 8);
  const vit::AttentionBias whole = {nullptr, 1, 0, 0, 0, 0}, one = {nullptr, 0, 0, 0, 0, 0};
  const auto fits = [&](const vit::AttentionBias& bias) {
    const auto g = vit::bias_geometry(DType::kBfloat16, shape, bias, kLeastSharedBytes);
    return vit::is_launchable(g, kLeastSharedBytes);
  };
  EXPECT(!fits(whole), "2^40 parts fit");
  EXPECT(fits(one), "one part does not");
  // Kernels count the elements of a head with int.
  const vit::AttentionProblem head = {
      DType::kFloat32, vit::sequence_shape(1, 1, 1, many), 1, nullptr, {}};
  const vit::CudaExecution gpu = execution(Gpu());
  const auto too_large = vit::CudaResult::kTooLarge;
  EXPECT(vit::attention_forward({head, nullptr, nullptr}, gpu) == too_large, "forward");
  EXPECT(vit::attention_backward({head, nullptr, nullptr, nullptr, nullptr}, gpu) == too_large,
         "backward");
  EXPECT(vit::attention_bias_gradient({head, nullptr, nullptr, nullptr, nullptr}, gpu) == too_large,
         "the gradient of the bias");
  EXPECT(vit::attention_taps({head, nullptr, 0, 0, nullptr, nullptr, nullptr}, gpu) == too_large,
         "taps");
}

// Any set of outputs, and no scratch memory.
void test_outputs_of_taps() {
  for (DType type : {DType::kBfloat16, DType::kFloat32}) {
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

void test_float64() {
  using vit::CudaResult;
  testing("float64");
  Random random(5);
  AttentionCase problem = make(random, DType::kFloat64, vit::sequence_shape(1, 5, 1, 8));
  shape_bias(problem, 0);
  AttentionRun run(problem, 0);
  const Gpu gpu;
  EXPECT(run.forward(gpu) == CudaResult::kNoKernel, "forward takes it");
  EXPECT(run.backward(gpu) == CudaResult::kNoKernel, "backward takes it");
  EXPECT(run.bias_gradient(gpu) == CudaResult::kNoKernel, "the gradient of the bias takes it");
  const vit::AttentionTapsProblem taps = {
      run.inputs(), run.statistics.data(), 0, 0, run.class_row.data(), nullptr, nullptr};
  EXPECT(vit::attention_taps(taps, execution(gpu)) == CudaResult::kNoKernel, "taps take it");
  run.expect_intact();
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

}  // namespace

int main() {
  test_divisors();
  test_warpgroup_geometry();
  test_outputs_of_taps();
  test_out_of_memory();
  test_float64();
  test_forward_geometry();
  test_logit_scales();
  test_gradient_geometry();
  test_bias_geometry();
  test_bounds();
  test_too_little_shared_memory();
  return finish();
}
