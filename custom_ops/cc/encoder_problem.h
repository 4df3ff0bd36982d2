// A stack of Transformer encoder blocks for inference, over weights that were packed once
// (Dosovitskiy et al., 2021, equations 2 and 3). This header defines the problem that a device
// solves. For each block, with LN a LayerNorm without scale and bias, which the packed weights
// contain:
//
//   x = x + out(attention(qkv(LN(x))))
//   x = x + fc2(GELU(fc1(LN(x))))
//
// or with fc2(silu(gate(LN(x))) * up(LN(x))) (SwiGLU: Shazeer, 2020), whose gate and up are fc1.
//
// Layout 1 of packed weights. A dense layer of `depth` inputs and `columns` outputs is stored as
// panels of kPanelColumns columns: [ceil(columns / 64), ceil(depth / k), 64, k], k = 1 for float
// and 2 for bfloat16, padded with zeros. So one row of a panel is 256 contiguous bytes, which
// every instruction set reads in its own vectors or tiles. The weights of a block are the layers
// qkv (q | k | v, each [heads, head_size]), out, fc1 and fc2, one behind the other; the biases are
// theirs, in float and without padding. A panel of fc1 for SwiGLU has 32 columns of gate and the 32
// of up that they multiply; its biases are gate | up. With qk_norm the scale and bias of
// queries and the scale and bias of keys, each [head_size], follow the biases.
// custom_ops/packing.py packs them.
#ifndef CUSTOM_OPS_CC_ENCODER_PROBLEM_H_
#define CUSTOM_OPS_CC_ENCODER_PROBLEM_H_

#include <stdint.h>

#include "custom_ops/cc/dtype.h"
#include "custom_ops/cc/patch_embed_problem.h"

namespace vit {

constexpr int64_t kEncoderLayout = 1;
constexpr int64_t kPanelColumns = 64;

enum class Activation : int { kGeluTanh = 0, kGeluErf = 1, kSwiglu = 2 };

struct EncoderBlock {
  const void* weights;
  const float* biases;
};

// Images that the tokens are made of (equation 1): prefix tokens and embedded patches, plus
// positions. Pixels are rescaled in float: image * scale + offset.
struct EncoderImages {
  DType type;  // not kFloat64
  PatchShape shape;
  double scale, offset;
  const void* images;  // [batch, height, width, channels]
  const void* kernel;  // [patch elements, width], packed, of the type of the weights
  const float* bias;  // [width]
  const float *prefix, *position;  // [prefix, width], [tokens, width]; position may be null
};

// Which tokens follow the encoder: all, token 0 or the mean.
enum class Pooling : int { kNone, kToken, kMean };

// The final LayerNorm with scale and bias (equation 4), pooling, and a dense layer to classes.
struct EncoderHead {
  const float *scale, *bias;  // [width]
  Pooling pooling;
  int64_t classes;  // 0: no dense layer
  const void* kernel;  // [width, classes], packed floats
  const float* kernel_bias;  // [classes]
};

// The residual stream, LayerNorm, softmax, the head and all sums are float. With bfloat16 weights
// the inputs of products are rounded to bfloat16 too where the processor multiplies bfloat16 fast.
struct EncoderProblem {
  DType type;  // of the weights: kFloat32 or kBfloat16
  int64_t batch, tokens, width, heads, mlp_size, blocks;
  Activation activation;
  float epsilon;  // added to the variance
  bool qk_norm;  // the queries and keys of each head are normalized (LayerNorm)
  bool first_row_only;  // of each image only token 0 is computed in the last block
  const float* input;  // [batch, tokens, width]; not read if there are images
  const EncoderBlock* block;  // [blocks]
  // [batch, tokens, width], or [batch, 1, width] if first_row_only, which Pooling::kToken needs. If
  // there are classes, they take the place of the width.
  float* out;
  const EncoderImages* images;  // null: none
  const EncoderHead* head;  // null: none
  // Rotary positions of the last tokens, the same in all blocks: cosines and sines
  // [rotary_tokens, 2, head_size / 2]. Null: none.
  const float* rotary;
  int64_t rotary_tokens;
};

// The outputs of fc1, whose activation has mlp_size.
int64_t fc1_columns(Activation activation, int64_t mlp_size);

// The elements of a packed dense layer, and of the weights and biases of a block. The caller checks
// that they do not overflow.
int64_t packed_size(DType type, int64_t depth, int64_t columns);
int64_t encoder_weights_size(DType type, int64_t width, int64_t mlp_size, Activation activation);
int64_t encoder_biases_size(int64_t width, int64_t mlp_size, Activation activation);
int64_t qk_norm_size(int64_t head_size);  // of the biases, if there is a qk_norm

}  // namespace vit

#endif  // CUSTOM_OPS_CC_ENCODER_PROBLEM_H_
