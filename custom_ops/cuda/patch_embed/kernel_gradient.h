// The gradient of the kernel: patches^T . d_tokens, with the rescaled pixels of patches. The sum is
// over all patches of the batch, in parts, so that there is work for a whole GPU.
#ifndef CUSTOM_OPS_CUDA_PATCH_EMBED_KERNEL_GRADIENT_H_
#define CUSTOM_OPS_CUDA_PATCH_EMBED_KERNEL_GRADIENT_H_

#include "custom_ops/cuda/patch_embed/gradients.h"
#include "custom_ops/cuda/patch_embed/pixel_stage.h"
#include "custom_ops/cuda/patch_embed/tensor_product.h"

namespace vit {

// Places of the patches of a part, of kPatchRun at a time: two runs, since tiles of one are loaded
// while the products of the run before are computed.
struct RunPlaces {
  static constexpr int kSteps = kPatchRun / kTensorDepth;
  static_assert(kPatchRun <= kTensorThreads);

  const PatchGrid& grid;
  Patch first;
  int64_t count;  // of the part
  Places places;  // [2, kPatchRun]

  VIT_DEVICE_METHOD void put(int run) const {
    const int at = run % 2 * kPatchRun;
    put_places(grid, first, int64_t{kPatchRun} * run, count, kPatchRun,
               {places.pixels + at, places.tokens + at});
  }
  static VIT_DEVICE_METHOD int of(int step) { return step % (2 * kSteps) * kTensorDepth; }
};

// Tiles [patches, elements] and [patches, features].
template <class T>
struct KernelGradientOperands {
  using Tiles = TilePair<T, kTensorDepth, kTensorTile>;
  static_assert(2 * Tiles::kBytes >= TensorSums<T>::kBytes);
  static constexpr int kUnrolledHalves = 1;

  const PatchGradientParameters& p;
  int64_t element, column;
  Tiles patches, tokens;
  RunPlaces runs;
  PixelStage<T, kTensorDepth, kTensorTile> stage;

