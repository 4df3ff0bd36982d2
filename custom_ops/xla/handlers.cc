// What runs on the CPU in a program that XLA compiled: an FFI handler for each op.

#include "custom_ops/xla/handlers.h"

#include <functional>
#include <utility>

#include "custom_ops/cpu/attention/cpu_attention.h"
#include "custom_ops/cpu/encoder/cpu_encoder.h"
#include "custom_ops/cpu/patch_embed/cpu_patch_embed.h"
#include "custom_ops/cpu/team.h"

namespace vit {
namespace {

template <class Body>
ffi::Error call_on_cpu(ffi::ThreadPool pool, ffi::Dictionary attributes,
                       ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  const auto schedule = [&pool](std::function<void()> task) { pool.Schedule(std::move(task)); };
  Team team(pool.num_threads(), schedule);
  const Execution execution = {team.parallel_for(), heap()};
  return error_of<Body>(call<Body>(attributes, arguments, results, execution));
}

template <class Body>
struct CpuHandler {
  static XLA_FFI_Error* run(XLA_FFI_CallFrame* frame) {
    static const auto* const bound = ffi::Ffi::Bind()
                                         .Ctx<ffi::ThreadPool>()
                                         .Attrs()
                                         .RemainingArgs()
                                         .RemainingRets()
                                         .To(call_on_cpu<Body>)
                                         .release();
    return bound->Call(frame);
  }
};

#ifndef VIT_FOR_JAX
[[maybe_unused]] const bool registered = register_handlers<CpuHandler>("Host", CpuOps());
#endif

}  // namespace
}  // namespace vit

#ifdef VIT_FOR_JAX
extern "C" __attribute__((visibility("default")))
XLA_FFI_Handler* vit_ops_handler(const char* name) {
  return vit::find_handler<vit::CpuHandler>(name, vit::CpuOps());
}
#endif
