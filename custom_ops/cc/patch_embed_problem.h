// Images to tokens in one pass over the pixels (Dosovitskiy et al., 2021, 3.1), and the extraction
// of patches alone. This header defines the problems that a device solves. Tensors are dense; data
// must be aligned to its element type only.
#ifndef CUSTOM_OPS_CC_PATCH_EMBED_PROBLEM_H_
#define CUSTOM_OPS_CC_PATCH_EMBED_PROBLEM_H_

#include <stdint.h>

#include "custom_ops/cc/dtype.h"

namespace vit {

// Images are [batch, height, width, channels]. Patches are patch_size x patch_size pixels,
// row-major over a grid of height / patch_size x width / patch_size; pixels beyond the grid are
// never read. `prefix` tokens come before the patches of each image. Tokens have `features`
// elements.
struct PatchShape {
  int64_t batch, height, width, channels, patch_size, features, prefix;
  VIT_INLINE int64_t rows() const { return height / patch_size; }
  VIT_INLINE int64_t columns() const { return width / patch_size; }
  VIT_INLINE int64_t patches() const { return rows() * columns(); }
  VIT_INLINE int64_t tokens() const { return prefix + patches(); }
  VIT_INLINE int64_t patch_elements() const { return patch_size * patch_size * channels; }
};

// The inputs that forward and gradients have.
struct PatchEmbedProblem {
  DType image_type;  // of images and their gradient; may be kUint8 or any float
  DType type;        // of everything else
  PatchShape shape;
  const void* images;
  // Rescale the pixels: image * scale + offset.
  double scale, offset;
  const void* kernel;  // [patch_size, patch_size, channels, features]
  // That may take units. Of the CPU, whose launcher sets it; results do not depend on it.
  int64_t threads = 1;
};

// tokens [batch, prefix + patches, features]:
//   patches: (image * scale + offset) . kernel + bias + position, rows after the prefix
//   prefix:  prefix + position, rows before
// Pixels are rescaled in float (in double if either type is kFloat64) and rounded to `type`.
// Products are summed in float, or in double for kFloat64. bias is [features], prefix [prefix,
// features] and position [prefix + patches, features]; prefix and position may be null (prefix only
// if shape.prefix is 0).
struct PatchEmbedForwardProblem : PatchEmbedProblem {
  const void *bias, *prefix, *position;
  // Output.
  void* tokens;
};

// Gradients for d_tokens, which has the shape and type of tokens. Any output may be null. Each
// output has the shape and type of its input. d_images needs a float type and is zero in pixels
// that no patch covers. images are read for d_kernel only, kernel for d_images only; otherwise they
// may be null.
struct PatchEmbedGradientProblem : PatchEmbedProblem {
  const void* d_tokens;
  // Outputs.
  void *d_images, *d_kernel, *d_bias, *d_prefix, *d_position;
};

// Copies images to patches [batch, patches, patch_size * patch_size * channels], or patches to
// images, with zeros in pixels that no patch covers. Elements have `element_size` bytes;
// shape.features and shape.prefix are not read.
struct PatchCopyProblem {
  PatchShape shape;
  int64_t element_size;
  const void* from;
  // Output.
  void* to;
};

}  // namespace vit

#endif  // CUSTOM_OPS_CC_PATCH_EMBED_PROBLEM_H_
