#include "custom_ops/cuda/attention/attention_geometry.h"

namespace vit {
namespace {

constexpr double kLog2E = 1.44269504088896340736;
constexpr int kWarpSize = 32;
// Of an H100 or H200; other large GPUs have 108 to 188. Where lines are few, a line has several
// blocks.
constexpr int kMultiprocessors = 132;

// What the gradients, which take most shared memory, have there: five tiles of 64 rows of heads and
// six numbers for each row.
int64_t most_tensor_bytes(int64_t head_size) {
  return 5 * head_tile_bytes(head_size, kKeysPerTile) + 6 * kKeysPerTile * kSumBytes;
}

bool is_16_bit(DType type) { return type == DType::kBfloat16 || type == DType::kFloat16; }

}  // namespace

AttentionPath attention_path(DType type, int64_t head_size, int64_t most_shared) {
  const bool fits = head_size <= 128 && most_tensor_bytes(head_size) <= most_shared;
  return is_16_bit(type) && fits ? AttentionPath::kTensor : AttentionPath::kScalar;
}

int padded_head_size(int64_t head_size) {
  return head_size <= 64 ? 64 : head_size <= 80 ? 80 : 128;
}

// Rows of Tile have 8 unused elements.
int64_t head_tile_bytes(int64_t head_size, int64_t rows) {
  return rows * (padded_head_size(head_size) + 8) * 2;
}

bool has_aligned_rows(DType type, int64_t head_size, const void* data) {
  return head_size * size_of(type) % 16 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

int64_t lines_of(const AttentionShape& shape) { return shape.batch * shape.lines * shape.heads; }

LogitScales logit_scales(const AttentionProblem& problem, AttentionPath path) {
  const bool keeps_queries = problem.type == DType::kFloat16 && path == AttentionPath::kTensor;
  const double factor = query_factor(problem.scale);
  LogitScales scales;
  scales.of_queries = keeps_queries ? 1 : factor;
  scales.of_products = problem.scale / scales.of_queries;
  scales.of_exponents = problem.bias.data ? kLog2E : kLog2E * scales.of_products;
  scales.of_largest = keeps_queries && !problem.bias.data ? factor : 1;
  return scales;
}

ForwardGeometry forward_geometry(DType type, const AttentionShape& shape, int64_t most_shared) {
  ForwardGeometry result;
  result.path = attention_path(type, shape.head_size, most_shared);
  int threads = kScalarThreads;
  int64_t shared = 0;
  if (result.path == AttentionPath::kTensor) {
    // Blocks of 128 queries, or as many as the line has, in warps of nearly equal number: with 257
    // queries, 3 blocks of 3 warps of 32 instead of 2 of 4 and 1 of 1.
    const int size = padded_head_size(shape.head_size);
    const int per_warp = size == 128 ? 16 : 32, most = 128 / per_warp;
    const int64_t warps = ceil_divide(shape.tokens, per_warp);
    int64_t per_block = warps ? ceil_divide(warps, ceil_divide(warps, most)) : 1;
    // Smaller blocks where there would be fewer than a GPU has multiprocessors.
    while (per_block > 1 && lines_of(shape) * ceil_divide(warps, per_block) < kMultiprocessors) {
      per_block = ceil_divide(per_block, 2);
    }
    result.queries = static_cast<int>(per_block) * per_warp;
    threads = static_cast<int>(per_block) * kWarpSize;
    result.column_tiles = 1;
    // Two tiles of keys and two of values; at first, 128 queries in place of the second ones; at
    // last, 128 rows of the output.
    const int keys = 2 * (size == 80 ? kForwardKeys<80> : kForwardKeys<64>);
    shared = head_tile_bytes(size, keys + (keys > 128 ? keys : 128));
  } else {
    result.queries = kScalarTile;
    result.column_tiles = ceil_divide(shape.head_size, kScalarTile);
    shared = kScalarProductBytes + kScalarTileBytes;
  }
  result.query_tiles = ceil_divide(shape.tokens, result.queries);
  result.launch = {lines_of(shape) * result.query_tiles * result.column_tiles, threads, shared};
  return result;
}

int64_t line_rows(const AttentionShape& shape, WarpgroupBlocks blocks) {
  if (shape.tokens <= 64) return ceil_divide(shape.tokens, 16) * 16;
  const int64_t before = shape.tokens - blocks.last;
  return blocks.last + (before > 0 ? ceil_divide(before, blocks.block) * blocks.block : 0);
}

int64_t line_bytes(const AttentionShape& shape, WarpgroupBlocks blocks) {
  return 2 * padded_head_size(shape.head_size) / 8 * (16 * line_rows(shape, blocks) + 16);
}

WarpgroupLines warpgroup_lines(const AttentionShape& shape, WarpgroupBlocks rows, int64_t bytes,
                               int64_t bytes_of_group, int most, int64_t most_shared) {
  const int64_t tiles = ceil_divide(shape.tokens, 64), lines = lines_of(shape);
  WarpgroupLines best = {};
  if (bytes + bytes_of_group > most_shared) return best;
  int64_t least = 0;
  for (int64_t per_block = 1; per_block <= tiles; ++per_block) {
    // The blocks that a multiprocessor runs at a time, and their warpgroups: as many warpgroups as
    // possible, in as many blocks as possible, which copy while others compute.
    const int64_t blocks = lines * ceil_divide(tiles, per_block);
    int64_t resident = 0, groups = 0;
    for (int64_t count = 1; count <= most && count <= ceil_divide(blocks, kMultiprocessors);
         ++count) {
      const int64_t each = most / count < per_block ? most / count : per_block;
      // It keeps 1 KB for each block.
      const bool fits = count * (bytes + each * bytes_of_group + 1024) <= most_shared + 1024;
      if (fits && count * each >= resident * groups) resident = count, groups = each;
    }
    if (resident == 0) continue;
    // In units of a third of the time that a warpgroup takes for a tile: a block copies a line in
    // about one.
    const int64_t cost =
        ceil_divide(blocks, kMultiprocessors * resident) * (1 + 3 * ceil_divide(per_block, groups));
    if (least && cost >= least) continue;
    least = cost;
    best = {static_cast<int>(line_rows(shape, rows)), static_cast<int>(tiles),
            static_cast<int>(per_block), static_cast<int>(ceil_divide(tiles, per_block)),
            static_cast<int>(groups)};
  }
  return best;
}

ForwardWarpgroupGeometry forward_warpgroup_geometry(DType type, const AttentionShape& shape,
                                                    int64_t most_shared) {
  ForwardWarpgroupGeometry g = {};
  if (!is_16_bit(type) || shape.head_size > 80) return g;
  const int64_t bytes = line_bytes(shape, kForwardBlocks);
  const int64_t bytes_of_group = head_tile_bytes(shape.head_size, 64);  // the next queries
  g.lines = warpgroup_lines(shape, kForwardBlocks, bytes, bytes_of_group, 3, most_shared);
  g.is_possible = g.lines.groups > 0;
  g.launch = {lines_of(shape) * g.lines.blocks, 128 * g.lines.groups,
              bytes + g.lines.groups * bytes_of_group};
  return g;
}

TapsGeometry taps_geometry(const AttentionTapsProblem& problem, int64_t most_shared) {
  TapsGeometry result;
  const int64_t lines = lines_of(problem.shape);
  result.path = attention_path(problem.type, problem.shape.head_size, most_shared);
  const bool all = problem.distance || problem.entropy;
  const int64_t tiles = ceil_divide(problem.shape.tokens, kKeysPerTile);
  result.query_tiles = all || tiles == 0 ? tiles : 1;
  const bool is_tensor = result.path == AttentionPath::kTensor;
  const int threads = is_tensor ? 4 * kWarpSize : kScalarThreads;
  // A tile of queries and one of keys, and two sums per warp.
  const int64_t shared =
      (is_tensor ? head_tile_bytes(128, 2 * kKeysPerTile) : kScalarProductBytes) +
      2 * kSumBytes * (threads / kWarpSize);
  result.launch = {lines * result.query_tiles, threads, shared};
  result.sums = {all ? ceil_divide(lines, kScalarThreads) : 0, kScalarThreads, 0};
  result.sum_bytes = all ? lines * result.query_tiles * 2 * kSumBytes : 0;
  return result;
}

}  // namespace vit
