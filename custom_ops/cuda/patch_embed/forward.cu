// Patch embedding forward: cc/patch_embed_problem.h defines the problem, patch_embed_geometry.h how
// it is cut.
#include "custom_ops/cuda/cuda_patch_embed.h"
#include "custom_ops/cuda/patch_embed/pixel_stage.h"
#include "custom_ops/cuda/patch_embed/tensor_product.h"

namespace vit {

namespace {

struct ForwardParameters {
  PatchEmbedForwardProblem problem;
  PatchGrid grid;
  ProductPlan plan;
  Pixels pixels;
  bool has_aligned_kernel;
  bool has_aligned_tokens;  // bias and position too
};

// Tiles [patches, elements] and [elements, features].
template <class T>
struct ForwardOperands {
  using Patches = TilePair<T, kTensorTile, kTensorDepth>;
  using Kernels = TilePair<T, kTensorDepth, kTensorTile>;
  static_assert(Patches::kBytes + Kernels::kBytes >= TensorSums<T>::kBytes);
  static constexpr int kUnrolledHalves = 2;

  const ForwardParameters& p;
  int64_t column;
  Patches patches;
  Kernels kernels;
  const int64_t* places;  // of the patches
  PixelStage<T, kTensorTile, kTensorDepth> stage;

  VIT_DEVICE_METHOD void start(int step) {
    fill<kTensorThreads>(kernels.of(step), rows_of_kernel<T>(p, int64_t{kTensorDepth} * step,
                                                             kTensorDepth, column, kTensorTile));
  }
  VIT_DEVICE_METHOD void load(int step, int half) {
    stage.load(places, int64_t{kTensorDepth} * step, half);
  }
  VIT_DEVICE_METHOD void store(int step, int half) const { stage.store(patches.of(step), half); }
  VIT_DEVICE_METHOD void load_a(int step, int row, int depth, uint32_t (&a)[4]) const {
    patches.of(step).load_a(row, depth, a);
  }
  VIT_DEVICE_METHOD void load_b(int step, int at, int depth, uint32_t (&b)[4]) const {
    kernels.of(step).load_b(depth, at, b);
  }
};

template <class T>
VIT_KERNEL(kTensorThreads, 2, forward_on_tensor_cores, const ForwardParameters p) {
  const PatchGrid& grid = p.grid;
  const TilePlace tile = place_of_block(p.plan, kTensorTile);
  using Operands = ForwardOperands<T>;
  char* const memory = shared_memory();
  char* const behind = memory + Operands::Patches::kBytes + Operands::Kernels::kBytes;
  int64_t* const table = reinterpret_cast<int64_t*>(behind);
  const Places places = {table, table + kTensorTile, table + 2 * kTensorTile};
  put_places_of_rows(grid, tile.row, kTensorTile, places);
  sync_block();

  Operands operands = {p,
                       tile.column,
                       {memory},
                       {memory + Operands::Patches::kBytes},
                       places.pixels,
                       {p.pixels, grid}};
  TensorSums<T> sums;
  sums.add(operands, p.plan.steps);

  const auto write = [&](int row, int at, const float (&products)[kOctet]) {
    const int64_t token = places.tokens[row], column = tile.column + at;
    const int64_t count = grid.features - column;
    if (token == kNoPlace || count <= 0) return;
    float bias[kOctet], position[kOctet] = {};
    load_octet(static_cast<const T*>(p.problem.bias) + column, count, p.has_aligned_tokens, bias);
    if (p.problem.position) {
      load_octet(static_cast<const T*>(p.problem.position) + places.positions[row] + column, count,
                 p.has_aligned_tokens, position);
    }
    T values[kOctet];
#pragma unroll
    for (int i = 0; i < kOctet; ++i) values[i] = rounded<T>(products[i] + (bias[i] + position[i]));
    store_octet(static_cast<T*>(p.problem.tokens) + token + column, values, count,
                p.has_aligned_tokens);
  };
  sums.for_octets(reinterpret_cast<float*>(memory), write);
}

VIT_KERNEL(kScalarThreads, 2, forward_scalar, const ForwardParameters p) {
  using Tile = ScalarTile;
  const PatchGrid& grid = p.grid;
  const TilePlace tile = place_of_block(p.plan, kScalarTile);
  int64_t* const table = reinterpret_cast<int64_t*>(shared_memory() + Tile::kBytes);
  const Places places = {table, table + kScalarTile, table + 2 * kScalarTile};
  put_places_of_rows(grid, tile.row, kScalarTile, places);
  sync_block();

  Tile sums;
  sums.clear();
  const float* kernel = static_cast<const float*>(p.problem.kernel) + tile.column;
  const auto pixel = [&](int row, int64_t element) {
    if (places.pixels[row] == kNoPlace) return 0.0f;
    return rescaled_at(p.pixels, places.pixels[row] + place_of_element(grid, element));
  };
  const auto weight = [&](int64_t element, int column) {
    return tile.column + column < grid.features ? kernel[element * grid.features + column] : 0.0f;
  };
  sums.add_product<true, false>(grid.elements, pixel, weight,
                                reinterpret_cast<float*>(shared_memory()));

  const float* bias = static_cast<const float*>(p.problem.bias);
  const float* position = static_cast<const float*>(p.problem.position);
  for (int i = 0; i < Tile::kPerThread; ++i) {
    const int64_t token = places.tokens[Tile::row(i)];
    if (token == kNoPlace) continue;
    float* tokens = static_cast<float*>(p.problem.tokens) + token;
    const int64_t in_table = places.positions[Tile::row(i)];
    for (int j = 0; j < Tile::kPerThread; ++j) {
      const int64_t column = tile.column + Tile::column(j);
      if (column >= grid.features) continue;
      const float added = bias[column] + (position ? position[in_table + column] : 0.0f);
      tokens[column] = sums.sums[i][j] + added;
    }
  }
}

// prefix + position, an element per thread.
template <class T>
VIT_KERNEL(kFlatThreads, 1, write_prefix, const ForwardParameters p) {
  const int64_t size = p.grid.prefix * p.grid.features;
  const int64_t i = block_index() * kFlatThreads + thread_index(), image = i / size, at = i % size;
  if (image >= p.grid.batch) return;
  float x = to_float(static_cast<const T*>(p.problem.prefix)[at]);
  if (p.problem.position) x += to_float(static_cast<const T*>(p.problem.position)[at]);
  T* tokens = static_cast<T*>(p.problem.tokens);
  tokens[image * p.grid.tokens * p.grid.features + at] = rounded<T>(x);
}

template <class T>
CudaResult run(const ForwardParameters& p, const CudaExecution& execution) {
  const PatchGrid& grid = p.grid;
  CudaResult result = CudaResult::kOk;
  if (grid.all_patches > 0) {
    if constexpr (sizeof(T) == 2) {
      result = launch(forward_on_tensor_cores<T>, p.plan.launch, p, execution);
    } else {
      result = launch(forward_scalar, p.plan.launch, p, execution);
    }
  }
  const int64_t in_prefix = grid.batch * grid.prefix * grid.features;
  if (result != CudaResult::kOk || in_prefix == 0) return result;
  return launch(write_prefix<T>, flat_launch(in_prefix), p, execution);
}

}  // namespace

CudaResult patch_embed_forward(const PatchEmbedForwardProblem& problem,
                               const CudaExecution& execution) {
  if (has_float64(problem)) return CudaResult::kNoKernel;
  const PatchShape& shape = problem.shape;
  if (shape.batch == 0 || shape.features == 0) return CudaResult::kOk;
  const PatchGrid grid = grid_of(shape);
  const bool has_aligned_rows = vit::has_aligned_rows(shape.features, problem.type);
  const ForwardParameters p = {problem,
                               grid,
                               plan_forward(grid, problem.type),
                               pixels_of(problem, grid),
                               has_aligned_rows && begins_aligned(problem.kernel),
                               has_aligned_rows && begins_aligned(problem.tokens) &&
                                   begins_aligned(problem.bias) &&
                                   begins_aligned(problem.position)};
  switch (problem.type) {
    case DType::kBfloat16:
      return run<Bfloat16>(p, execution);
    case DType::kFloat16:
      return run<Float16>(p, execution);
    default:
      return run<float>(p, execution);
  }
}

}  // namespace vit
