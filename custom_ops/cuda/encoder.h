// The encoder on a GPU: cc/encoder.h defines the problem, whose pointers to numbers are memory of
// the GPU.
#ifndef CUSTOM_OPS_CUDA_ENCODER_H_
#define CUSTOM_OPS_CUDA_ENCODER_H_

#include "custom_ops/cc/encoder.h"
#include "custom_ops/cuda/execution.h"

namespace vit {

// The array problem.block is memory of the host and valid during the call only.
CudaResult encoder(const EncoderProblem& problem, const CudaExecution& execution);

}  // namespace vit

#endif  // CUSTOM_OPS_CUDA_ENCODER_H_
