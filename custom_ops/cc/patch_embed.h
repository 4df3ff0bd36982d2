// Images to tokens in one pass over the pixels (Dosovitskiy et al., 2021, 3.1), and the extraction
// of patches alone: the problems that a device solves. Tensors are dense; no alignment beyond that
// of their elements is assumed.
#ifndef CUSTOM_OPS_CC_PATCH_EMBED_H_
#define CUSTOM_OPS_CC_PATCH_EMBED_H_

#include <stdint.h>

#include "custom_ops/cc/dtype.h"

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

// Common to forward and gradients.
struct PatchEmbedProblem {
  DType image_type;  // of images and their gradient; may be kUint8 or any float
  DType type;        // of everything else
  PatchShape shape;
  const void* images;
  // Of the values of pixels: image * scale + offset.
  double scale, offset;
  const void* kernel;  // [patch_size, patch_size, channels, features]
};

// tokens [batch, prefix + patches, features]:
//   patches: (image * scale + offset) . kernel + bias + position, rows after the prefix
//   prefix:  prefix + position, rows before
// Pixels are rescaled in float, or in double with kFloat64 on either side, and rounded to `type`;
// products are summed in float, or in double for kFloat64. bias [features], prefix [prefix,
// features] and position [prefix + patches, features]; the last two may be null (prefix only if
// shape.prefix is 0).
struct PatchEmbedForwardProblem : PatchEmbedProblem {
  const void *bias, *prefix, *position;
  // Written.
  void* tokens;
};

// Gradients for d_tokens (like tokens); any output may be null. Each is like what it belongs to;
// d_images needs a float type and is zero where no patch reads. images are read for d_kernel only,
// kernel for d_images; otherwise they may be null.
struct PatchEmbedGradientProblem : PatchEmbedProblem {
  const void* d_tokens;
  // Written.
  void *d_images, *d_kernel, *d_bias, *d_prefix, *d_position;
};

// patches [batch, patches, patch_size * patch_size * channels] of images, or images of patches,
// zero where no patch reads. Elements have `element_size` bytes; shape.features and shape.prefix
// are not read.
struct PatchCopyProblem {
  PatchShape shape;
  int64_t element_size;
  const void* from;
  // Written.
  void* to;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_PATCH_EMBED_H_
