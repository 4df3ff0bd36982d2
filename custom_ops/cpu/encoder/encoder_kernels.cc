// Compiled once for every instruction set, with -DVIT_ISA=<name>: see simd/vectors.h.
#include "custom_ops/cpu/encoder/encoder_kernels.h"

#include "custom_ops/cpu/encoder/first_row.h"
#include "custom_ops/cpu/encoder/head_rows.h"
#include "custom_ops/cpu/encoder/layer_norm.h"
#include "custom_ops/cpu/encoder/patch_rows.h"
#include "custom_ops/cpu/encoder/amx_attention.h"
#include "custom_ops/cpu/gemm/dense_kernel.h"
#include "custom_ops/cpu/gemm/amx_product.h"

namespace vit {
namespace VIT_ISA {

namespace {

template <class Product>
EncoderKernels table_of_product(DType activation, Kernel<AttentionForwardProblem> attention = {}) {
  using Activation = typename Product::Activation;
  return {activation,
          Kernel<PatchRowsProblem>::of<PatchRows<Activation>>(),
          Kernel<LayerNormProblem>::of<LayerNorm<Activation>>(),
          Kernel<DenseProblem>::of<Dense<Product>>(),
          Kernel<HeadRowsProblem>::of<HeadRows<Activation>>(),
          Kernel<FirstRowProblem>::of<FirstRowAttention<Activation>>(),
          Kernel<MeanProblem>::of<Mean>(),
          attention};
}

}  // namespace

}  // namespace VIT_ISA

// Like table_of_type: the files for instructions of bfloat16 have kernels for bfloat16 only.
template <Isa isa>
EncoderKernels EncoderKernels::of(DType type) {
  using namespace VIT_ISA;
#if defined(__AMX_BF16__)
  if (type == DType::kBfloat16) {
    return table_of_product<AmxProduct>(type, Kernel<AttentionForwardProblem>::of<AmxAttention>());
  }
#elif defined(__AVX512BF16__)
  if (type == DType::kBfloat16) return table_of_product<PairProduct>(type);
#else
  if (type == DType::kFloat32) return table_of_product<FloatProduct>(type);
  if (type == DType::kBfloat16) return table_of_product<WidenedProduct>(DType::kFloat32);
#endif
  __builtin_trap();
}
template EncoderKernels EncoderKernels::of<VIT_ISA::kIsa>(DType type);

}  // namespace vit
