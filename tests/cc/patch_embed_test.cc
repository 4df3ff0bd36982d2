// The patch embedding against loops over doubles, and the extraction of patches against its
// definition. Kernels write nothing outside of their outputs, nothing outside of the inputs has an
// effect, and the number of threads changes no bit.
#include "tests/cc/patch_scenarios.h"
#include "tests/cc/threads.h"

namespace {

using namespace vit_test;

// Around the widths of vectors.
const std::vector<vit::PatchShape> kShapes = {
    // batch, height, width, channels, patch_size, features, prefix
    {1, 1, 1, 1, 1, 1, 0},    {2, 7, 9, 3, 2, 5, 1},     {3, 16, 8, 1, 8, 16, 0},
    {1, 13, 17, 3, 4, 33, 2}, {2, 6, 34, 5, 3, 64, 1},   {1, 32, 33, 3, 16, 65, 1},
    {1, 8, 130, 2, 2, 17, 3}, {2, 14, 14, 3, 7, 130, 1}, {5, 4, 4, 4, 4, 15, 1},
};

// Several blocks of rows and of columns, panels of more than one block, rectangles of the kernel.
const std::vector<vit::PatchShape> kLargeShapes = {
    {2, 60, 60, 1, 4, 20, 1},   // 450 rows, so sums of 450 products for d_kernel
    {1, 19, 19, 3, 19, 40, 0},  // 1083 elements of a patch
    {1, 4, 4, 1, 2, 1090, 1},   // 1090 features
    {1, 36, 36, 3, 9, 280, 1},  // rectangles: 243 x 280
};

void test_threads() {
  const vit::PatchShape shapes[] = {
      {3, 14, 15, 3, 7, 70, 1}, {1, 40, 40, 2, 2, 18, 2}, {2, 30, 31, 3, 15, 300, 0}};
  uint64_t seed = 0;
  int turn = 0;
  for (const vit::PatchShape& shape : shapes) {
    for (DType type : kFloatTypes) {
      Random random(13);
      const PatchCase problem = make(random, Cpu::kImageTypes[++turn % 5], type, shape);
      PatchRun one(problem, 1), many(problem, 1);
      for_each_isa([&] {
        say("threads", isa(), problem);
        expect_same_on_threads(one, many, seed);
      });
    }
  }
}

void test_out_of_memory() {
  for (DType type : kFloatTypes) {
    Random random(14);
    const PatchCase problem = make(random, type, type, {2, 8, 8, 3, 4, 21, 1});
    PatchRun run(problem, 0);
    for_each_isa([&] {
      say("no memory", isa(), problem);
      scratch_use().refuse = true;
      const vit::Result out_of_memory = vit::Result::kOutOfMemory;
      EXPECT(run.forward(vit::serial()) == out_of_memory, "forward does not report it");
      EXPECT(run.backward(1, backwards()) == out_of_memory, "d_images does not report it");
      EXPECT(run.backward(2, vit::serial()) == out_of_memory, "d_kernel does not report it");
      scratch_use().refuse = false;
      run.expect_intact();
    });
  }
}

void test_cutting() {
  Random random(15);
  expect_cutting(random, [&](const auto& cut) {
    Shuffled shuffled(random.bits(), 3);
    cut(execution(shuffled.parallel_for()));
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "sizes")) test_sizes<Cpu>(kShapes);
  if (wanted(argc, argv, "large")) test_large<Cpu>(kLargeShapes);
  if (wanted(argc, argv, "no_elements")) test_no_elements<Cpu>();
  if (wanted(argc, argv, "wanted")) test_wanted<Cpu>();
  if (wanted(argc, argv, "left_over_pixels")) test_left_over_pixels<Cpu>();
  if (wanted(argc, argv, "not_finite")) test_not_finite<Cpu>();
  if (wanted(argc, argv, "threads")) test_threads();
  if (wanted(argc, argv, "out_of_memory")) test_out_of_memory();
  if (wanted(argc, argv, "cutting")) test_cutting();
  return finish();
}
