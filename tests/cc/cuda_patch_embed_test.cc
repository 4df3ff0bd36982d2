// The kernels of custom_ops/cuda/patch_embed, on an emulated GPU, against loops over doubles, and
// the sizes of their launches. Blocks and warps run in both orders, which must change no bit.
#include "custom_ops/cuda/patch_embed.h"

#include <vector>

#include "custom_ops/cuda/patch_embed/geometry.h"
#include "tests/cc/gpu_emulation.h"
#include "tests/cc/patch_case.h"

namespace {

using namespace vit_test;
using vit::CudaResult;
using vit::DType;

// Scratch that lives until the work of a stream is done.
struct Memory {
  std::vector<void*> pieces;

  ~Memory() {
    for (void* piece : pieces) release_scratch(piece);
  }
  static void* allocate(void* self, int64_t bytes) {
    EXPECT(bytes > 0, "an empty piece of scratch is allocated");
    void* piece = allocate_scratch(bytes);
    if (piece) static_cast<Memory*>(self)->pieces.push_back(piece);
    return piece;
  }
  vit::CudaExecution execution() { return {nullptr, allocate, this}; }
};

void run(PatchRun& run, bool reversed, int wanted = 31) {
  Memory memory;
  set_reversed(reversed);
  run.all(memory.execution(), wanted);
  set_reversed(false);
}

void compare(const PatchCase& problem, const char* what, int shift) {
  say(what, "GPU", problem);
  PatchRun one(problem, shift), other(problem, shift);
  run(one, false);
  one.expect(patch_oracle(problem));
  run(other, true);
  other.expect_same(one);
}

// Every pair of types, with sizes that are and are not those of vectors and tiles, with and without
// left-over pixels.
void test_sizes() {
  const vit::PatchShape shapes[] = {
      // batch, height, width, channels, patch_size, features, prefix
      {1, 1, 1, 1, 1, 1, 0},    {2, 7, 9, 3, 2, 5, 1},  {3, 16, 8, 1, 8, 64, 0},
      {1, 13, 17, 3, 4, 72, 2}, {2, 6, 34, 4, 3, 8, 1}, {1, 14, 14, 3, 7, 100, 1},
  };
  Random random(1);
  int turn = 0;
  for (const vit::PatchShape& shape : shapes) {
    for (DType image_type : kImageTypes) {
      for (DType type : kFloatTypes) {
        ++turn;
        compare(make(random, image_type, type, shape, turn % 3), "sizes", turn % 4 == 1);
      }
    }
  }
}

// Several tiles of rows, columns and products, parts of sums, and runs of patches.
void test_tiles() {
  const vit::PatchShape shapes[] = {
      {3, 32, 32, 1, 2, 136, 1},    // 768 patches in 3 parts
      {1, 16, 32, 3, 8, 136, 0},    // 192 elements of a patch
      {2, 18, 20, 3, 1, 5, 1},      // 720 patches of few elements
  };
  Random random(1);
  int turn = 0;
  for (const vit::PatchShape& shape : shapes) {
    for (DType type : kFloatTypes) {
      ++turn;
      compare(make(random, kImageTypes[turn % 5], type, shape), "tiles", turn % 2 == 0);
    }
  }
}

// An empty result, or empty sums: their gradients are zero.
void test_no_elements() {
  const vit::PatchShape shapes[] = {
      {0, 8, 8, 3, 4, 5, 1}, {2, 3, 8, 3, 4, 5, 1}, {2, 8, 3, 3, 4, 5, 1}, {2, 3, 3, 1, 4, 5, 0},
      {2, 0, 8, 3, 4, 5, 1}, {2, 8, 0, 3, 4, 5, 0}, {2, 8, 8, 0, 4, 5, 1}, {2, 9, 8, 3, 4, 0, 1},
  };
  Random random(1);
  int turn = 0;
  for (const vit::PatchShape& shape : shapes) {
    for (DType type : kFloatTypes) {
      ++turn;
      compare(make(random, kImageTypes[turn % 5], type, shape, turn % 2), "no elements", turn % 2);
    }
  }
}

// Gradients that are not requested are not written, and do not change the others.
void test_wanted() {
  for (DType type : kFloatTypes) {
    Random random(7);
    const PatchCase problem = make(random, type, type, {2, 9, 8, 3, 4, 21, 2});
    PatchRun all(problem, 1), some(problem, 1);
    run(all, false);
    for (int wanted = 0; wanted < 32; ++wanted) {
      say("some gradients", "GPU", problem);
      run(some, false, wanted);
      for (size_t i = 0; i < 5; ++i) {
        Tensor& tensor = *some.results()[i];
        if (wanted >> i & 1) {
          EXPECT(tensor == *all.results()[i], "gradient %zu differs, wanted %d", i, wanted);
          continue;
        }
        const uint8_t* bytes = static_cast<const uint8_t*>(tensor.data());
        for (int64_t at = 0; at < tensor.bytes(); ++at) {
          EXPECT(bytes[at] == kNan, "gradient %zu is written, wanted %d", i, wanted);
        }
      }
    }
  }
}

// Pixels beyond the grid are never read, and what is not finite reaches nothing else.
void test_not_finite() {
  for (DType type : kFloatTypes) {
    Random random(8);
    const PatchCase problem = make(random, type, type, {2, 11, 13, 3, 4, 24, 1});
    const vit::PatchShape& s = problem.shape;
    say("not finite", "GPU", problem);
    PatchRun clean(problem, 0), dirty(problem, 0);
    run(clean, false);
    for (int64_t i = 0; i < problem.pixels(); ++i) {
      const int64_t x = i / s.channels % s.width, y = i / s.channels / s.width % s.height;
      if (x >= 12 || y >= 8) dirty.images.set(i, i % 2 ? NAN : HUGE_VAL);
    }
    run(dirty, false);
    dirty.expect_same(clean);

    const int64_t patch = 3, element = 10;
    dirty.images.set(pixel_place(s, 1, patch, element), NAN);
    run(dirty, false);
    const int64_t token = s.tokens() + s.prefix + patch;
    for (int64_t i = 0; i < problem.token_count(); ++i) {
      const bool right = i / s.features == token ? isnan(dirty.tokens.at(i))
                                                 : dirty.tokens.at(i) == clean.tokens.at(i);
      EXPECT(right, "tokens[%lld] is %g", static_cast<long long>(i), dirty.tokens.at(i));
    }
    for (int64_t i = 0; i < problem.kernel_size(); ++i) {
      const bool right = i / s.features == element ? isnan(dirty.d_kernel.at(i))
                                                   : dirty.d_kernel.at(i) == clean.d_kernel.at(i);
      EXPECT(right, "d_kernel[%lld] is %g", static_cast<long long>(i), dirty.d_kernel.at(i));
    }
  }
}

void test_out_of_memory() {
  for (DType type : kFloatTypes) {
    Random random(14);
    const PatchCase problem = make(random, type, type, {2, 34, 34, 1, 2, 5, 1});  // 578 patches
    PatchRun refused(problem, 0);
    say("no memory", "GPU", problem);
    Memory memory;
    scratch_use().refuse = true;
    const vit::CudaExecution execution = memory.execution();
    EXPECT(refused.forward(execution) == CudaResult::kOk, "forward needs scratch");
    EXPECT(refused.backward(1, execution) == CudaResult::kOk, "d_images needs scratch");
    for (int wanted : {2, 4, 8, 16}) {
      EXPECT(refused.backward(wanted, execution) == CudaResult::kOutOfMemory,
             "backward does not report it, wanted %d", wanted);
    }
    scratch_use().refuse = false;
    refused.expect_intact();
  }
}

void test_cutting() {
  Random random(15);
  expect_cutting(random, [](const auto& cut) {
    Memory memory;
    cut(memory.execution());
  });
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
    EXPECT(is_launchable(plan.launch), "product %d cannot run", i);
    EXPECT(plan.launch.blocks == plan.row_tiles * plan.column_tiles * plan.parts,
           "product %d has %lld blocks", i, static_cast<long long>(plan.launch.blocks));
    EXPECT(plan.launch.shared_bytes <= 48 * 1024, "product %d: shared memory", i);
  }
  const vit::ProductPlan& sum = plans[2];
  EXPECT(sum.part_depth % vit::kPatchRun == 0 && sum.parts * sum.part_depth >= grid.all_patches &&
             (sum.parts - 1) * sum.part_depth < grid.all_patches,
         "parts do not cover the sum");
  EXPECT((sum.parts == 1) == (sum.workspace_bytes == 0) &&
             sum.workspace_bytes <= int64_t{512} * vit::kTensorTile * vit::kTensorTile * 4,
         "workspace of %lld bytes", static_cast<long long>(sum.workspace_bytes));
  const vit::TablesPlan tables = vit::plan_tables(grid, type, false);
  EXPECT(tables.parts * tables.part_images >= grid.batch &&
             (tables.parts - 1) * tables.part_images < grid.batch,
         "parts do not cover the batch");
  EXPECT(is_launchable(vit::flat_launch(tables.parts * tables.tokens * grid.features)),
         "tables cannot be written");
}

