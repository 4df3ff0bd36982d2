// What attention.cc needs of the files that are compiled for one instruction set each.
#ifndef CUSTOM_OPS_CC_ATTENTION_ISA_H_
#define CUSTOM_OPS_CC_ATTENTION_ISA_H_

#include "custom_ops/cc/attention.h"

namespace vit {

// The arguments of the functions in attention.h; each reads the fields that it knows.
struct AttentionCall {
  DType type;
  AttentionShape shape;
  double scale;
  const void* qkv;
  AttentionBias bias;
  const void* out;
  const void* statistics;
  const void* d_out;
  // Written.
  void* result;             // out, d_qkv or d_bias
  void* result_statistics;
  AttentionTaps taps;
};

// A part of a kernel that threads can do in any order: units of work, each of which writes what no
// other one writes, and the scratch that a thread needs while it does some of them.
struct AttentionWork {
  int64_t (*units)(const AttentionCall& call);
  int64_t (*scratch_bytes)(const AttentionCall& call);
  // `scratch` is aligned to 64 bytes and holds anything.
  void (*run)(const AttentionCall& call, int64_t begin, int64_t end, void* scratch);
};

struct AttentionKernels {
  AttentionWork forward, backward, bias_gradient, taps;
};

namespace baseline {
AttentionKernels attention_kernels(DType type);
}
#if defined(__x86_64__)
namespace avx2 {
AttentionKernels attention_kernels(DType type);
}
namespace avx512 {
AttentionKernels attention_kernels(DType type);
}
namespace avx512_bf16 {
AttentionKernels attention_kernels(DType type);
}
#endif

}  // namespace vit

#endif  // CUSTOM_OPS_CC_ATTENTION_ISA_H_
