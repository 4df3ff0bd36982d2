// The encoder on the CPU.
#ifndef CUSTOM_OPS_CPU_ENCODER_ENCODER_H_
#define CUSTOM_OPS_CPU_ENCODER_ENCODER_H_

#include "custom_ops/cc/encoder.h"
#include "custom_ops/cc/execution.h"

namespace vit {

// Computes `out`, with the same bits for any number of threads.
Result encoder(const EncoderProblem& problem, const Execution& execution);

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ENCODER_ENCODER_H_
