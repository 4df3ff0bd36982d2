#include "custom_ops/cuda/attention/backward_geometry.h"

namespace vit {
namespace {

constexpr double kLog2E = 1.44269504088896340736;

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

int64_t lines_of(const AttentionShape& shape) { return shape.batch * shape.lines * shape.heads; }

int64_t sum_bytes(DType type) { return type == DType::kFloat64 ? 8 : 4; }

// Bytes of `tiles` tiles of kGradientTokens rows.
int64_t tile_bytes(int head, int tiles) { return int64_t{2} * tiles * kGradientTokens * (head + 8); }

// Of ScalarTile::add_product, and a tile of weights or gradients.
int64_t scalar_bytes(DType type) {
  return (2 * 16 * (kScalarTile + 1) + kScalarTile * (kScalarTile + 1)) * sum_bytes(type);
}

LaunchShape delta_shape(const AttentionShape& shape) {
  return {ceil_divide(lines_of(shape) * shape.tokens, kScalarThreads), kScalarThreads, 0};
}

}  // namespace

int gradient_head(DType type, int64_t head_size) {
  if (type != DType::kBfloat16 && type != DType::kFloat16) return 0;
  return head_size <= 64 ? 64 : head_size <= 80 ? 80 : head_size <= 128 ? 128 : 0;
}

LogitScales logit_scales(DType type, double scale, bool has_bias) {
  const double factor = query_factor(scale), rest = scale / factor;
  const bool scales_products = type == DType::kFloat16;
  return {scales_products ? 1 : factor, (scales_products ? factor : 1) * (has_bias ? rest : 1),
          has_bias ? kLog2E : kLog2E * rest};
}

BackwardGeometry backward_geometry(DType type, const AttentionShape& shape) {
  BackwardGeometry g = {};
  g.head = gradient_head(type, shape.head_size);
  g.lines = lines_of(shape);
  if (g.lines == 0 || shape.tokens == 0 || shape.head_size == 0) return g;
  g.chunks = 1;
  if (g.head && shape.tokens <= kGradientTokens) {
    g.query_tiles = g.key_tiles = 1;
    g.short_lines = {g.lines, kGradientThreads,
                     tile_bytes(g.head, 5) + 3 * kGradientTokens * int64_t{sizeof(float)}};
    return g;
  }
  g.delta_bytes = g.lines * shape.tokens * sum_bytes(type);
  if (g.head) {
    const int queries = g.head == 64   ? kGradientQueries<64>
                        : g.head == 80 ? kGradientQueries<80>
                                       : kGradientQueries<128>;
    g.query_tiles = ceil_divide(shape.tokens, queries);
    g.key_tiles = ceil_divide(shape.tokens, kGradientTokens);
    g.d_queries = {g.lines * g.query_tiles, kGradientThreads, tile_bytes(g.head, 4)};
    g.d_keys = {g.lines * g.key_tiles, kGradientThreads,
                tile_bytes(g.head, 4) + 6 * kGradientTokens * int64_t{sizeof(float)}};
    return g;
  }
  g.chunks = ceil_divide(shape.head_size, kScalarTile);
  g.query_tiles = g.key_tiles = ceil_divide(shape.tokens, kScalarTile);
  g.delta = delta_shape(shape);
  g.d_queries = g.d_keys = {g.lines * g.query_tiles * g.chunks, kScalarThreads, scalar_bytes(type)};
  return g;
}

BiasGeometry bias_geometry(DType type, const AttentionShape& shape, const AttentionBias& bias) {
  const auto dimension = [](int64_t stride, int64_t count) {
    return stride ? BiasDimension{count, 1} : BiasDimension{1, count};
  };
  BiasGeometry g = {};
  g.head = gradient_head(type, shape.head_size);
  g.batch = dimension(bias.batch_stride, shape.batch);
  g.lines = dimension(bias.line_stride, shape.lines);
  g.heads = dimension(bias.head_stride, shape.heads);
  const int64_t parts = g.batch.parts * g.lines.parts * g.heads.parts;
  g.elements = parts * (bias.query_stride ? shape.tokens : 1) * (bias.key_stride ? shape.tokens : 1);
  if (g.elements == 0) return g;
  g.tiles = ceil_divide(shape.tokens, kGradientTokens);
  g.query_pieces = bias.query_stride ? g.tiles : 1;
  g.key_pieces = bias.key_stride ? g.tiles : 1;
  g.units = g.batch.shared * g.lines.shared * g.heads.shared *
            (bias.query_stride ? 1 : g.tiles) * (bias.key_stride ? 1 : g.tiles);
  const int64_t pieces = parts * g.query_pieces * g.key_pieces;
  // Enough blocks for every GPU of today, with a number that does not depend on the GPU, so that
  // results do not either. Pieces are few where there are groups, which bounds group_bytes.
  constexpr int64_t kManyBlocks = 1024;
  g.groups = pieces < kManyBlocks ? ceil_divide(kManyBlocks, pieces) : 1;
  if (g.groups > g.units) g.groups = g.units;
  if (g.groups < 1) g.groups = 1;
  if (g.groups > 1) {
    g.group_bytes = g.groups * g.elements * sum_bytes(type);
    g.sums = {ceil_divide(g.elements, kScalarThreads), kScalarThreads, 0};
  }
  if (!g.head && lines_of(shape) * shape.tokens > 0) {
    g.delta_bytes = lines_of(shape) * shape.tokens * sum_bytes(type);
    g.delta = delta_shape(shape);
  }
  g.logits = {pieces * g.groups, g.head ? kGradientThreads : kScalarThreads,
              g.head ? tile_bytes(g.head, 5) : scalar_bytes(type)};
  return g;
}

bool is_gradient_aligned(const AttentionGradientProblem& problem) {
  const uintptr_t all = reinterpret_cast<uintptr_t>(problem.qkv) |
                        reinterpret_cast<uintptr_t>(problem.out) |
                        reinterpret_cast<uintptr_t>(problem.d_out) |
                        reinterpret_cast<uintptr_t>(problem.gradient);
  return all % 16 == 0 && problem.shape.head_size * size_of(problem.type) % 16 == 0;
}

}  // namespace vit