// The launches of all models, and of all sizes that could fit into the memory of a GPU.
void test_plans() {
  constexpr int64_t kMost = int64_t{1} << 38;  // elements of a tensor
  for (int64_t batch : {1, 64, 4096, 1 << 20, 1 << 30}) {
    for (int64_t side : {32, 224, 518, 1024, 1 << 15}) {
      for (int64_t patch_size : {1, 14, 16, 32}) {
        for (int64_t features : {1, 192, 768, 1280, 1 << 20}) {
          testing("plans: batch %lld, side %lld, patches of %lld, %lld features",
                  static_cast<long long>(batch), static_cast<long long>(side),
                  static_cast<long long>(patch_size), static_cast<long long>(features));
          const vit::PatchGrid grid = vit::grid_of({batch, side, side, 3, patch_size, features, 1});
          if (grid.image > kMost / batch || grid.all_patches > kMost / features) continue;
          for (DType type : kFloatTypes) expect_plans(grid, type);
        }
      }
    }
  }
  // More patches, elements and tokens than 32 bits count.
  const vit::PatchGrid grid = vit::grid_of({int64_t{1} << 32, 1 << 12, 1 << 12, 3, 16, 1024, 1});
  EXPECT(grid.all_patches == int64_t{1} << 48, "patches overflow");
  EXPECT(!is_launchable(vit::plan_forward(grid, DType::kFloat32).launch), "blocks overflow");
  const vit::PatchGrid deep = vit::grid_of({1, 1 << 21, 1 << 21, 1, 1 << 21, 1, 0});
  EXPECT(!is_launchable(vit::plan_forward(deep, DType::kBfloat16).launch), "steps overflow");
  EXPECT(!is_launchable(vit::flat_launch(int64_t{1} << 40)), "threads overflow");
  // Units of 16 bytes, of an image that has 2^31 - 256 of them, then 2^31; and a patch that 32 bits
  // do not count, larger than the image.
  const auto copy = [](int64_t height, int64_t patch_size) {
    const vit::PatchShape shape = {3, height, 16, 16, patch_size, 0, 0};
    return vit::plan_copy({shape, 16, nullptr, nullptr});
  };
  EXPECT(copy((1 << 23) - 1, 16).launch.blocks == 3 * ((1 << 23) - 1), "blocks of copies");
  EXPECT(!is_launchable(copy(1 << 23, 16).launch), "an image that is too large is copied");
  EXPECT(copy(1, int64_t{1} << 28).grid.side == 1, "the side of a patch overflows");
}

}  // namespace

int main(int argc, char** argv) {
  if (wanted(argc, argv, "plans")) test_plans();
  if (wanted(argc, argv, "sizes")) test_sizes();
  if (wanted(argc, argv, "tiles")) test_tiles();
  if (wanted(argc, argv, "no_elements")) test_no_elements();
  if (wanted(argc, argv, "wanted")) test_wanted();
  if (wanted(argc, argv, "not_finite")) test_not_finite();
  if (wanted(argc, argv, "out_of_memory")) test_out_of_memory();
  if (wanted(argc, argv, "cutting")) test_cutting();
  return finish();
}
