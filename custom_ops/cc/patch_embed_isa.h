// What patch_embed.cc needs of the files that are compiled for one instruction set each.
#ifndef CUSTOM_OPS_CC_PATCH_EMBED_ISA_H_
#define CUSTOM_OPS_CC_PATCH_EMBED_ISA_H_

#include "custom_ops/cc/patch_embed.h"

namespace vit {

// The arguments of the functions in patch_embed.h; each reads the fields that it knows.
struct PatchCall {
  DType image_type;
  PatchShape shape;
  const void* images;
  double scale, offset;
  const void *kernel, *bias, *prefix, *position;
  const void* d_tokens;
  // Written.
  void* tokens;
  PatchGradients gradients;
};

// A part of a kernel that threads can do in any order: units of work, each of which writes what no
// other one writes, and the scratch that a thread needs while it does some of them.
struct PatchWork {
  int64_t (*units)(const PatchCall& call);
  int64_t (*scratch_bytes)(const PatchCall& call);
  // `scratch` is aligned to 64 bytes and holds anything.
  void (*run)(const PatchCall& call, int64_t begin, int64_t end, void* scratch);
};

struct PatchKernels {
  PatchWork forward, prefix;
  PatchWork kernel_gradient, image_gradient, table_gradients;
};

// For kernels and tokens of `type`.
namespace baseline {
PatchKernels patch_kernels(DType type);
}
#if defined(__x86_64__)
namespace avx2 {
PatchKernels patch_kernels(DType type);
}
namespace avx512 {
PatchKernels patch_kernels(DType type);
}
namespace avx512_bf16 {
PatchKernels patch_kernels(DType type);
}
#endif

}  // namespace vit

#endif  // CUSTOM_OPS_CC_PATCH_EMBED_ISA_H_
