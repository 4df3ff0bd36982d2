// Where the elements of patches and tokens lie, and pixels as numbers.
#ifndef CUSTOM_OPS_CUDA_PATCH_EMBED_PLACES_H_
#define CUSTOM_OPS_CUDA_PATCH_EMBED_PLACES_H_

#include <string.h>

#include "custom_ops/cuda/patch_embed/patch_embed_geometry.h"
#include "custom_ops/cuda/scalar_tiles.h"

namespace vit {

// A place is an offset in elements. Inside of loops divisions have 32 bits: divisions of 64 bits
// are calls, and sums would leave their registers for them. See kMostInImage for the limits.

// An element of a patch, from the first pixel of the patch on.
VIT_DEVICE int64_t place_of_element(const PatchGrid& grid, int64_t element) {
  const uint32_t side = static_cast<uint32_t>(grid.side), at = static_cast<uint32_t>(element);
  return at / side * grid.line + at % side;
}

struct Patch {
  int64_t image;
  uint32_t in_image;
};

// Patch number `index` of the batch.
VIT_DEVICE Patch patch_of(const PatchGrid& grid, int64_t index) {
  return {index / grid.patches, static_cast<uint32_t>(index % grid.patches)};
}

// The patch that comes `offset` after another one.
VIT_DEVICE Patch patch_after(const PatchGrid& grid, const Patch& patch, uint32_t offset) {
  const uint32_t patches = static_cast<uint32_t>(grid.patches), at = patch.in_image + offset;
  return {patch.image + at / patches, at % patches};
}

// Its first pixel, in the images.
VIT_DEVICE int64_t place_of_pixels(const PatchGrid& grid, const Patch& patch) {
  const uint32_t columns = static_cast<uint32_t>(grid.columns);
  return patch.image * grid.image + patch.in_image / columns * grid.patch_size * grid.line +
         patch.in_image % columns * grid.side;
}

// Its token, in the tokens.
VIT_DEVICE int64_t place_of_token(const PatchGrid& grid, const Patch& patch) {
  return (patch.image * grid.tokens + grid.prefix + patch.in_image) * grid.features;
}

constexpr int64_t kNoPlace = -1;

// Places in shared memory, of consecutive patches.
struct Places {
  int64_t *pixels, *tokens;
  int64_t* positions = nullptr;  // in the table of positions, if that is wanted
};

// Writes the places of the `count` patches that come `offset` after `first`, with kNoPlace for
// patches that come `end` or more after it. All threads of the block call it. The places can be
// read after sync_block().
VIT_DEVICE void put_places(const PatchGrid& grid, const Patch& first, int64_t offset, int64_t end,
                           int count, const Places& places) {
  const int i = thread_index();
  if (i >= count) return;
  places.pixels[i] = places.tokens[i] = kNoPlace;
  if (offset + i >= end) return;
  const Patch patch = patch_after(grid, first, static_cast<uint32_t>(offset + i));
  places.pixels[i] = place_of_pixels(grid, patch);
  places.tokens[i] = place_of_token(grid, patch);
  if (places.positions) places.positions[i] = (grid.prefix + patch.in_image) * grid.features;
}

// The places of the patches that are the rows of a tile, from patch `row` of the batch on.
VIT_DEVICE void put_places_of_rows(const PatchGrid& grid, int64_t row, int count,
                                   const Places& places) {
  put_places(grid, patch_of(grid, row), 0, grid.all_patches - row, count, places);
}

// Calls visit() with a null pointer to elements of the type.
template <class Visit>
VIT_DEVICE auto with_type(DType type, const Visit& visit) {
  switch (type) {
    case DType::kUint8:
      return visit(static_cast<const uint8_t*>(nullptr));
    case DType::kBfloat16:
      return visit(static_cast<const Bfloat16*>(nullptr));
    case DType::kFloat16:
      return visit(static_cast<const Float16*>(nullptr));
    default:
      return visit(static_cast<const float*>(nullptr));
  }
}

// The images that are read. They are in the parameters of kernels, so none of it needs registers.
struct Pixels {
  DType type;
  bool is_aligned;  // see has_aligned_pixels
  const void* images;
  float scale, offset;
};

inline Pixels pixels_of(const PatchEmbedProblem& problem, const PatchGrid& grid) {
  return {problem.image_type, has_aligned_pixels(grid, problem.image_type, problem.images),
          problem.images, static_cast<float>(problem.scale), static_cast<float>(problem.offset)};
}

// A pixel image * scale + offset.
template <class Pixel>
VIT_DEVICE float rescaled(const Pixels& pixels, Pixel pixel) {
  return rounded_product(to_float(pixel), pixels.scale) + pixels.offset;
}

// The rescaled pixel at a place.
VIT_DEVICE float rescaled_at(const Pixels& pixels, int64_t place) {
  return with_type(pixels.type, [&](auto* type) {
    return rescaled(pixels, static_cast<decltype(type)>(pixels.images)[place]);
  });
}

// The gradient of a pixel from the gradient of the rescaled pixel.
template <class Pixel>
VIT_DEVICE Pixel pixel_gradient(float sum, double scale) {
  return rounded<Pixel>(sum * static_cast<float>(scale));
}

// The tile of a block, and the part of the sum.
struct TilePlace {
  int64_t row, column;  // the first ones of the tile
  int64_t part;
};

VIT_DEVICE TilePlace place_of_block(const ProductPlan& plan, int tile) {
  const int64_t index = block_index(), rest = index / plan.column_tiles;
  return {rest % plan.row_tiles * tile, index % plan.column_tiles * tile, rest / plan.row_tiles};
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_PATCH_EMBED_PLACES_H_
