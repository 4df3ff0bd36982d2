// Attention on a GPU: cc/attention_problem.h defines the problems, whose pointers are memory of the
// GPU.
#ifndef CUSTOM_OPS_CUDA_CUDA_ATTENTION_H_
#define CUSTOM_OPS_CUDA_CUDA_ATTENTION_H_

#include "custom_ops/cc/attention_problem.h"
#include "custom_ops/cuda/cuda_execution.h"

namespace vit {

// bfloat16 and float16 with heads of up to 128 elements use tensor cores, with sums in float; the
// weights are rounded to the type before they multiply v. Everything else is computed as float
// (FFMA). There are no atomic operations: the same call gives the same bits. kNoKernel: kFloat64.
// kTooLarge: more blocks than a launch can have, or heads of more than 2^31 - 1 elements.
CudaResult attention_forward(const AttentionForwardProblem& problem,
                             const CudaExecution& execution);

// Writes d_qkv.
CudaResult attention_backward(const AttentionGradientProblem& problem,
                              const CudaExecution& execution);

// Writes d_bias.
CudaResult attention_bias_gradient(const AttentionGradientProblem& problem,
                                   const CudaExecution& execution);

CudaResult attention_taps(const AttentionTapsProblem& problem, const CudaExecution& execution);

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_CUDA_ATTENTION_H_
