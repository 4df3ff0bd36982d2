// libFuzzer on the patch embedding of CPUs and of the GPU of gpu_emulation.h: shapes, types and
// contents. Kernels must not write outside of their outputs, and any order of the units, or of
// blocks and warps, must give the same bits. For plain numbers the results must match the oracle,
// and so be finite.
#include <algorithm>

#include "tests/cc/fuzz.h"
#include "tests/cc/gpu_emulation.h"
#include "tests/cc/gpu_scratch.h"
#include "tests/cc/patch_oracle.h"
#include "tests/cc/threads.h"

namespace {

using namespace vit_test;
using vit::DType;

// Maximum products in one run of the oracle, and of the emulation, which takes 100 times as long as
// a CPU.
constexpr int64_t kMostProducts = 200000, kMostEmulated = 50000;

// Extracts patches and restores images: the bytes of patches must be restored, all others must be
// 0.
template <class Execution>
void cut(const PatchCase& problem, const PatchRun& run, const Execution& execution) {
  const vit::PatchShape& s = problem.shape;
  const int64_t size = vit::size_of(problem.image_type);
  const int64_t elements = s.batch * s.patches() * s.patch_elements();
  Tensor patches(problem.image_type, elements, Tensor::kOutput, 1);
  Tensor restored(problem.image_type, problem.pixels(), Tensor::kOutput, 1);
  vit::extract_patches({s, size, run.images.data(), patches.data()}, execution);
  vit::restore_patches({s, size, patches.data(), restored.data()}, execution);
  EXPECT(patches.intact() && restored.intact(), "something was written outside of an output");
  const uint8_t* before = static_cast<const uint8_t*>(run.images.data());
  const uint8_t* after = static_cast<const uint8_t*>(restored.data());
  for (int64_t i = 0; i < restored.bytes(); ++i) {
    EXPECT(after[i] == before[i] || after[i] == 0, "byte %lld has changed", number(i));
  }
  for (int64_t i = 0; i < elements; ++i) {
    const int64_t patch = i / s.patch_elements();
    const int64_t pixel =
        pixel_place(s, patch / s.patches(), patch % s.patches(), i % s.patch_elements());
    EXPECT(memcmp(after + pixel * size, before + pixel * size, static_cast<size_t>(size)) == 0,
           "pixel %lld is lost", number(pixel));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  input.pick_isa();
  PatchCase p = {};
  p.type = kFloatTypes[input.pick(0, 3)];
  p.image_type = static_cast<DType>(input.pick(0, 4));
  p.shape.patch_size = input.pick(1, 17);
  p.shape.height = input.pick(0, 50);
  p.shape.width = input.pick(0, 50);
  p.shape.batch = input.pick(0, 3);
  p.shape.channels = input.pick(0, 5);
  p.shape.features = input.pick(0, 150);
  p.shape.prefix = input.pick(0, 3);
  p.has_position = input.pick(0, 1);
  const int64_t products =
      p.shape.batch * p.shape.patches() * p.shape.patch_elements() * p.shape.features;
  if (products > 4 * kMostProducts) return 0;
  const double scales[] = {1, 1 / 127.5, 0, -2.5}, offsets[] = {0, -1, 0.1, 3};
  p.scale = scales[input.pick(0, 3)];
  p.offset = offsets[input.pick(0, 3)];
  const Contents contents = input.contents();
  p.images = input.numbers(p.image_type, p.pixels(), contents);
  p.kernel = input.numbers(p.type, p.kernel_size(), contents);
  p.bias = input.numbers(p.type, p.shape.features, contents);
  p.prefix = input.numbers(p.type, p.shape.prefix * p.shape.features, contents);
  p.position = input.numbers(p.type, p.table_size(), contents);
  p.d_tokens = input.numbers(p.type, p.token_count(), contents);

  const bool has_float64 = p.type == DType::kFloat64 || p.image_type == DType::kFloat64;
  const bool on_gpu = !has_float64 && products <= kMostEmulated && input.pick(0, 7) == 7;
  testing("%s, %s images, %s kernel", on_gpu ? "gpu" : isa(), name(p.image_type), name(p.type));
  const int shift = static_cast<int>(input.pick(0, 3));
  PatchRun run(p, shift), again(p, shift);
  const int wanted = 31 - static_cast<int>(input.pick(0, 31));
  const Gpu gpu;
  if (on_gpu) {
    set_reversed(false);
    run.all(execution(gpu), wanted);
    set_reversed(true);
    again.all(execution(gpu), wanted);
  } else {
    run.all(vit::serial(), wanted);
    Shuffled shuffled(static_cast<uint64_t>(input.pick(0, 255)), 1);
    again.all(shuffled.parallel_for(), wanted);
  }
  again.expect_same(run);
  run.expect_intact();
  again.expect_intact();
  if (on_gpu) {
    cut(p, run, execution(gpu));
  } else {
    cut(p, run, execution(backwards()));
  }
  if (contents == Contents::kPlain && wanted == 31 && products <= kMostProducts) {
    run.expect(patch_oracle(p));
  }
  return end_of_run();
}
