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
    // Blocks of 128 queries, or of all queries of a shorter line, in warps of nearly equal number:
    // with 257 queries, 3 blocks of 3 warps of 32 instead of 2 of 4 and 1 of 1.
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

ForwardWarpgroupGeometry forward_warpgroup_geometry(DType type, const AttentionShape& shape,
                                                    int64_t most_shared, int multiprocessors) {
  ForwardWarpgroupGeometry g = {};
  if (!is_16_bit(type) || shape.head_size > 80) return g;
  const int size = padded_head_size(shape.head_size);
  const int64_t queries = head_tile_bytes(size, kWarpgroupRows);  // the next ones of a warpgroup
  const int64_t sixteens = ceil_divide(shape.tokens, 16);
  if (shape.tokens <= kWarpgroupRows) {
    g.launch = {lines_of(shape), kWarpgroup,
                section_bytes(size, static_cast<int>(16 * sixteens), 0) + queries};
    g.is_possible = g.launch.shared_bytes <= most_shared;
    return g;
  }
  // n sections of 64 or 80 rows, where they can be without unused rows.
  int64_t sections = sixteens / 4, longer = sixteens % 4;
  if (longer > sections) ++sections, longer = 0;
  g.stream = stream_geometry(shape, {longer, sections - longer},
                             section_bytes(size, ForwardRows::first, 0), kForwardGroups,
                             most_shared - kForwardGroups * queries, multiprocessors);
  g.is_possible = g.stream.slots > 0;
  g.launch = {g.stream.blocks, (kForwardGroups + 1) * kWarpgroup,
              ring_bytes(g.stream) + kForwardGroups * queries};
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
