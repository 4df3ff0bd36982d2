// How attention is divided over a GPU: plain numbers, which tests check without a GPU.
#ifndef CUSTOM_OPS_CUDA_ATTENTION_ATTENTION_GEOMETRY_H_
#define CUSTOM_OPS_CUDA_ATTENTION_ATTENTION_GEOMETRY_H_

#include "custom_ops/cc/attention_problem.h"
#include "custom_ops/cuda/attention/stream_geometry.h"

namespace vit {

// kTensor: bfloat16 and float16 with heads of up to 128 elements, on tensor cores. kScalar: all
// others, with the arithmetic of float (FFMA). All kernels of a problem take the same path, so that
// they compute the same logits; kernels of warpgroups, which are a part of kTensor, may differ from
// its other kernels in the last bit. `most_shared`, here and below: the bytes of shared memory that
// a block may have. Tensor cores need 47 KB for heads of up to 64 elements, 57 KB up to 80, and 87
// KB up to 128.
enum class AttentionPath { kTensor, kScalar };
AttentionPath attention_path(DType type, int64_t head_size, int64_t most_shared);

// Tiles of tensor cores have rows of 64, 80 or 128 elements: the head size, rounded up.
int padded_head_size(int64_t head_size);

// Bytes of a tile of heads, `rows` of them, on tensor cores.
int64_t head_tile_bytes(int64_t head_size, int64_t rows);

// Whether rows of heads are whole multiples of 16 bytes, at multiples of 16 bytes from `data`,
// which is qkv, out or a gradient of them.
bool has_aligned_rows(DType type, int64_t head_size, const void* data);

// Keys, or rows of a tile on the scalar path, at a time.
constexpr int kKeysPerTile = 64;

// The same for attention_forward on tensor cores: with heads of 80 elements, the registers do not
// suffice for the logits of 64 keys.
template <int padded_head_size>
constexpr int kForwardKeys = padded_head_size == 80 ? 48 : kKeysPerTile;

// How the logits of a pair come from a product q k^T. All kernels of a problem use the same
// numbers, so that they compute the same bits.
struct LogitScales {
  // q is multiplied by it before the product: query_factor, which is a power of two. It is 1 for
  // float16 on tensor cores: there q would become subnormal, and no product overflows.
  double of_queries;
  // With a bias, the logit is product * of_products + bias; without one it is the product.
  double of_products;
  // The weight of a key is exp2((logit - largest logit) * of_exponents) / sum.
  double of_exponents;
  // The first statistic is the largest logit times this power of two.
  double of_largest;
};
LogitScales logit_scales(const AttentionProblem& problem, AttentionPath path);

// What a block of attention_forward computes: `queries` queries of a line, and `column_tiles`
// blocks compute 64 columns of the output each (1 on tensor cores: all columns).
struct ForwardGeometry {
  AttentionPath path;
  int queries;
  int64_t query_tiles, column_tiles;  // of a line
  LaunchShape launch;           // blocks: lines, slowest, query tiles, column_tiles
};
ForwardGeometry forward_geometry(DType type, const AttentionShape& shape, int64_t most_shared);

// attention_forward with warpgroups. The keys of a line are in blocks of 64; some blocks have 80
// where the line needs it. Lines of up to 64 tokens have a block of one warpgroup each, and no
// stream.
using ForwardRows = SectionRows<80, 64>;
constexpr int kForwardGroups = 3;  // that multiply
struct ForwardWarpgroupGeometry {
  bool is_possible;
  StreamGeometry stream;
  LaunchShape launch;
};
ForwardWarpgroupGeometry forward_warpgroup_geometry(DType type, const AttentionShape& shape,
                                                    int64_t most_shared, int multiprocessors);

// A block of attention_taps takes 64 queries of a line. The class row alone needs only the first
// block of each line.
struct TapsGeometry {
  AttentionPath path;
  int64_t query_tiles;
  LaunchShape launch;         // blocks: lines, slowest, query tiles
  LaunchShape sums;           // adds the sums of the query tiles, a thread per line
  int64_t sum_bytes;          // scratch [lines, query_tiles, 2]: sums of distances, of entropies
};
TapsGeometry taps_geometry(const AttentionTapsProblem& problem, int64_t most_shared);

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ATTENTION_ATTENTION_GEOMETRY_H_
