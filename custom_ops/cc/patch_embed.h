// Images to tokens in one pass over the pixels (Dosovitskiy et al., 2021, 3.1), and the cutting of
// patches alone. Tensors are dense; no alignment beyond that of their elements is assumed. The same
// bits for any number of threads.
#ifndef CUSTOM_OPS_CC_PATCH_EMBED_H_
#define CUSTOM_OPS_CC_PATCH_EMBED_H_

#include "custom_ops/cc/kernel.h"

namespace vit {

// Images [batch, height, width, channels]; patches of patch_size x patch_size, row-major over the
// grid of height / patch_size x width / patch_size; pixels beyond it are never read. `prefix`
// tokens come before the patches of each image; tokens have `features` elements.
struct PatchShape {
  int64_t batch, height, width, channels, patch_size, features, prefix;
  int64_t rows() const { return height / patch_size; }
  int64_t columns() const { return width / patch_size; }
  int64_t patches() const { return rows() * columns(); }
  int64_t tokens() const { return prefix + patches(); }
  int64_t patch_elements() const { return patch_size * patch_size * channels; }
};

// tokens [batch, prefix + patches, features], of `type`:
//   patches: (image * scale + offset) . kernel + bias + position, rows after the prefix
//   prefix:  prefix + position, rows before
// images: of `image_type`, which may be kUint8 or any float. They are rescaled in float, or in
// double with kFloat64 on either side, and rounded to `type`; products are summed in float, or in
// double for kFloat64. kernel [patch_size, patch_size, channels, features], bias [features], prefix
// [prefix, features] and position [prefix + patches, features] are of `type`; the last two may be
// null (prefix only if shape.prefix is 0).
Result patch_embed_forward(DType image_type, DType type, const PatchShape& shape,
                           const void* images, double scale, double offset, const void* kernel,
                           const void* bias, const void* prefix, const void* position,
                           void* tokens, ParallelFor parallel_for);

// Gradients for d_tokens (like tokens); any output may be null. d_images is of `image_type`, a
// float type, like images, zero where no patch reads; the others are of `type`, like what they
// belong to. images are read for the gradient of the kernel only, kernel for that of the images;
// otherwise they may be null.
struct PatchGradients {
  void *images, *kernel, *bias, *prefix, *position;
};
Result patch_embed_backward(DType image_type, DType type, const PatchShape& shape,
                            const void* images, double scale, double offset, const void* kernel,
                            const void* d_tokens, const PatchGradients& gradients,
                            ParallelFor parallel_for);

// patches [batch, patches, patch_size * patch_size * channels]; elements of `element_size` bytes.
void extract_patches(int64_t element_size, const PatchShape& shape, const void* images,
                     void* patches, ParallelFor parallel_for);

// The reverse: images like those cut, zero where no patch reads.
void restore_patches(int64_t element_size, const PatchShape& shape, const void* patches,
                     void* images, ParallelFor parallel_for);

}  // namespace vit

#endif  // CUSTOM_OPS_CC_PATCH_EMBED_H_
