// The encoder on the CPU.
#ifndef CUSTOM_OPS_CPU_ENCODER_CPU_ENCODER_H_
#define CUSTOM_OPS_CPU_ENCODER_CPU_ENCODER_H_

#include "custom_ops/cc/encoder_problem.h"
#include "custom_ops/cc/execution.h"
#include "custom_ops/cpu/encoder/encoder_kernels.h"

namespace vit {

// Computes `out`, with the same bits for any number of threads.
Result encoder(const EncoderProblem& problem, const Execution& execution);

// The kernels that `encoder` runs, for the instruction set in use.
EncoderKernels encoder_kernels(const EncoderProblem& problem);

// `encoder` with kernels that may leave out problems, by no units for them: a benchmark runs one
// stage of all blocks. There must be tokens.
Result encoder_with(const EncoderKernels& kernels, const EncoderProblem& problem,
                    const Execution& execution);

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ENCODER_CPU_ENCODER_H_
