// Where the elements of patches and tokens lie, and pixels as numbers.
#ifndef CUSTOM_OPS_CUDA_PATCH_EMBED_PLACES_H_
#define CUSTOM_OPS_CUDA_PATCH_EMBED_PLACES_H_

#include <string.h>

#include "custom_ops/cuda/patch_embed/geometry.h"
#include "custom_ops/cuda/scalar_tiles.h"

namespace vit {

// Patches are counted over the whole batch. A place is an offset in elements.

// The first pixel of a patch, in the images.
VIT_DEVICE int64_t place_of_patch(const PatchGrid& grid, int64_t patch) {
  const int64_t image = patch / grid.patches, in_image = patch % grid.patches;
  return image * grid.image + in_image / grid.columns * grid.patch_size * grid.line +
         in_image % grid.columns * grid.side;
}

// An element of a patch, from its first pixel on.
VIT_DEVICE int64_t place_of_element(const PatchGrid& grid, int64_t element) {
  return element / grid.side * grid.line + element % grid.side;
}

// The token of a patch, in the tokens.
VIT_DEVICE int64_t place_of_token(const PatchGrid& grid, int64_t patch) {
  const int64_t image = patch / grid.patches, in_image = patch % grid.patches;
  return (image * grid.tokens + grid.prefix + in_image) * grid.features;
}

constexpr int64_t kNoPlace = -1;

// The places of patches [first, first + count); kNoPlace from `end` on. All threads of the block
// call it. The places can be read after sync_block().
VIT_DEVICE void put_patch_places(const PatchGrid& grid, int64_t first, int count, int64_t end,
                                 int64_t* places) {
  const int i = thread_index();
  if (i < count) places[i] = first + i < end ? place_of_patch(grid, first + i) : kNoPlace;
}
VIT_DEVICE void put_token_places(const PatchGrid& grid, int64_t first, int count, int64_t end,
                                 int64_t* places) {
  const int i = thread_index();
  if (i < count) places[i] = first + i < end ? place_of_token(grid, first + i) : kNoPlace;
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
    case DType::kFloat64:
      return visit(static_cast<const double*>(nullptr));
    case DType::kFloat32:
      break;
  }
  return visit(static_cast<const float*>(nullptr));
}

// The images that are read. They are in the parameters of kernels, so none of it needs registers.
struct Pixels {
  DType type;
  bool is_aligned;  // see has_aligned_pixels
  const void* images;
  double scale, offset;
  float float_scale, float_offset;
};

inline Pixels pixels_of(const PatchEmbedProblem& problem, const PatchGrid& grid) {
  return {problem.image_type,
          has_aligned_pixels(grid, problem.image_type, problem.images),
          problem.images,
          problem.scale,
          problem.offset,
          static_cast<float>(problem.scale),
          static_cast<float>(problem.offset)};
}

// A pixel image * scale + offset, in double if either type is.
template <class Sum, class Pixel>
VIT_DEVICE Sum rescaled(const Pixels& pixels, Pixel pixel) {
  if constexpr (sizeof(Sum) == 8 || sizeof(Pixel) == 8) {
    return static_cast<Sum>(rounded_product(to_double(pixel), pixels.scale) + pixels.offset);
  } else {
    return rounded_product(to_float(pixel), pixels.float_scale) + pixels.float_offset;
  }
}

// The rescaled pixel at a place.
template <class Sum>
VIT_DEVICE Sum rescaled_at(const Pixels& pixels, int64_t place) {
  return with_type(pixels.type, [&](auto* type) {
    return rescaled<Sum>(pixels, static_cast<decltype(type)>(pixels.images)[place]);
  });
}

// The gradient of a pixel for that of the rescaled pixel.
template <class Pixel, class Sum>
VIT_DEVICE Pixel pixel_gradient(Sum sum, double scale) {
  if constexpr (sizeof(Sum) == 8 || sizeof(Pixel) == 8) {
    return element<Pixel>(static_cast<double>(sum) * scale);
  } else {
    return element<Pixel>(sum * static_cast<float>(scale));
  }
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
