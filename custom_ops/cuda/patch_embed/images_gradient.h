// The gradient of the images: d_tokens . kernel^T * scale, and zero in pixels that no patch covers.
#ifndef CUSTOM_OPS_CUDA_PATCH_EMBED_IMAGES_GRADIENT_H_
#define CUSTOM_OPS_CUDA_PATCH_EMBED_IMAGES_GRADIENT_H_

#include <type_traits>

#include "custom_ops/cuda/patch_embed/gradients.h"
#include "custom_ops/cuda/patch_embed/tensor_product.h"

namespace vit {

// Tiles [patches, features] and [elements, features].
template <class T>
struct ImagesGradientOperands {
  using Tiles = TilePair<T, kTensorTile, kTensorDepth>;
  static_assert(2 * Tiles::kBytes >= TensorSums<T>::kBytes);
  static constexpr int kUnrolledHalves = 1;

  const PatchGradientParameters& p;
  int64_t element;
  Tiles tokens, kernels;
  const int64_t* places;  // of the tokens

  VIT_DEVICE_METHOD void start(int step) {
    const int64_t first = int64_t{kTensorDepth} * step;
    fill_with_tokens(tokens.of(step), static_cast<const T*>(p.problem.d_tokens), places, first,
                     p.grid.features, p.has_aligned_tokens);
    fill<kTensorThreads>(kernels.of(step),
                         rows_of_kernel<T>(p, element, kTensorTile, first, kTensorDepth));
  }
  VIT_DEVICE_METHOD void load(int, int) const {}
  VIT_DEVICE_METHOD void store(int, int) const {}
  VIT_DEVICE_METHOD void load_a(int step, int row, int depth, uint32_t (&a)[4]) const {
    tokens.of(step).load_a(row, depth, a);
  }
  VIT_DEVICE_METHOD void load_b(int step, int at, int depth, uint32_t (&b)[4]) const {
    kernels.of(step).load_b_of_transposed(at, depth, b);
  }
};

// Writes the gradients of up to 8 pixels, from element `element` of the patch at `place` on.
template <class Pixel>
VIT_DEVICE void write_pixels(const PatchGradientParameters& p, int64_t place, int64_t element,
                             const float (&sums)[kOctet]) {
  Pixel* const patch = static_cast<Pixel*>(p.problem.d_images) + place;
  Pixel values[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) values[i] = pixel_gradient<Pixel>(sums[i], p.problem.scale);
  if (p.has_aligned_pixels) {
    store_octet(patch + place_of_element(p.grid, element), values, kOctet, true);
    return;
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    if (element + i < p.grid.elements) patch[place_of_element(p.grid, element + i)] = values[i];
  }
}

template <class T>
VIT_KERNEL(kTensorThreads, 2, images_gradient_on_tensor_cores, const PatchGradientParameters p) {
  using Tiles = typename ImagesGradientOperands<T>::Tiles;
  const PatchGrid& grid = p.grid;
  const TilePlace tile = place_of_block(p.plan, kTensorTile);
  char* const memory = shared_memory();
  int64_t* const table = reinterpret_cast<int64_t*>(memory + 2 * Tiles::kBytes);
  const Places places = {table, table + kTensorTile};
  put_places_of_rows(grid, tile.row, kTensorTile, places);
  sync_block();

  ImagesGradientOperands<T> operands = {
      p, tile.column, {memory}, {memory + Tiles::kBytes}, places.tokens};
  TensorSums<T> sums;
  sums.add(operands, p.plan.steps);

  const auto write = [&](int row, int column, const float (&values)[kOctet]) {
    const int64_t element = tile.column + column;
    const int64_t place = places.pixels[row];
    if (place == kNoPlace || element >= grid.elements) return;
    with_type(p.problem.image_type, [&](auto* type) {
      using Pixel = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
      if constexpr (sizeof(Pixel) > 1) write_pixels<Pixel>(p, place, element, values);
    });
  };
  sums.for_octets(reinterpret_cast<float*>(memory), write);
}

VIT_KERNEL(kScalarThreads, 2, images_gradient_scalar, const PatchGradientParameters p) {
  using Tile = ScalarTile;
  const PatchGrid& grid = p.grid;
  const TilePlace tile = place_of_block(p.plan, kScalarTile);
  int64_t* const table = reinterpret_cast<int64_t*>(shared_memory() + Tile::kBytes);
  const Places places = {table, table + kScalarTile};
  put_places_of_rows(grid, tile.row, kScalarTile, places);
  sync_block();

  Tile sums;
  sums.clear();
  const float* d_tokens = static_cast<const float*>(p.problem.d_tokens);
  const float* kernel = static_cast<const float*>(p.problem.kernel) + tile.column * grid.features;
  const auto token = [&](int row, int64_t feature) {
    return places.tokens[row] == kNoPlace ? 0.0f : d_tokens[places.tokens[row] + feature];
  };
  const auto weight = [&](int64_t feature, int column) {
    return tile.column + column < grid.elements ? kernel[column * grid.features + feature] : 0.0f;
  };
  sums.add_product<true, true>(grid.features, token, weight,
                               reinterpret_cast<float*>(shared_memory()));

  with_type(p.problem.image_type, [&](auto* type) {
    using Pixel = std::remove_cv_t<std::remove_pointer_t<decltype(type)>>;
    if constexpr (sizeof(Pixel) > 1) {
      Pixel* d_images = static_cast<Pixel*>(p.problem.d_images);
      for (int i = 0; i < Tile::kPerThread; ++i) {
        const int64_t place = places.pixels[Tile::row(i)];
        if (place == kNoPlace) continue;
        for (int j = 0; j < Tile::kPerThread; ++j) {
          const int64_t element = tile.column + Tile::column(j);
          if (element >= grid.elements) continue;
          d_images[place + place_of_element(grid, element)] =
              pixel_gradient<Pixel>(sums.sums[i][j], p.problem.scale);
        }
      }
    }
  });
}

// Writes zero to the pixels that no patch covers; a thread for each element of the images.
template <int kBytes>
VIT_KERNEL(kFlatThreads, 1, clear_left_over_pixels, const PatchGradientParameters p) {
  const PatchGrid& grid = p.grid;
  const int64_t i = block_index() * kFlatThreads + thread_index();
  const int64_t line = i / grid.line, x = i % grid.line, y = line % grid.height;
  if (line >= grid.batch * grid.height) return;
  if (x < grid.columns * grid.side && y < grid.rows * grid.patch_size) return;
  char* const pixel = static_cast<char*>(p.problem.d_images) + i * kBytes;
  if constexpr (kBytes == 2) {
    *reinterpret_cast<uint16_t*>(pixel) = 0;
  } else {
    *reinterpret_cast<uint32_t*>(pixel) = 0;
  }
}

inline CudaResult clear_left_over(const PatchGradientParameters& p,
                                  const CudaExecution& execution) {
  const PatchGrid& grid = p.grid;
  if (grid.columns * grid.side == grid.line && grid.rows * grid.patch_size == grid.height) {
    return CudaResult::kOk;
  }
  const LaunchShape shape = flat_launch(grid.batch * grid.image);
  return size_of(p.problem.image_type) == 2
             ? launch(clear_left_over_pixels<2>, shape, p, execution)
             : launch(clear_left_over_pixels<4>, shape, p, execution);
}

template <class T>
CudaResult images_gradient(PatchGradientParameters p, const CudaExecution& execution) {
  const PatchGrid& grid = p.grid;
  if (grid.batch == 0 || grid.image == 0) return CudaResult::kOk;
  if (grid.all_patches > 0) {
    p.plan = plan_images_gradient(grid, p.problem.type);
    p.has_aligned_pixels = has_aligned_pixels(grid, p.problem.image_type, p.problem.d_images);
    CudaResult result;
    if constexpr (sizeof(T) == 2) {
      result = launch(images_gradient_on_tensor_cores<T>, p.plan.launch, p, execution);
    } else {
      result = launch(images_gradient_scalar, p.plan.launch, p, execution);
    }
    if (result != CudaResult::kOk) return result;
  }
  return clear_left_over(p, execution);
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_PATCH_EMBED_IMAGES_GRADIENT_H_
