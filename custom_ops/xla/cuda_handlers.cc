// What runs on a GPU in a program that XLA compiled: an FFI handler for each op, which starts the
// work on XLA's stream.

#include "custom_ops/cuda/cuda_attention.h"
#include "custom_ops/cuda/cuda_status.h"
#include "custom_ops/cuda/cuda_patch_embed.h"
#include "custom_ops/xla/handlers.h"

namespace vit {

namespace {

// XLA frees what it allocates here when the handler returns, and uses it again only for work that
// follows on the same stream.
void* allocate_scratch(void* allocator, int64_t bytes) {
  constexpr size_t kAlignment = 16;  // XLA refuses more.
  return static_cast<ffi::ScratchAllocator*>(allocator)
      ->Allocate(bytes, kAlignment)
      .value_or(nullptr);
}

template <class Body>
ffi::Error call_on_cuda(void* stream, ffi::ScratchAllocator allocator, ffi::Dictionary attributes,
                        ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  const CudaExecution execution = {stream, allocate_scratch, &allocator};
  return error_of<Body>(call<Body>(attributes, arguments, results, execution));
}

template <class Body>
struct CudaHandler {
  static XLA_FFI_Error* run(XLA_FFI_CallFrame* frame) {
    static const auto* const bound = ffi::Ffi::Bind()
                                         .Ctx<ffi::PlatformStream<void*>>()
                                         .Ctx<ffi::ScratchAllocator>()
                                         .Attrs()
                                         .RemainingArgs()
                                         .RemainingRets()
                                         .To(call_on_cuda<Body>)
                                         .release();
    return bound->Call(frame);
  }
};

#ifndef VIT_FOR_JAX
[[maybe_unused]] const bool registered = register_handlers<CudaHandler>("CUDA", CudaOps());
#endif

}  // namespace
}  // namespace vit

#ifdef VIT_FOR_JAX
extern "C" __attribute__((visibility("default")))
XLA_FFI_Handler* vit_ops_handler(const char* name) {
  return vit::find_handler<vit::CudaHandler>(name, vit::CudaOps());
}
#endif
