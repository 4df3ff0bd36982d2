// Copies patches out of images and back, as bytes.
#include "custom_ops/cuda/device.h"
#include "custom_ops/cuda/cuda_patch_embed.h"
#include "custom_ops/cuda/patch_embed/patch_embed_geometry.h"

namespace vit {

namespace {

struct CopyParameters {
  PatchGrid grid;   // counts units of kBytes instead of elements
  uint32_t blocks;  // of an image
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

// Copies units of images to patches, or back (kRestores), with zeros in pixels that no patch
// covers. A thread for each unit of an image, which divides 32-bit numbers only: see plan_copy.
template <int kBytes, bool kRestores>
VIT_KERNEL(kFlatThreads, 1, copy_units, const CopyParameters p) {
  const PatchGrid& grid = p.grid;
  const auto block = static_cast<uint32_t>(block_index());
  const uint32_t i = block % p.blocks * kFlatThreads + static_cast<uint32_t>(thread_index());
  if (i >= grid.image) return;
  const auto line = static_cast<uint32_t>(grid.line), side = static_cast<uint32_t>(grid.side);
  const auto size = static_cast<uint32_t>(grid.patch_size);
  const uint32_t x = i % line, y = i / line, row = y / size, column = x / side;
  const int64_t image = block / p.blocks, in_images = image * grid.image + i;
  const int64_t patch = image * grid.patches + row * grid.columns + column;
  const int64_t in_patches = (patch * grid.patch_size + y % size) * grid.side + x % side;
  const bool is_covered = row < grid.rows && column < grid.columns;
  if constexpr (kRestores) {
    copy_unit<kBytes>(is_covered ? p.from + in_patches * kBytes : nullptr,
                      p.to + in_images * kBytes);
  } else if (is_covered) {
    copy_unit<kBytes>(p.from + in_images * kBytes, p.to + in_patches * kBytes);
  }
}

template <bool kRestores>
CudaResult copy(const PatchCopyProblem& problem, const CudaExecution& execution) {
  const CopyPlan plan = plan_copy(problem);
  if (plan.grid.batch == 0 || plan.grid.image == 0) return CudaResult::kOk;
  const CopyParameters p = {plan.grid, plan.image_blocks, static_cast<const char*>(problem.from),
                            static_cast<char*>(problem.to)};
  switch (plan.unit) {
    case 1:
      return launch(copy_units<1, kRestores>, plan.launch, p, execution);
    case 2:
      return launch(copy_units<2, kRestores>, plan.launch, p, execution);
    case 4:
      return launch(copy_units<4, kRestores>, plan.launch, p, execution);
    case 8:
      return launch(copy_units<8, kRestores>, plan.launch, p, execution);
    default:
      return launch(copy_units<16, kRestores>, plan.launch, p, execution);
  }
}

}  // namespace

CudaResult extract_patches(const PatchCopyProblem& problem, const CudaExecution& execution) {
  return copy<false>(problem, execution);
}

CudaResult restore_patches(const PatchCopyProblem& problem, const CudaExecution& execution) {
  return copy<true>(problem, execution);
}

}  // namespace vit
