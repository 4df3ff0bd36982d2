// The kernels of custom_ops/cuda/patch_embed, on an emulated GPU, against loops over doubles, and
// the sizes of their launches. Blocks and warps run in both orders, which must change no bit.
#include "custom_ops/cuda/cuda_patch_embed.h"

#include <utility>

#include "custom_ops/cuda/patch_embed/patch_embed_geometry.h"
#include "tests/cc/gpu_scratch.h"
#include "tests/cc/patch_scenarios.h"

namespace {

using namespace vit_test;
using vit::CudaResult;

// Sizes that do and do not fit vectors and tiles.
const std::vector<vit::PatchShape> kShapes = {
    // batch, height, width, channels, patch_size, features, prefix
    {1, 1, 1, 1, 1, 1, 0},    {2, 7, 9, 3, 2, 5, 1},  {3, 16, 8, 1, 8, 64, 0},
    {1, 13, 17, 3, 4, 72, 2}, {2, 6, 34, 4, 3, 8, 1}, {1, 14, 14, 3, 7, 100, 1},
};

// Several tiles of rows, columns and products, parts of sums, and runs of patches.
const std::vector<vit::PatchShape> kLargeShapes = {
    {3, 32, 32, 1, 2, 136, 1},  // 768 patches in 3 parts
    {1, 16, 32, 3, 8, 136, 0},  // 192 elements of a patch
    {2, 18, 20, 3, 1, 5, 1},    // 720 patches of few elements
};

void test_out_of_memory() {
  for (DType type : Gpu::kTypes) {
    Random random(14);
    const PatchCase problem = make(random, type, type, {2, 34, 34, 1, 2, 5, 1});  // 578 patches
    PatchRun refused(problem, 0);
    say("no memory", "GPU", problem);
    const Gpu gpu;
    scratch_use().refuse = true;
    EXPECT(refused.forward(execution(gpu)) == CudaResult::kOk, "forward needs scratch");
    EXPECT(refused.backward(1, execution(gpu)) == CudaResult::kOk, "d_images needs scratch");
    for (int wanted : {2, 4, 8, 16}) {
      EXPECT(refused.backward(wanted, execution(gpu)) == CudaResult::kOutOfMemory,
             "backward does not report it, wanted %d", wanted);
    }
    scratch_use().refuse = false;
    refused.expect_intact();
  }
}

// The type of the kernel, and the type of the images alone.
void test_float64() {
  for (const auto& [image_type, type] :
       {std::pair{DType::kUint8, DType::kFloat64}, {DType::kFloat64, DType::kBfloat16}}) {
    Random random(16);
    const PatchCase problem = make(random, image_type, type, {1, 4, 4, 1, 2, 3, 0});
    PatchRun run(problem, 0);
    say("float64", "GPU", problem);
    EXPECT(run.forward(execution(Gpu())) == CudaResult::kNoKernel, "forward takes float64");
    EXPECT(run.backward(31, execution(Gpu())) == CudaResult::kNoKernel, "backward takes float64");
    run.expect_intact();
  }
}

void test_cutting() {
  Random random(15);
  expect_cutting(random, [](const auto& cut) { cut(execution(Gpu())); });
}

// Tiles cover the products, parts cover the sums, and the workspace is bounded.
void expect_plans(const vit::PatchGrid& grid, DType type) {
  const int64_t tile = vit::size_of(type) == 2 ? vit::kTensorTile : vit::kScalarTile;
  const vit::ProductPlan plans[] = {vit::plan_forward(grid, type),
                                    vit::plan_images_gradient(grid, type),
                                    vit::plan_kernel_gradient(grid, type)};
  const int64_t rows[] = {grid.all_patches, grid.all_patches, grid.elements};
  const int64_t columns[] = {grid.features, grid.elements, grid.features};
  for (int i = 0; i < 3; ++i) {
    const vit::ProductPlan& plan = plans[i];
    EXPECT(plan.row_tiles * tile >= rows[i] && (plan.row_tiles - 1) * tile < rows[i] &&
               plan.column_tiles * tile >= columns[i] &&
               (plan.column_tiles - 1) * tile < columns[i],
           "the tiles of product %d do not cover it", i);
    // What every GPU has: kernels need no more.
    EXPECT(is_launchable(plan.launch, 48 << 10), "product %d cannot run", i);
    EXPECT(plan.launch.blocks == plan.row_tiles * plan.column_tiles * plan.parts,
           "product %d has %lld blocks", i, number(plan.launch.blocks));
  }
  const vit::ProductPlan& sum = plans[2];
  EXPECT(sum.part_depth % vit::kPatchRun == 0 && sum.parts * sum.part_depth >= grid.all_patches &&
             (sum.parts - 1) * sum.part_depth < grid.all_patches,
         "parts do not cover the sum");
  EXPECT((sum.parts == 1) == (sum.workspace_bytes == 0) &&
             sum.workspace_bytes <= int64_t{512} * vit::kTensorTile * vit::kTensorTile * 4,
         "workspace of %lld bytes", number(sum.workspace_bytes));
  const vit::TablesPlan tables = vit::plan_tables(grid, false);
  EXPECT(tables.parts * tables.part_images >= grid.batch &&
             (tables.parts - 1) * tables.part_images < grid.batch,
         "parts do not cover the batch");
  EXPECT(is_launchable(vit::flat_launch(tables.parts * tables.tokens * grid.features),
                       kLeastSharedBytes),
         "tables cannot be written");
}

// The launches of all models, and of all sizes that could fit into the memory of a GPU.
void test_plans() {
  constexpr int64_t kMost = int64_t{1} << 38;  // elements of a tensor
  for (int64_t batch : {1, 64, 4096, 1 << 20, 1 << 30}) {
    for (int64_t side : {32, 224, 518, 1024, 1 << 15}) {
      for (int64_t patch_size : {1, 14, 16, 32}) {
        for (int64_t features : {1, 192, 768, 1280, 1 << 20}) {
          testing("plans: batch %lld, side %lld, patches of %lld, %lld features", number(batch),
                  number(side), number(patch_size), number(features));
          const vit::PatchGrid grid = vit::grid_of({batch, side, side, 3, patch_size, features, 1});
          if (grid.image > kMost / batch || grid.all_patches > kMost / features) continue;
          for (DType type : Gpu::kTypes) expect_plans(grid, type);
        }
      }
    }
  }
  // More patches, elements and tokens than 32 bits count.
  const vit::PatchGrid grid = vit::grid_of({int64_t{1} << 32, 1 << 12, 1 << 12, 3, 16, 1024, 1});
  EXPECT(grid.all_patches == int64_t{1} << 48, "patches overflow");
  EXPECT(!is_launchable(vit::plan_forward(grid, DType::kFloat32).launch, kLeastSharedBytes),
         "blocks overflow");
  const vit::PatchGrid deep = vit::grid_of({1, 1 << 21, 1 << 21, 1, 1 << 21, 1, 0});
  EXPECT(!is_launchable(vit::plan_forward(deep, DType::kBfloat16).launch, kLeastSharedBytes),
         "steps overflow");
  EXPECT(!is_launchable(vit::flat_launch(int64_t{1} << 40), kLeastSharedBytes), "threads overflow");
  // Units of 16 bytes, of an image that has 2^31 - 256 of them, then 2^31; and a patch that 32 bits
  // do not count, larger than the image.
  const auto copy = [](int64_t height, int64_t patch_size) {
    const vit::PatchShape shape = {3, height, 16, 16, patch_size, 0, 0};
    return vit::plan_copy({shape, 16, nullptr, nullptr});
  };
  EXPECT(copy((1 << 23) - 1, 16).launch.blocks == 3 * ((1 << 23) - 1), "blocks of copies");
  EXPECT(!is_launchable(copy(1 << 23, 16).launch, kLeastSharedBytes),
         "an image that is too large is copied");
  EXPECT(copy(1, int64_t{1} << 28).grid.side == 1, "the side of a patch overflows");
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "plans")) test_plans();
  if (wanted(argc, argv, "sizes")) test_sizes<Gpu>(kShapes);
  if (wanted(argc, argv, "large")) test_large<Gpu>(kLargeShapes);
  if (wanted(argc, argv, "no_elements")) test_no_elements<Gpu>();
  if (wanted(argc, argv, "wanted")) test_wanted<Gpu>();
  if (wanted(argc, argv, "left_over_pixels")) test_left_over_pixels<Gpu>();
  if (wanted(argc, argv, "not_finite")) test_not_finite<Gpu>();
  if (wanted(argc, argv, "out_of_memory")) test_out_of_memory();
  if (wanted(argc, argv, "float64")) test_float64();
  if (wanted(argc, argv, "cutting")) test_cutting();
  return finish();
}
