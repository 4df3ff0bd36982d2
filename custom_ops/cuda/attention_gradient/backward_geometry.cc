#include "custom_ops/cuda/attention_gradient/backward_geometry.h"

namespace vit {
namespace {

// Bytes of `tiles` tiles.
int64_t tile_bytes(int64_t head_size, int tiles, int64_t rows = kGradientTokens) {
  return tiles * head_tile_bytes(head_size, rows);
}

// Of ScalarTile::add_product, and a tile of weights or gradients.
constexpr int64_t kScalarBytes = kScalarProductBytes + kScalarTileBytes;

int64_t delta_bytes(const AttentionShape& shape) {
  return lines_of(shape) * shape.tokens * kSumBytes;
}

LaunchShape delta_shape(const AttentionShape& shape) {
  return {ceil_divide(lines_of(shape) * shape.tokens, kScalarThreads), kScalarThreads, 0};
}

bool is_launchable_or_empty(const LaunchShape& shape, int64_t most_shared) {
  return shape.blocks == 0 || is_launchable(shape, most_shared);
}

}  // namespace

BackwardGeometry backward_geometry(DType type, const AttentionShape& shape, int64_t most_shared) {
  BackwardGeometry g = {};
  const int64_t lines = lines_of(shape), size = shape.head_size;
  g.path = attention_path(type, size, most_shared);
  if (lines == 0 || shape.tokens == 0 || size == 0) return g;
  if (g.path == AttentionPath::kScalar) {
    g.queries = kScalarTile;
    g.column_tiles = ceil_divide(size, kScalarTile);
    g.query_tiles = g.key_tiles = ceil_divide(shape.tokens, kScalarTile);
    g.delta_bytes = delta_bytes(shape);
    g.delta = delta_shape(shape);
    g.d_queries = g.d_keys = {lines * g.query_tiles * g.column_tiles, kScalarThreads, kScalarBytes};
    return g;
  }
  g.column_tiles = 1;
  const bool has_short_lines = padded_head_size(size) < 128;
  if (has_short_lines && shape.tokens <= kGradientTokens) {
    g.queries = kGradientTokens;
    g.query_tiles = g.key_tiles = 1;
    const int rows = static_cast<int>(ceil_divide(shape.tokens, 16) * 16);
    g.short_lines = {lines, rows * 2, tile_bytes(size, 5, rows) + 3 * kGradientTokens * kSumBytes};
    return g;
  }
  // Warps of nearly equal number in all blocks of queries, as in forward.
  const int per_warp = padded_head_size(size) == 64 ? kGradientQueries<64> : kGradientQueries<80>;
  const int64_t warps = ceil_divide(shape.tokens, per_warp);
  const int64_t per_block = ceil_divide(warps, ceil_divide(warps, kGradientThreads / 32));
  g.queries = static_cast<int>(per_block) * per_warp;
  g.query_tiles = ceil_divide(shape.tokens, g.queries);
  g.key_tiles = ceil_divide(shape.tokens, kGradientTokens);
  g.delta_bytes = delta_bytes(shape);
  g.d_queries = {lines * g.query_tiles, static_cast<int>(per_block) * 32, tile_bytes(size, 4)};
  const int tiles = padded_head_size(size) == 128 ? 5 : 4;
  g.d_keys = {lines * g.key_tiles, kGradientThreads,
              tile_bytes(size, tiles) + 6 * kGradientTokens * kSumBytes};
  return g;
}

BackwardWarpgroupGeometry backward_warpgroup_geometry(DType type, const AttentionShape& shape,
                                                      int64_t most_shared, int multiprocessors) {
  BackwardWarpgroupGeometry g = {};
  const bool is_16_bit = type == DType::kBfloat16 || type == DType::kFloat16;
  if (!is_16_bit || shape.head_size > 80 || shape.tokens <= kGradientTokens) return g;
  const int size = padded_head_size(shape.head_size);
  // A section of 16 rows only where it has all tokens that the sections of 64 leave.
  const int64_t rest = shape.tokens % BackwardRows::first;
  const int64_t other = rest > 0 && rest <= BackwardRows::other;
  const SectionCounts sections = {ceil_divide(shape.tokens, BackwardRows::first) - other, other};
  const auto divide = [&](StreamGeometry& stream, int groups, int numbers) {
    stream = stream_geometry(shape, sections, section_bytes(size, BackwardRows::first, numbers),
                             groups, most_shared, multiprocessors);
    return LaunchShape{stream.blocks, (groups + 1) * kWarpgroup, ring_bytes(stream)};
  };
  g.d_queries = divide(g.queries, size == 64 ? kQueryGroups<64> : kQueryGroups<80>, 0);
  g.d_keys = divide(g.keys, kKeyGroups, 3);
  g.is_possible = g.queries.slots > 0 && g.keys.slots > 0;
  g.delta_bytes = delta_bytes(shape);
  return g;
}

bool is_empty(const BackwardGeometry& geometry) {
  return geometry.d_queries.blocks == 0 && geometry.short_lines.blocks == 0;
}

bool is_launchable(const BackwardGeometry& geometry, int64_t most_shared) {
  return is_launchable_or_empty(geometry.delta, most_shared) &&
         is_launchable_or_empty(geometry.d_queries, most_shared) &&
         is_launchable_or_empty(geometry.d_keys, most_shared) &&
         is_launchable_or_empty(geometry.short_lines, most_shared);
}

BiasGeometry bias_geometry(DType type, const AttentionShape& shape, const AttentionBias& bias,
                           int64_t most_shared) {
  const auto dimension = [](int64_t stride, int64_t count) {
    return stride ? BiasDimension{count, 1} : BiasDimension{1, count};
  };
  BiasGeometry g = {};
  g.path = attention_path(type, shape.head_size, most_shared);
  g.batch = dimension(bias.batch_stride, shape.batch);
  g.lines = dimension(bias.line_stride, shape.lines);
  g.heads = dimension(bias.head_stride, shape.heads);
  const int64_t parts = g.batch.parts * g.lines.parts * g.heads.parts;
  const int64_t rows = bias.query_stride ? shape.tokens : 1;
  g.elements = parts * rows * (bias.key_stride ? shape.tokens : 1);
  if (g.elements == 0) return g;
  g.tiles = ceil_divide(shape.tokens, kGradientTokens);
  g.query_pieces = bias.query_stride ? g.tiles : 1;
  g.key_pieces = bias.key_stride ? g.tiles : 1;
  g.units = g.batch.shared * g.lines.shared * g.heads.shared * (bias.query_stride ? 1 : g.tiles) *
            (bias.key_stride ? 1 : g.tiles);
  const int64_t pieces = parts * g.query_pieces * g.key_pieces;
  // Enough blocks for every GPU of today, with a number that does not depend on the GPU, so that
  // results do not either. Where there are groups, pieces are few, which bounds group_bytes.
  constexpr int64_t kManyBlocks = 1024;
  g.groups = pieces < kManyBlocks ? ceil_divide(kManyBlocks, pieces) : 1;
  if (g.groups > g.units) g.groups = g.units;
  if (g.groups < 1) g.groups = 1;
  if (g.groups > 1) {
    g.group_bytes = g.groups * g.elements * kSumBytes;
    g.sums = {ceil_divide(g.elements, kScalarThreads), kScalarThreads, 0};
  }
  const bool is_tensor = g.path == AttentionPath::kTensor;
  if (!is_tensor && g.units > 0) {
    g.delta_bytes = delta_bytes(shape);
    g.delta = delta_shape(shape);
  }
  g.logits = {pieces * g.groups, is_tensor ? kGradientThreads : kScalarThreads,
              is_tensor ? tile_bytes(shape.head_size, 5) : kScalarBytes};
  return g;
}

bool is_launchable(const BiasGeometry& geometry, int64_t most_shared) {
  return is_launchable_or_empty(geometry.delta, most_shared) &&
         is_launchable_or_empty(geometry.logits, most_shared) &&
         is_launchable_or_empty(geometry.sums, most_shared);
}

}  // namespace vit
