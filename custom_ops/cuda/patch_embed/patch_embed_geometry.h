// How the work of the patch embedding is cut into blocks of a GPU: plain C++, so that tests check
// it without one. The products are
//   forward:   tokens [patches of the batch, features] = patches . kernel
//   d_images:  patches [patches of the batch, elements of a patch] = d_tokens . kernel^T
//   d_kernel:  [elements of a patch, features] = patches^T . d_tokens
#ifndef CUSTOM_OPS_CUDA_PATCH_EMBED_PATCH_EMBED_GEOMETRY_H_
#define CUSTOM_OPS_CUDA_PATCH_EMBED_PATCH_EMBED_GEOMETRY_H_

#include "custom_ops/cc/patch_embed_problem.h"
#include "custom_ops/cuda/launch.h"

namespace vit {

// A block computes a tile of a product: on tensor cores for 16-bit types, otherwise with
// ScalarTile. All need less than 48 KB of shared memory, which every GPU has.
constexpr int kTensorTile = 128, kTensorDepth = 32, kTensorThreads = 256;
// The patches whose places a block of d_kernel computes at a time. Parts of the sum have a
// multiple.
constexpr int kPatchRun = 256;
// Most patches in an image, elements in a patch, and patches in a part of a sum, so that 32 bits
// count them. Products of more get an invalid launch.
constexpr int64_t kMostInImage = 0x7fffffff;
// Threads of the other kernels.
constexpr int kFlatThreads = 256;
constexpr int kBiasColumns = 32, kBiasGroups = 16;

// The numbers of a PatchShape that kernels need.
struct PatchGrid {
  int64_t batch, height;
  int64_t rows, columns, patches;      // of the grid; patches of an image
  int64_t all_patches;                 // of the batch
  int64_t prefix, tokens, features;    // tokens of an image
  int64_t patch_size, elements;        // elements of a patch
  int64_t side, line, image;           // elements of a line of a patch, of an image; of an image
};

PatchGrid grid_of(const PatchShape& shape);

// Blocks are numbered by part, then by row of tiles, then by column of tiles.
struct ProductPlan {
  bool on_tensor_cores;
  int64_t row_tiles, column_tiles;
  // The sum of d_kernel over patches is computed in parts, which are then added in order. All parts
  // but the last have part_depth patches. There is one part if there is no workspace.
  int64_t parts, part_depth;
  int steps;  // of kTensorDepth, of a part
  int64_t workspace_bytes;
  LaunchShape launch;
};

ProductPlan plan_forward(const PatchGrid& grid, DType type);
ProductPlan plan_images_gradient(const PatchGrid& grid, DType type);
ProductPlan plan_kernel_gradient(const PatchGrid& grid, DType type);

// Sums over images, [parts, tokens, features], are kept in a workspace. A part has part_images.
struct TablesPlan {
  int64_t tokens;  // that have to be summed: all, or the tokens of the prefix
  int64_t parts, part_images;
  int64_t workspace_bytes;
};

TablesPlan plan_tables(const PatchGrid& grid, bool prefix_only);

// A thread for each of `count` elements.
LaunchShape flat_launch(int64_t count);

// Blocks of kBiasColumns features.
LaunchShape bias_launch(const PatchGrid& grid);

// Copies of patches run in units of 1, 2, 4, 8 or 16 bytes; all lines begin at a multiple. The grid
// counts units instead of elements. Blocks are numbered by image; images of more than kMostInImage
// units get an invalid launch.
struct CopyPlan {
  int unit;
  PatchGrid grid;
  uint32_t image_blocks;
  LaunchShape launch;
};

CopyPlan plan_copy(const PatchCopyProblem& problem);

// Whether a type is float64, for which there are no kernels.
bool has_float64(const PatchEmbedProblem& problem);

// Whether an array begins at a multiple of 16 bytes. Null does.
bool begins_aligned(const void* data);

// Whether rows of `columns` elements begin at multiples of 16 bytes, as far as it depends on them.
bool has_aligned_rows(int64_t columns, DType type);

// Whether groups of 8 elements of patches are aligned in the images, so that kernels for tensor
// cores move them as vectors.
bool has_aligned_pixels(const PatchGrid& grid, DType image_type, const void* images);

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_PATCH_EMBED_PATCH_EMBED_GEOMETRY_H_