  VIT_DEVICE_METHOD void start(int step) {
    // This starts behind the barrier of step 0 of the run, when all threads have loaded what the
    // run before it has: its places are overwritten.
    if (step % RunPlaces::kSteps == 1) runs.put(step / RunPlaces::kSteps + 1);
    fill_with_tokens(tokens.of(step), static_cast<const T*>(p.problem.d_tokens),
                     runs.places.tokens + RunPlaces::of(step), column, p.grid.features,
                     p.has_aligned_tokens);
  }
  VIT_DEVICE_METHOD void load(int step, int half) {
    stage.load(runs.places.pixels + RunPlaces::of(step), element, half);
  }
  VIT_DEVICE_METHOD void store(int step, int half) const { stage.store(patches.of(step), half); }
  VIT_DEVICE_METHOD void load_a(int step, int row, int depth, uint32_t (&a)[4]) const {
    patches.of(step).load_a_of_transposed(depth, row, a);
  }
  VIT_DEVICE_METHOD void load_b(int step, int at, int depth, uint32_t (&b)[4]) const {
    tokens.of(step).load_b(depth, at, b);
  }
};

// The sums of a part go to the workspace [parts, elements, features], or to d_kernel.
template <class T>
VIT_DEVICE void write_sum(const PatchGradientParameters& p, int64_t part, int64_t at, float sum) {
  if (p.workspace) {
    static_cast<float*>(p.workspace)[part * p.grid.elements * p.grid.features + at] = sum;
  } else {
    static_cast<T*>(p.problem.d_kernel)[at] = rounded<T>(sum);
  }
}

// The patches of the part that begins with patch `first`.
VIT_DEVICE int64_t patches_of_part(const PatchGradientParameters& p, int64_t first) {
  const int64_t left = p.grid.all_patches - first;
  return left < p.plan.part_depth ? left : p.plan.part_depth;
}

template <class T>
VIT_KERNEL(kTensorThreads, 2, kernel_gradient_on_tensor_cores, const PatchGradientParameters p) {
  using Tiles = typename KernelGradientOperands<T>::Tiles;
  const PatchGrid& grid = p.grid;
  const TilePlace tile = place_of_block(p.plan, kTensorTile);
  const int64_t first = tile.part * p.plan.part_depth, patches = patches_of_part(p, first);
  char* const memory = shared_memory();
  int64_t* const table = reinterpret_cast<int64_t*>(memory + 2 * Tiles::kBytes);
  const Patch first_patch = patches > 0 ? patch_of(grid, first) : Patch{0, 0};
  KernelGradientOperands<T> operands = {
      p,
      tile.row,
      tile.column,
      {memory},
      {memory + Tiles::kBytes},
      {grid, first_patch, patches, {table, table + 2 * kPatchRun}},
      {p.pixels, grid}};
  operands.runs.put(0);
  sync_block();
  TensorSums<T> sums;
  sums.add(operands, static_cast<int>((patches + kTensorDepth - 1) / kTensorDepth));

  const auto write = [&](int row, int at, const float (&values)[kOctet]) {
    const int64_t element = tile.row + row, column = tile.column + at;
    const int64_t count = grid.features - column;
    if (element >= grid.elements || count <= 0) return;
    const int64_t to = element * grid.features + column;
    if (p.workspace) {
      float* const part =
          static_cast<float*>(p.workspace) + tile.part * grid.elements * grid.features;
      store_octet(part + to, values, count, p.has_aligned_sums);
      return;
    }
    T results[kOctet];
#pragma unroll
    for (int i = 0; i < kOctet; ++i) results[i] = rounded<T>(values[i]);
    store_octet(static_cast<T*>(p.problem.d_kernel) + to, results, count, p.has_aligned_sums);
  };
  sums.for_octets(reinterpret_cast<float*>(memory), write);
}

VIT_KERNEL(kScalarThreads, 2, kernel_gradient_scalar, const PatchGradientParameters p) {
  using Tile = ScalarTile;
  static_assert(kPatchRun <= kScalarThreads);
  const PatchGrid& grid = p.grid;
  const TilePlace tile = place_of_block(p.plan, kScalarTile);
  const int64_t first = tile.part * p.plan.part_depth, patches = patches_of_part(p, first);
  int64_t* const table = reinterpret_cast<int64_t*>(shared_memory() + Tile::kBytes);
  const Places places = {table, table + kPatchRun};
  const Patch first_patch = patches > 0 ? patch_of(grid, first) : Patch{0, 0};

  Tile sums;
  sums.clear();
  const float* d_tokens = static_cast<const float*>(p.problem.d_tokens) + tile.column;
  const auto pixel = [&](int row, int64_t patch) {
    if (tile.row + row >= grid.elements) return 0.0f;
    return rescaled_at(p.pixels, places.pixels[patch] + place_of_element(grid, tile.row + row));
  };
  const auto token = [&](int64_t patch, int column) {
    return tile.column + column < grid.features ? d_tokens[places.tokens[patch] + column] : 0.0f;
  };
  for (int64_t done = 0; done < patches; done += kPatchRun) {
    put_places(grid, first_patch, done, patches, kPatchRun, places);
    sync_block();
    const int64_t count = patches - done < kPatchRun ? patches - done : kPatchRun;
    sums.add_product<false, false>(count, pixel, token, reinterpret_cast<float*>(shared_memory()));
  }
  for (int i = 0; i < Tile::kPerThread; ++i) {
    const int64_t row = tile.row + Tile::row(i);
    for (int j = 0; j < Tile::kPerThread; ++j) {
      const int64_t column = tile.column + Tile::column(j);
      if (row >= grid.elements || column >= grid.features) continue;
      write_sum<float>(p, tile.part, row * grid.features + column, sums.sums[i][j]);
    }
  }
}

// Adds the parts in order; a thread for each element of the kernel.
template <class T>
VIT_KERNEL(kFlatThreads, 1, add_kernel_parts, const PatchGradientParameters p) {
  const int64_t i = block_index() * kFlatThreads + thread_index();
  const int64_t count = p.grid.elements * p.grid.features;
  if (i >= count) return;
  const float* sums = static_cast<const float*>(p.workspace) + i;
  float sum = 0;
  for (int64_t part = 0; part < p.plan.parts; ++part) sum += sums[part * count];
  static_cast<T*>(p.problem.d_kernel)[i] = rounded<T>(sum);
}

template <class T>
CudaResult kernel_gradient(PatchGradientParameters p, const CudaExecution& execution) {
  const PatchGrid& grid = p.grid;
  if (grid.elements == 0 || grid.features == 0) return CudaResult::kOk;
  p.plan = plan_kernel_gradient(grid, p.problem.type);
  p.pixels = pixels_of(p.problem, grid);
  p.workspace = nullptr;
  p.has_aligned_sums =
      has_aligned_rows(grid.features, p.problem.type) && begins_aligned(p.problem.d_kernel);
  if (p.plan.workspace_bytes > 0) {
    p.workspace = execution.allocate(execution.allocator, p.plan.workspace_bytes);
    if (!p.workspace) return CudaResult::kOutOfMemory;
    p.has_aligned_sums =
        has_aligned_rows(grid.features, DType::kFloat32) && begins_aligned(p.workspace);
  }
  CudaResult result;
  if constexpr (sizeof(T) == 2) {
    result = launch(kernel_gradient_on_tensor_cores<T>, p.plan.launch, p, execution);
  } else {
    result = launch(kernel_gradient_scalar, p.plan.launch, p, execution);
  }
  if (result != CudaResult::kOk || !p.workspace) return result;
  return launch(add_kernel_parts<T>, flat_launch(grid.elements * grid.features), p, execution);
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_PATCH_EMBED_KERNEL_GRADIENT_H_
