// A stack of Transformer encoder blocks for inference, over weights that were packed once
// (Dosovitskiy et al., 2021, equations 2 and 3). This header defines the problem that a device
// solves. For each block, with LN a LayerNorm without scale and bias, which the packed weights
// contain:
//
//   x = x + out(attention(qkv(LN(x))))
//   x = x + fc2(GELU(fc1(LN(x))))
//
// Layout 1 of packed weights. A dense layer of `depth` inputs and `columns` outputs is stored as
// panels of kPanelColumns columns: [ceil(columns / 64), ceil(depth / k), 64, k], k = 1 for float
// and 2 for bfloat16, padded with zeros. So one row of a panel is 256 contiguous bytes, which
// every instruction set reads in its own vectors or tiles. The weights of a block are the layers
// qkv (q | k | v, each [heads, head_size]), out, fc1 and fc2, one behind the other; the biases are
// theirs, in float and without padding. custom_ops/packing.py packs them.
#ifndef CUSTOM_OPS_CC_ENCODER_H_
#define CUSTOM_OPS_CC_ENCODER_H_

#include <stdint.h>

#include "custom_ops/cc/dtype.h"

namespace vit {

constexpr int64_t kEncoderLayout = 1;
constexpr int64_t kPanelColumns = 64;

enum class Activation : int { kGeluTanh = 0, kGeluErf = 1 };

struct EncoderBlock {
  const void* weights;
  const float* biases;
};

// The residual stream, LayerNorm, softmax and all sums are float. With bfloat16 weights the inputs
// of products are rounded to bfloat16 too where the processor multiplies bfloat16 fast.
struct EncoderProblem {
  DType type;  // of the weights: kFloat32 or kBfloat16
  int64_t batch, tokens, width, heads, mlp_size, blocks;
  Activation activation;
  float epsilon;               // added to the variance
  bool first_row_only;         // of each image only token 0 is computed in the last block
  const float* input;          // [batch, tokens, width]
  const EncoderBlock* block;   // [blocks]
  float* out;                  // [batch, tokens, width], or [batch, 1, width]
};

// The elements of a packed dense layer, and of the weights and biases of a block. The caller checks
// that they do not overflow.
int64_t packed_size(DType type, int64_t depth, int64_t columns);
int64_t encoder_weights_size(DType type, int64_t width, int64_t mlp_size);
int64_t encoder_biases_size(int64_t width, int64_t mlp_size);

}  // namespace vit

#endif  // CUSTOM_OPS_CC_ENCODER_H_
