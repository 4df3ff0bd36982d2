// Copies patches out of images and back, as bytes: the same code for all instruction sets.
#include <string.h>

#include "custom_ops/cpu/dispatch.h"
#include "custom_ops/cpu/patch_embed/cpu_patch_embed.h"

namespace vit {

namespace {

// A unit is a row of patches.
struct PatchCopy {
  static int64_t units(const PatchCopyProblem& problem) {
    return problem.shape.batch * problem.shape.rows();
  }

  static double unit_cycles(const PatchCopyProblem& problem) {
    const PatchShape& shape = problem.shape;
    return static_cast<double>(shape.patch_size) *
               static_cast<double>(shape.width * shape.channels * problem.element_size) / 4 +
           100;
  }

  static int64_t scratch_bytes(const PatchCopyProblem&) { return 0; }

  // Calls visit(image, patch, bytes) for every line of a patch, with its offsets in the image and
  // in the patch.
  template <class Visit>
  static void for_lines(const PatchCopyProblem& problem, int64_t begin, int64_t end,
                        const Visit& visit) {
    const PatchShape& shape = problem.shape;
    const int64_t pixel = shape.channels * problem.element_size;
    const int64_t image_line = shape.width * pixel, patch_line = shape.patch_size * pixel;
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t image = unit / shape.rows(), row = unit % shape.rows();
      const int64_t top = image * shape.height + row * shape.patch_size;
      for (int64_t y = 0; y < shape.patch_size; ++y) {
        const int64_t from = (top + y) * image_line;
        for (int64_t x = 0; x < shape.columns(); ++x) {
          const int64_t patch = unit * shape.columns() + x;
          visit(from + x * patch_line, (patch * shape.patch_size + y) * patch_line, patch_line);
        }
      }
    }
  }
};

struct Extract : PatchCopy {
  static void run(const PatchCopyProblem& problem, int64_t begin, int64_t end, void*) {
    const char* images = static_cast<const char*>(problem.from);
    char* patches = static_cast<char*>(problem.to);
    for_lines(problem, begin, end, [=](int64_t image, int64_t patch, int64_t bytes) {
      memcpy(patches + patch, images + image, bytes);
    });
  }
};

struct Restore : PatchCopy {
  static void run(const PatchCopyProblem& problem, int64_t begin, int64_t end, void*) {
    const char* patches = static_cast<const char*>(problem.from);
    char* images = static_cast<char*>(problem.to);
    for_lines(problem, begin, end, [=](int64_t image, int64_t patch, int64_t bytes) {
      memcpy(images + image, patches + patch, bytes);
    });
  }
};

}  // namespace

void clear_unread_pixels(const PatchShape& shape, int64_t element_size, void* images) {
  const int64_t pixel = shape.channels * element_size;
  const int64_t line = shape.width * pixel, used = shape.columns() * shape.patch_size * pixel;
  const int64_t lines = shape.columns() ? shape.rows() * shape.patch_size : 0;
  char* image = static_cast<char*>(images);
  for (int64_t b = 0; b < shape.batch; ++b, image += shape.height * line) {
    if (used < line) {
      for (int64_t y = 0; y < lines; ++y) memset(image + y * line + used, 0, line - used);
    }
    if (lines < shape.height) memset(image + lines * line, 0, (shape.height - lines) * line);
  }
}

Result extract_patches(const PatchCopyProblem& problem, const Execution& execution) {
  return run_kernel(Kernel<PatchCopyProblem>::of<Extract>(), problem, execution);
}

Result restore_patches(const PatchCopyProblem& problem, const Execution& execution) {
  const Result result = run_kernel(Kernel<PatchCopyProblem>::of<Restore>(), problem, execution);
  clear_unread_pixels(problem.shape, problem.element_size, problem.to);
  return result;
}

}  // namespace vit
