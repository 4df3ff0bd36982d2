// The gradient of the bias: sums of the gradients of logits over the dimensions that the bias is
// broadcast over. A block adds a group of the units of a piece (see BiasGeometry), tile upon tile
// in registers, and then the queries or keys that share an element.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BIAS_GRADIENT_H_
#define CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BIAS_GRADIENT_H_

#include "custom_ops/cuda/attention_gradient/backward_scalar.h"

namespace vit {

struct BiasParameters : GradientParameters {
  BiasGeometry geometry;
  float* result;  // d_bias, or scratch [groups, elements]
};

// A tile of logits.
struct BiasUnit {
  Line line;
  int64_t index;       // of the line
  int64_t query, key;  // the first ones
};

// What a block computes.
struct BiasPiece {
  int64_t batch, line, head;  // of the part
  int64_t query, key;         // the first ones, 0 if the bias has one element for all
  int64_t group, first, end;  // units

  // Blocks are numbered by batch, slowest, lines, heads, queries, keys, and groups.
  VIT_DEVICE_METHOD BiasPiece(const BiasGeometry& g) {
    int64_t rest = block_index();
    const auto next = [&rest](int64_t count) {
      const int64_t number = rest % count;
      rest /= count;
      return number;
    };
    group = next(g.groups);
    key = next(g.key_pieces) * kGradientTokens;
    query = next(g.query_pieces) * kGradientTokens;
    head = next(g.heads.parts);
    line = next(g.lines.parts);
    batch = rest;
    first = g.units * group / g.groups;
    end = g.units * (group + 1) / g.groups;
  }

