// Copies patches out of images and back, as bytes.
#include "custom_ops/cuda/patch_embed.h"
#include "custom_ops/cuda/patch_embed/checked_launch.h"
#include "custom_ops/cuda/patch_embed/geometry.h"

namespace vit {

namespace {

struct CopyParameters {
  PatchGrid grid;  // counts units of kBytes instead of elements
  const char* from;
  char* to;
};

// A null `from` is zero.
template <int kBytes>
VIT_DEVICE void copy_unit(const char* from, char* to) {
  if constexpr (kBytes >= 4) {
    uint32_t words[kBytes / 4] = {};
    if (from) load_words<kBytes / 4>(from, words);
    store_words<kBytes / 4>(to, words);
  } else if constexpr (kBytes == 2) {
    *reinterpret_cast<uint16_t*>(to) =
        from ? *reinterpret_cast<const uint16_t*>(from) : uint16_t{0};
  } else {
    *to = from ? *from : char{0};
  }
}

// A thread for each unit of the patches.
template <int kBytes>
VIT_KERNEL(kFlatThreads, 1)
extract_units(const CopyParameters p) {
  const PatchGrid& grid = p.grid;
  const int64_t i = block_index() * kFlatThreads + thread_index();
  const int64_t x = i % grid.side, line = i / grid.side;
  const int64_t y = line % grid.patch_size, patch = line / grid.patch_size;
  if (patch >= grid.all_patches) return;
  const int64_t column = patch % grid.columns, all_rows = patch / grid.columns;
  const int64_t row = all_rows % grid.rows, image = all_rows / grid.rows;
  const int64_t place =
      image * grid.image + (row * grid.patch_size + y) * grid.line + column * grid.side + x;
  copy_unit<kBytes>(p.from + place * kBytes, p.to + i * kBytes);
}

// A thread for each unit of the images.
template <int kBytes>
VIT_KERNEL(kFlatThreads, 1)
restore_units(const CopyParameters p) {
  const PatchGrid& grid = p.grid;
  const int64_t i = block_index() * kFlatThreads + thread_index();
  const int64_t x = i % grid.line, line = i / grid.line;
  const int64_t y = line % grid.height, image = line / grid.height;
  if (image >= grid.batch) return;
  const int64_t row = y / grid.patch_size, column = x / grid.side;
  const char* from = nullptr;
  if (row < grid.rows && column < grid.columns) {
    const int64_t patch = image * grid.patches + row * grid.columns + column;
    const int64_t place =
        (patch * grid.patch_size + y % grid.patch_size) * grid.side + x % grid.side;
    from = p.from + place * kBytes;
  }
  copy_unit<kBytes>(from, p.to + i * kBytes);
}

using CopyKernel = void (*)(CopyParameters);

// Runs the kernel for the unit of the plan.
CudaResult run(const CopyPlan& plan, const PatchCopyProblem& problem, int64_t units,
               const CopyKernel (&kernels)[5], const CudaExecution& execution) {
  int size = 0;
  while (1 << size < plan.unit) ++size;
  const CopyParameters p = {plan.grid, static_cast<const char*>(problem.from),
                            static_cast<char*>(problem.to)};
  return checked_launch(kernels[size], flat_launch(units), p, execution);
}

}  // namespace

CudaResult extract_patches(const PatchCopyProblem& problem, const CudaExecution& execution) {
  const CopyPlan plan = plan_copy(problem);
  const int64_t units = plan.grid.all_patches * plan.grid.elements;
  if (units == 0) return CudaResult::kOk;
  return run(
      plan, problem, units,
      {extract_units<1>, extract_units<2>, extract_units<4>, extract_units<8>, extract_units<16>},
      execution);
}

CudaResult restore_patches(const PatchCopyProblem& problem, const CudaExecution& execution) {
  const CopyPlan plan = plan_copy(problem);
  const int64_t units = plan.grid.batch * plan.grid.image;
  if (units == 0) return CudaResult::kOk;
  return run(
      plan, problem, units,
      {restore_units<1>, restore_units<2>, restore_units<4>, restore_units<8>, restore_units<16>},
      execution);
}

}  // namespace vit
