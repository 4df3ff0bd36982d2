// The gradients of the bias, the prefix and the position: sums of d_tokens over images, in parts,
// and for the bias also over patches.
#ifndef CUSTOM_OPS_CUDA_PATCH_EMBED_TABLES_GRADIENT_H_
#define CUSTOM_OPS_CUDA_PATCH_EMBED_TABLES_GRADIENT_H_

#include "custom_ops/cuda/patch_embed/gradients.h"

namespace vit {

// Writes the workspace [parts, tokens, features]; a thread for each element.
template <class T>
VIT_KERNEL(kFlatThreads, 1, add_images, const PatchGradientParameters p) {
  const TablesPlan& plan = p.tables;
  const int64_t i = block_index() * kFlatThreads + thread_index();
  const int64_t entries = plan.tokens * p.grid.features, part = i / entries;
  if (part >= plan.parts) return;
  const int64_t step = p.grid.tokens * p.grid.features, first = part * plan.part_images;
  const int64_t left = p.grid.batch - first;
  const int64_t images = left < plan.part_images ? left : plan.part_images;
  const T* d_tokens = static_cast<const T*>(p.problem.d_tokens) + first * step + i % entries;
  float sum = 0;
#pragma unroll 4
  for (int64_t image = 0; image < images; ++image) sum += to_float(d_tokens[image * step]);
  static_cast<float*>(p.workspace)[i] = sum;
}

// Writes d_position and d_prefix; a thread for each element.
template <class T>
VIT_KERNEL(kFlatThreads, 1, write_tables, const PatchGradientParameters p) {
  const int64_t i = block_index() * kFlatThreads + thread_index();
  const int64_t entries = p.tables.tokens * p.grid.features;
  const int64_t in_prefix = p.grid.prefix * p.grid.features;
  if (i >= (p.problem.d_position ? entries : in_prefix)) return;
  const float* sums = static_cast<const float*>(p.workspace);
  float sum = 0;
  for (int64_t part = 0; part < p.tables.parts; ++part) sum += sums[part * entries + i];
  if (p.problem.d_position) static_cast<T*>(p.problem.d_position)[i] = rounded<T>(sum);
  if (p.problem.d_prefix && i < in_prefix) {
    static_cast<T*>(p.problem.d_prefix)[i] = rounded<T>(sum);
  }
}

// Writes d_bias. Each of kBiasGroups groups of threads adds some rows of the workspace, then one
// adds the sums of the groups.
template <class T>
VIT_KERNEL(kBiasColumns* kBiasGroups, 1, write_bias, const PatchGradientParameters p) {
  const int64_t features = p.grid.features, patches = p.grid.patches;
  const int group = thread_index() / kBiasColumns, at = thread_index() % kBiasColumns;
  const int64_t column = block_index() * kBiasColumns + at;
  float sum = 0;
  if (column < features) {
    for (int64_t part = 0; part < p.tables.parts; ++part) {
      const float* rows = static_cast<const float*>(p.workspace) + column +
                          (part * p.grid.tokens + p.grid.prefix) * features;
#pragma unroll 4
      for (int64_t patch = group; patch < patches; patch += kBiasGroups) {
        sum += rows[patch * features];
      }
    }
  }
  float* const sums = reinterpret_cast<float*>(shared_memory());
  sums[thread_index()] = sum;
  sync_block();
  if (group > 0 || column >= features) return;
  for (int i = 1; i < kBiasGroups; ++i) sum += sums[i * kBiasColumns + at];
  static_cast<T*>(p.problem.d_bias)[column] = rounded<T>(sum);
}

template <class T>
CudaResult tables_gradient(PatchGradientParameters p, const CudaExecution& execution) {
  const PatchGrid& grid = p.grid;
  const PatchEmbedGradientProblem& problem = p.problem;
  if (grid.features == 0) return CudaResult::kOk;
  p.tables = plan_tables(grid, !problem.d_bias && !problem.d_position);
  p.workspace = nullptr;
  if (p.tables.parts > 0) {
    p.workspace = execution.allocate(execution.allocator, p.tables.workspace_bytes);
    if (!p.workspace) return CudaResult::kOutOfMemory;
    const int64_t sums = p.tables.parts * p.tables.tokens * grid.features;
    const CudaResult result = launch(add_images<T>, flat_launch(sums), p, execution);
    if (result != CudaResult::kOk) return result;
  }
  const int64_t rows = problem.d_position ? grid.tokens : problem.d_prefix ? grid.prefix : 0;
  if (rows > 0) {
    const CudaResult result =
        launch(write_tables<T>, flat_launch(rows * grid.features), p, execution);
    if (result != CudaResult::kOk) return result;
  }
  if (!problem.d_bias) return CudaResult::kOk;
  return launch(write_bias<T>, bias_launch(grid), p, execution);
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_PATCH_EMBED_TABLES_GRADIENT_H_
