#include "custom_ops/cuda/patch_embed/patch_embed_geometry.h"

namespace vit {

namespace {

// Blocks that d_kernel is cut into: two or more for every multiprocessor of the largest GPUs.
constexpr int64_t kWantedBlocks = 512;
// The same for the sums over images, in threads, and the fewest images of a part.
constexpr int64_t kWantedThreads = 1 << 18, kFewestImages = 8;

// Bytes of shared memory. Rows of tiles for tensor cores have 8 unused elements.
constexpr int64_t kRowsTile = kTensorTile * (kTensorDepth + 8) * 2;
constexpr int64_t kDepthTile = kTensorDepth * (kTensorTile + 8) * 2;
constexpr int64_t kRowPlaces = 3 * kTensorTile * 8, kRunPlaces = 4 * kPatchRun * 8;

int64_t clamped(int64_t x, int64_t least, int64_t most) {
  return x > most ? (most > least ? most : least) : x < least ? least : x;
}

// Sums have `depth` products.
void set_depth(int64_t depth, const PatchGrid& grid, ProductPlan* plan) {
  plan->part_depth = depth;
  plan->steps = static_cast<int>(ceil_divide(depth, kTensorDepth));
  if (grid.patches > kMostInImage || grid.elements > kMostInImage || depth > kMostInImage) {
    plan->launch.blocks = 0;
  }
}

ProductPlan plan_product(const PatchGrid& grid, int64_t rows, int64_t columns, int64_t depth,
                         DType type, int64_t tensor_bytes) {
  ProductPlan plan = {};
  plan.on_tensor_cores = size_of(type) == 2;
  const int64_t tile = plan.on_tensor_cores ? kTensorTile : kScalarTile;
  plan.row_tiles = ceil_divide(rows, tile);
  plan.column_tiles = ceil_divide(columns, tile);
  plan.parts = 1;
  constexpr int64_t kScalarBytes = kScalarProductBytes + 2 * kPatchRun * 8;
  plan.launch = {plan.row_tiles * plan.column_tiles,
                 plan.on_tensor_cores ? kTensorThreads : kScalarThreads,
                 plan.on_tensor_cores ? tensor_bytes : kScalarBytes};
  set_depth(depth, grid, &plan);
  return plan;
}

}  // namespace

PatchGrid grid_of(const PatchShape& shape) {
  PatchGrid grid = {};
  grid.batch = shape.batch;
  grid.height = shape.height;
  grid.rows = shape.rows();
  grid.columns = shape.columns();
  grid.patches = shape.patches();
  grid.all_patches = shape.batch * shape.patches();
  grid.prefix = shape.prefix;
  grid.tokens = shape.tokens();
  grid.features = shape.features;
  grid.patch_size = shape.patch_size;
  grid.elements = shape.patch_elements();
  grid.side = shape.patch_size * shape.channels;
  grid.line = shape.width * shape.channels;
  grid.image = shape.height * grid.line;
  return grid;
}

ProductPlan plan_forward(const PatchGrid& grid, DType type) {
  return plan_product(grid, grid.all_patches, grid.features, grid.elements, type,
                      2 * (kRowsTile + kDepthTile) + kRowPlaces);
}

ProductPlan plan_images_gradient(const PatchGrid& grid, DType type) {
  return plan_product(grid, grid.all_patches, grid.elements, grid.features, type,
                      4 * kRowsTile + kRowPlaces);
}

ProductPlan plan_kernel_gradient(const PatchGrid& grid, DType type) {
  ProductPlan plan =
      plan_product(grid, grid.elements, grid.features, 0, type, 4 * kDepthTile + kRunPlaces);
  const int64_t tiles = plan.launch.blocks, runs = ceil_divide(grid.all_patches, kPatchRun);
  if (tiles == 0) return plan;
  const int64_t most = clamped(kWantedBlocks / tiles, 1, runs), in_part = ceil_divide(runs, most);
  plan.parts = in_part ? ceil_divide(runs, in_part) : 1;
  plan.launch.blocks = tiles * plan.parts;
  set_depth(in_part * kPatchRun, grid, &plan);
  if (plan.parts > 1) {
    plan.workspace_bytes = plan.parts * grid.elements * grid.features * kSumBytes;
  }
  return plan;
}

TablesPlan plan_tables(const PatchGrid& grid, bool prefix_only) {
  TablesPlan plan = {};
  plan.tokens = prefix_only ? grid.prefix : grid.tokens;
  if (grid.batch == 0 || plan.tokens == 0 || grid.features == 0) return plan;
  const int64_t entries = plan.tokens * grid.features;
  const int64_t most = clamped(kWantedThreads / entries, 1, ceil_divide(grid.batch, kFewestImages));
  plan.part_images = ceil_divide(grid.batch, most);
  plan.parts = ceil_divide(grid.batch, plan.part_images);
  plan.workspace_bytes = plan.parts * entries * kSumBytes;
  return plan;
}

LaunchShape flat_launch(int64_t count) {
  return {ceil_divide(count, kFlatThreads), kFlatThreads, 0};
}

LaunchShape bias_launch(const PatchGrid& grid) {
  constexpr int kThreads = kBiasColumns * kBiasGroups;
  return {ceil_divide(grid.features, kBiasColumns), kThreads, kThreads * kSumBytes};
}

CopyPlan plan_copy(const PatchCopyProblem& problem) {
  const int64_t pixel = problem.shape.channels * problem.element_size;
  const auto addresses =
      reinterpret_cast<uintptr_t>(problem.from) | reinterpret_cast<uintptr_t>(problem.to);
  const auto all = static_cast<uint64_t>(problem.shape.patch_size * pixel) |
                   static_cast<uint64_t>(problem.shape.width * pixel) | addresses;
  CopyPlan plan = {16, {}, 0, {0, kFlatThreads, 0}};
  while (all % static_cast<uint64_t>(plan.unit)) plan.unit /= 2;
  plan.grid = grid_of(problem.shape);
  plan.grid.side = problem.shape.patch_size * pixel / plan.unit;
  plan.grid.line = problem.shape.width * pixel / plan.unit;
  plan.grid.image = problem.shape.height * plan.grid.line;
  plan.grid.elements = problem.shape.patch_size * plan.grid.side;
  if (plan.grid.patches == 0) {
    // The size of a patch does not matter, and 32 bits may not count it.
    plan.grid.patch_size = plan.grid.side = plan.grid.elements = 1;
  }
  if (plan.grid.image <= kMostInImage) {
    const int64_t blocks = ceil_divide(plan.grid.image, kFlatThreads);
    plan.image_blocks = static_cast<uint32_t>(blocks);
    plan.launch.blocks = plan.grid.batch * blocks;
  }
  return plan;
}

bool has_float64(const PatchEmbedProblem& problem) {
  return problem.type == DType::kFloat64 || problem.image_type == DType::kFloat64;
}

bool begins_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

bool has_aligned_rows(int64_t columns, DType type) { return columns * size_of(type) % 16 == 0; }

bool has_aligned_pixels(const PatchGrid& grid, DType image_type, const void* images) {
  const uintptr_t bytes = image_type == DType::kUint8 ? 8 : 16;
  return grid.side % 8 == 0 && grid.line % 8 == 0 &&
         reinterpret_cast<uintptr_t>(images) % bytes == 0;
}

}  // namespace vit
