// Host logic of the gradients of attention on a GPU: which kernels run, the sizes of their
// launches, and their scratch memory. Plain C++, which tests run without a GPU.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_GEOMETRY_H_
#define CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_GEOMETRY_H_

#include "custom_ops/cuda/attention/attention_geometry.h"

namespace vit {

// Threads of the kernels that use tensor cores, and tokens of their tiles in shared memory.
constexpr int kGradientThreads = 128, kGradientTokens = 64;

// Queries of a warp that computes d_q with tensor cores. With 32 of them an operand that is read
// from shared memory is used twice as often as with 16; the sums of larger heads do not fit the
// registers.
template <int size>
constexpr int kGradientQueries = size == 64 ? 32 : 16;

// The launches of attention_backward. A launch that is not needed has 0 blocks.
struct BackwardGeometry {
  AttentionPath path;
  int queries;                           // of a block of d_queries
  int64_t query_tiles, key_tiles;        // of a line
  int64_t column_tiles;                        // of 64 columns of a head, 1 on tensor cores
  LaunchShape delta, d_queries,
      d_keys;  // in this order; blocks: lines, slowest, tiles, column_tiles
  // Computes all, for lines of up to kGradientTokens, with a warp for 16 tokens.
  LaunchShape short_lines;
  int64_t delta_bytes;                   // scratch: delta of every query
};
BackwardGeometry backward_geometry(DType type, const AttentionShape& shape, int64_t most_shared);

// Whether nothing must be launched; and whether all that must be can be.
bool is_empty(const BackwardGeometry& geometry);
bool is_launchable(const BackwardGeometry& geometry, int64_t most_shared);

// The launches of attention_backward with warpgroups, in this order, for lines that are longer than
// short_lines. Sections of a line have 64 rows, the last one 16 where these suffice.
using BackwardRows = SectionRows<64, 16>;
// Warpgroups that multiply.
template <int padded_head_size>
constexpr int kQueryGroups = padded_head_size == 64 ? 3 : 2;
constexpr int kKeyGroups = 2;
struct BackwardWarpgroupGeometry {
  bool is_possible;
  StreamGeometry queries, keys;
  LaunchShape d_queries, d_keys;
  int64_t delta_bytes;  // scratch: delta of every query
};
BackwardWarpgroupGeometry backward_warpgroup_geometry(DType type, const AttentionShape& shape,
                                                      int64_t most_shared, int multiprocessors);

// Along a dimension of a bias: its parts, and the lines that share an element.
struct BiasDimension {
  int64_t parts, shared;
};

// The launches of attention_bias_gradient. A piece is a block of kGradientTokens queries and keys
// of one part of the bias. It is the sum of `units` tiles of logits: one for every line that shares
// the part, times the tiles of queries (keys) if the bias has one element for all of them. Units
// are split into groups, so that few pieces still occupy a GPU.
struct BiasGeometry {
  AttentionPath path;
  BiasDimension batch, lines, heads;
  int64_t tiles;                     // of kGradientTokens tokens of a line
  int64_t query_pieces, key_pieces;  // of a part
  int64_t units, groups;             // of a piece
  int64_t elements;                  // of the bias
  LaunchShape delta, logits, sums;   // in this order; `sums` adds groups
  int64_t delta_bytes, group_bytes;  // scratch: see above, and [groups, elements]
};
BiasGeometry bias_geometry(DType type, const AttentionShape& shape, const AttentionBias& bias,
                           int64_t most_shared);
bool is_launchable(const BiasGeometry& geometry, int64_t most_shared);

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_GRADIENT_BACKWARD_GEOMETRY_H_
