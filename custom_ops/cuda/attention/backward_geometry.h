// Host logic of the gradients of attention on a GPU: which kernels run, the sizes of their
// launches, and their scratch memory. Plain C++, which tests run without a GPU.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_BACKWARD_GEOMETRY_H_
#define CUSTOM_OPS_CUDA_ATTENTION_BACKWARD_GEOMETRY_H_

#include <stdint.h>

#include "custom_ops/cc/attention.h"
#include "custom_ops/cuda/launch.h"

namespace vit {

// Threads of the kernels that use tensor cores, and tokens of their tiles in shared memory.
constexpr int kGradientThreads = 128, kGradientTokens = 64;

// Queries of a block that computes d_q with tensor cores. With 32 queries per warp an operand that
// is read from shared memory is used twice as often as with 16; the sums of larger heads do not fit
// the registers.
template <int head>
constexpr int kGradientQueries = head == 64 ? 128 : 64;

// Threads and tile of the kernels without tensor cores (scalar_tiles.h).
constexpr int kScalarThreads = 256, kScalarTile = 64;

// The columns of the tiles of tensor cores that a head of `head_size` elements takes: 64, 80 or
// 128. 0: tensor cores do not compute this type or size.
int gradient_head(DType type, int64_t head_size);

// The factors between products and weights. With x = product * products (+ bias) - largest, the
// weight is 2^(x * exponents - log2 of the sum).
struct LogitScales {
  double elements;   // q is multiplied by it before the product
  double products;   // from products to the units of the largest logit
  double exponents;  // from these units to exponents of 2
};
// float16 has few exponents, so its products are scaled instead of its elements: float holds the
// products of all float16 numbers.
LogitScales logit_scales(DType type, double scale, bool has_bias);

// The launches of attention_backward. A launch that is not needed has 0 blocks.
struct BackwardGeometry {
  int head;                                   // see gradient_head
  int64_t lines;                              // of tokens, of all heads
  int64_t query_tiles, key_tiles;             // of a line
  int64_t chunks;                             // of kScalarTile columns of a head
  LaunchShape delta, d_queries, d_keys;       // in this order
  LaunchShape short_lines;                    // computes all, for lines of up to kGradientTokens
  int64_t delta_bytes;                        // scratch: delta of every query
};
BackwardGeometry backward_geometry(DType type, const AttentionShape& shape);

// Along a dimension of a bias: its parts, and the lines that share an element.
struct BiasDimension {
  int64_t parts, shared;
};

// The launches of attention_bias_gradient. A piece is a block of kGradientTokens queries and keys
// of one part of the bias. It is the sum of `units` tiles of logits: one for every line that shares
// the part, times the tiles of queries (keys) if the bias has one element for all of them. Units
// are split into groups, so that few pieces still occupy a GPU.
struct BiasGeometry {
  int head;
  BiasDimension batch, lines, heads;
  int64_t tiles;                              // of kGradientTokens tokens of a line
  int64_t query_pieces, key_pieces;           // of a part
  int64_t units, groups;                      // of a piece
  int64_t elements;                           // of the bias
  LaunchShape delta, logits, sums;            // in this order; `sums` adds groups
  int64_t delta_bytes, group_bytes;           // scratch: see above, and [groups, elements]
};
BiasGeometry bias_geometry(DType type, const AttentionShape& shape, const AttentionBias& bias);

// Whether copies of 16 bytes can read and write all tensors of the problem.
bool is_gradient_aligned(const AttentionGradientProblem& problem);

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_BACKWARD_GEOMETRY_H_