  VIT_DEVICE_METHOD BiasUnit unit(const AttentionProblem& problem, const BiasGeometry& g,
                                  int64_t number) const {
    const auto next = [&number](int64_t count) {
      const int64_t result = number % count;
      number /= count;
      return result;
    };
    BiasUnit result;
    result.key = problem.bias.key_stride ? key : next(g.tiles) * kGradientTokens;
    result.query = problem.bias.query_stride ? query : next(g.tiles) * kGradientTokens;
    result.line.head = head + next(g.heads.shared);
    result.line.line = line + next(g.lines.shared);
    result.line.batch = batch + number;
    result.index =
        (result.line.batch * problem.shape.lines + result.line.line) * problem.shape.heads +
        result.line.head;
    return result;
  }
};

// Writes the elements of a piece. `tile`: its sums in shared memory, [kGradientTokens, kPitch],
// which all threads have written before a barrier; 0 for queries and keys that do not exist.
VIT_DEVICE void write_piece(const BiasParameters& p, const BiasPiece& piece, float* tile,
                            int threads) {
  constexpr int kSize = kGradientTokens, kPitch = ScalarTile::kPitch;
  const AttentionBias& bias = p.problem.bias;
  // Sums that one row or column remains of go to its first element.
  if (!bias.query_stride) {
    for (int key = thread_index(); key < kSize; key += threads) {
      float sum = 0;
      for (int query = 0; query < kSize; ++query) sum += tile[query * kPitch + key];
      tile[key] = sum;
    }
    sync_block();
  }
  const int queries = bias.query_stride ? rows_from(p.problem.shape, piece.query, kSize) : 1;
  if (!bias.key_stride) {
    for (int query = thread_index(); query < queries; query += threads) {
      float sum = 0;
      for (int key = 0; key < kSize; ++key) sum += tile[query * kPitch + key];
      tile[query * kPitch] = sum;
    }
    sync_block();
  }
  const int keys = bias.key_stride ? rows_from(p.problem.shape, piece.key, kSize) : 1;
  float* const to = p.result + piece.group * p.geometry.elements + piece.batch * bias.batch_stride +
                    piece.line * bias.line_stride + piece.head * bias.head_stride +
                    piece.query * bias.query_stride + piece.key * bias.key_stride;
  for (int i = thread_index(); i < kSize * kSize; i += threads) {
    const int query = i / kSize, key = i % kSize;
    if (query >= queries || key >= keys) continue;
    to[query * bias.query_stride + key * bias.key_stride] = tile[query * kPitch + key];
  }
}

template <class T, int kHead>
VIT_KERNEL(kGradientThreads, 2, bias_gradient_tensor, const BiasParameters p) {
  using Shared = Tile<T, kGradientTokens, kHead>;
  constexpr int kSteps = kGradientTokens / 16, kPitch = ScalarTile::kPitch;
  static_assert(5 * Shared::kBytes >= kGradientTokens * kPitch * int64_t{sizeof(float)});
  const AttentionGradientProblem& problem = p.problem;
  const AttentionShape& shape = problem.shape;
  const BiasPiece piece(p.geometry);
  const auto tile = [](int i) {
    return Shared{reinterpret_cast<T*>(shared_memory() + i * Shared::kBytes)};
  };
  const int lane = lane_index();
  QueryRows<T, kHead, 1> rows;
  rows.first = thread_index() / kWarp * 16;
  float sums[kSteps][2][4] = {};
  for (int64_t number = piece.first; number < piece.end; ++number) {
    const BiasUnit unit = piece.unit(problem, p.geometry, number);
#pragma unroll 1
    for (int i = 0; i < 5; ++i) {
      const int64_t first = i == kKey || i == kValue ? unit.key : unit.query;
      fill(tile(i),
           i < 3 ? rows_of_qkv<T>(shape, problem.qkv, unit.line, static_cast<Part>(i), first,
                                  kGradientTokens, p.is_qkv_aligned)
                 : rows_of_out<T>(shape, i == 3 ? problem.d_out : problem.out, unit.line, first,
                                  kGradientTokens, p.is_out_aligned),
           kGradientThreads);
    }
    commit_copies();
    wait_for_copies<0>();
    sync_block();
    rows.queries.load(tile(kQuery), rows.first);
    rows.queries.scale(p.scales.of_queries);
    rows.d_out.load(tile(3), rows.first);
    rows.load_statistics(shape, statistics_of(problem.statistics, shape, unit.index), unit.query,
                         tile(4));
    const TileBias bias(problem, unit.line, unit.query, unit.key, kGradientTokens, kGradientTokens);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (16 * step >= bias.keys || rows.first >= bias.queries) break;
      float weights[1][2][4] = {}, gradients[1][2][4] = {};
      rows.gradients(tile(kKey), tile(kValue), 16 * step, p.scales, bias, weights, gradients);
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[step][i / 4][i % 4] += gradients[0][i / 4][i % 4];
    }
    sync_block();
  }
  float* const shared = reinterpret_cast<float*>(shared_memory());
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int query = rows.first + lane / 4 + i % 4 / 2 * 8;
      const int key = 16 * step + i / 4 * 8 + lane % 4 * 2 + i % 2;
      shared[query * kPitch + key] = sums[step][i / 4][i % 4];
    }
  }
  sync_block();
  write_piece(p, piece, shared, kGradientThreads);
}

template <class T>
VIT_KERNEL(kScalarThreads, 1, bias_gradient_scalar, const BiasParameters p) {
  using Product = ScalarTile;
  float* const shared = reinterpret_cast<float*>(shared_memory());
  const BiasPiece piece(p.geometry);
  Product sums;
  sums.clear();
  for (int64_t number = piece.first; number < piece.end; ++number) {
    const BiasUnit unit = piece.unit(p.problem, p.geometry, number);
    ScalarGradients<T> tile;
    tile.compute(p, unit.index, unit.line, unit.query, unit.key, shared);
    for (int i = 0; i < Product::kPerThread; ++i) {
      for (int j = 0; j < Product::kPerThread; ++j) {
        sums.sums[i][j] += tile.gradients.sums[i][j];
      }
    }
  }
  float* const shared_tile = shared + Product::kBytes / static_cast<int64_t>(sizeof(float));
  share_tile(sums, shared_tile);
  write_piece(p, piece, shared_tile, kScalarThreads);
}

// Adds the groups; a thread computes one element.
VIT_KERNEL(kScalarThreads, 4, bias_gradient_sums, const BiasParameters p) {
  const int64_t i = block_index() * kScalarThreads + thread_index();
  if (i >= p.geometry.elements) return;
  float sum = 0;
  for (int64_t group = 0; group < p.geometry.groups; ++group) {
    sum += p.result[group * p.geometry.elements + i];
  }
  static_cast<float*>(p.problem.gradient)[i] = sum;
}

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BIAS_GRADIENT_H_
