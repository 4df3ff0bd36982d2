#include "custom_ops/cc/patch_embed.h"

#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "custom_ops/cc/patch_embed_isa.h"

namespace vit {

namespace {

PatchKernels kernels(DType type) {
  switch (current_isa()) {
#if defined(__x86_64__)
    case Isa::kAvx2:
      return avx2::patch_kernels(type);
    case Isa::kAvx512:
      return avx512::patch_kernels(type);
    case Isa::kAvx512Bf16:
      return avx512_bf16::patch_kernels(type);
#endif
    default:
      return baseline::patch_kernels(type);
  }
}

struct Job {
  const PatchCall& call;
  const PatchWork& work;
  std::atomic<bool> out_of_memory{false};
};

void run_range(void* argument, int64_t begin, int64_t end) {
  Job& job = *static_cast<Job*>(argument);
  const int64_t bytes = (job.work.scratch_bytes(job.call) + 63) / 64 * 64;
  void* scratch = bytes ? aligned_alloc(64, static_cast<size_t>(bytes)) : nullptr;
  if (bytes && !scratch) {
    job.out_of_memory = true;
    return;
  }
  job.work.run(job.call, begin, end, scratch);
  free(scratch);
}

// `cycles`: of all units together.
Result run(const PatchCall& call, const PatchWork& work, double cycles, ParallelFor parallel_for) {
  const int64_t units = work.units(call);
  if (units == 0) return Result::kOk;
  Job job{call, work};
  const double cost = cycles / static_cast<double>(units) + 500;
  parallel_for.run(parallel_for.pool, units, static_cast<int64_t>(cost < 1e12 ? cost : 1e12),
                   run_range, &job);
  return job.out_of_memory ? Result::kOutOfMemory : Result::kOk;
}

// Of a product with the kernel, at 16 multiplications and additions a cycle.
double product_cycles(const PatchShape& shape) {
  return static_cast<double>(shape.batch) * static_cast<double>(shape.patches()) *
         static_cast<double>(shape.patch_elements()) * static_cast<double>(shape.features) / 16;
}

// Of reading all tokens.
double token_cycles(const PatchShape& shape) {
  return static_cast<double>(shape.batch) * static_cast<double>(shape.tokens()) *
         static_cast<double>(shape.features) / 4;
}

// Of writing the tokens before the patches.
double prefix_cycles(const PatchShape& shape) {
  return static_cast<double>(shape.batch) * static_cast<double>(shape.prefix) *
         static_cast<double>(shape.features) / 4;
}

// Patches and images as bytes; a unit is a line of patches.
struct Cut {
  const PatchShape& shape;
  int64_t element_size;
  const char* from;
  char* to;

  int64_t side() const { return shape.patch_size * shape.channels * element_size; }
  int64_t line() const { return shape.width * shape.channels * element_size; }

  // Calls visit(image, patch), the offsets of every line of a patch.
  template <class Visit>
  void for_lines(int64_t begin, int64_t end, const Visit& visit) const {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t image = unit / shape.rows(), row = unit % shape.rows();
      const int64_t top = image * shape.height + row * shape.patch_size;
      for (int64_t y = 0; y < shape.patch_size; ++y) {
        const int64_t from = (top + y) * line();
        for (int64_t x = 0; x < shape.columns(); ++x) {
          const int64_t patch = unit * shape.columns() + x;
          visit(from + x * side(), (patch * shape.patch_size + y) * side());
        }
      }
    }
  }
};

void run_cut(const Cut& cut, RangeBody body, ParallelFor parallel_for) {
  const PatchShape& shape = cut.shape;
  const int64_t units = shape.batch * shape.rows();
  if (units == 0) return;
  const double bytes = static_cast<double>(shape.patch_size) * static_cast<double>(cut.line());
  const double cost = bytes / 4 + 100;
  parallel_for.run(parallel_for.pool, units, static_cast<int64_t>(cost < 1e12 ? cost : 1e12), body,
                   const_cast<Cut*>(&cut));
}

// Zeros in the pixels that no patch reads.
void clear_rest(int64_t element_size, const PatchShape& shape, void* images) {
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

}  // namespace

Result patch_embed_forward(DType image_type, DType type, const PatchShape& shape,
                           const void* images, double scale, double offset, const void* kernel,
                           const void* bias, const void* prefix, const void* position,
                           void* tokens, ParallelFor parallel_for) {
  PatchCall call{};
  call.image_type = image_type;
  call.shape = shape;
  call.images = images;
  call.scale = scale;
  call.offset = offset;
  call.kernel = kernel;
  call.bias = bias;
  call.prefix = prefix;
  call.position = position;
  call.tokens = tokens;
  const PatchKernels works = kernels(type);
  const Result result = run(call, works.forward, product_cycles(shape), parallel_for);
  if (result != Result::kOk) return result;
  return run(call, works.prefix, prefix_cycles(shape), parallel_for);
}

Result patch_embed_backward(DType image_type, DType type, const PatchShape& shape,
                            const void* images, double scale, double offset, const void* kernel,
                            const void* d_tokens, const PatchGradients& gradients,
                            ParallelFor parallel_for) {
  PatchCall call{};
  call.image_type = image_type;
  call.shape = shape;
  call.images = images;
  call.scale = scale;
  call.offset = offset;
  call.kernel = kernel;
  call.d_tokens = d_tokens;
  call.gradients = gradients;
  const PatchKernels works = kernels(type);
  Result result = Result::kOk;
  if (gradients.kernel) {
    result = run(call, works.kernel_gradient, product_cycles(shape), parallel_for);
  }
  if (gradients.images && result == Result::kOk) {
    result = run(call, works.image_gradient, product_cycles(shape), parallel_for);
    clear_rest(size_of(image_type), shape, gradients.images);
  }
  if ((gradients.bias || gradients.prefix || gradients.position) && result == Result::kOk) {
    result = run(call, works.table_gradients, token_cycles(shape), parallel_for);
  }
  return result;
}

void extract_patches(int64_t element_size, const PatchShape& shape, const void* images,
                     void* patches, ParallelFor parallel_for) {
  const Cut cut{shape, element_size, static_cast<const char*>(images), static_cast<char*>(patches)};
  run_cut(
      cut,
      [](void* argument, int64_t begin, int64_t end) {
        const Cut& cut = *static_cast<Cut*>(argument);
        cut.for_lines(begin, end, [&](int64_t image, int64_t patch) {
          memcpy(cut.to + patch, cut.from + image, cut.side());
        });
      },
      parallel_for);
}

void restore_patches(int64_t element_size, const PatchShape& shape, const void* patches,
                     void* images, ParallelFor parallel_for) {
  const Cut cut{shape, element_size, static_cast<const char*>(patches), static_cast<char*>(images)};
  run_cut(
      cut,
      [](void* argument, int64_t begin, int64_t end) {
        const Cut& cut = *static_cast<Cut*>(argument);
        cut.for_lines(begin, end, [&](int64_t image, int64_t patch) {
          memcpy(cut.to + image, cut.from + patch, cut.side());
        });
      },
      parallel_for);
  clear_rest(element_size, shape, images);
}

}  // namespace vit
