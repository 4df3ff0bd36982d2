// From images to rows of patches, which a dense layer embeds.
#ifndef CUSTOM_OPS_CPU_ENCODER_PATCH_ROWS_H_
#define CUSTOM_OPS_CPU_ENCODER_PATCH_ROWS_H_

#include "custom_ops/cpu/encoder/encoder_kernels.h"
#include "custom_ops/cpu/patch_embed/pack.h"

namespace vit {
namespace VIT_ISA {

// A unit is a row of the grid of patches.
template <class Activation>
struct PatchRows {
  static int64_t units(const PatchRowsProblem& problem) {
    return problem.images.shape.batch * problem.images.shape.rows();
  }

  static double unit_cycles(const PatchRowsProblem& problem) {
    const PatchShape& shape = problem.images.shape;
    return static_cast<double>(shape.columns()) * static_cast<double>(shape.patch_elements()) / 4 +
           100;
  }

  static int64_t scratch_bytes(const PatchRowsProblem&) { return 0; }

  static void run(const PatchRowsProblem& problem, int64_t begin, int64_t end, void*) {
    const EncoderImages& images = problem.images;
    const PatchShape& shape = images.shape;
    PatchEmbedProblem pixels{};
    pixels.image_type = images.type;
    pixels.shape = shape;
    pixels.images = images.images;
    pixels.scale = images.scale;
    pixels.offset = images.offset;
    const int64_t row = begin * shape.columns(), rows = (end - begin) * shape.columns();
    pack_patches<Activation>(pixels, row, rows, 0, shape.patch_elements(), problem.row_stride,
                             static_cast<Activation*>(problem.rows) + row * problem.row_stride);
    for (int64_t unit = begin; unit < end; ++unit) {
      if (unit % shape.rows() == 0) write_prefix(problem, unit / shape.rows());
    }
  }

  static void write_prefix(const PatchRowsProblem& problem, int64_t image) {
    const EncoderImages& images = problem.images;
    const int64_t count = images.shape.prefix * images.shape.features;
    float* to = problem.stream + image * images.shape.tokens() * images.shape.features;
    for (int64_t j = 0; j < count; j += kLanes<float>) {
      Vector<float> x = load_first(images.prefix + j, count - j);
      if (images.position) x += load_first(images.position + j, count - j);
      store_first(to + j, x, count - j);
    }
  }
};

}  // namespace VIT_ISA
}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ENCODER_PATCH_ROWS_H_
