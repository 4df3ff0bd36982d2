// Build information of the library. custom_ops/loader.py reads the stamp from the file before it
// loads the library, because a library that was built for another TensorFlow may fail to load.
#include <string>

#include "custom_ops/build_stamp.h"
#include "custom_ops/cpu/isa.h"

#if defined(__clang__)
#define VIT_COMPILER "clang++ " __clang_version__
#else
#define VIT_COMPILER "g++ " __VERSION__
#endif

#define VIT_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

// The loader finds the stamp by its first word. JSON follows, up to the terminating zero.
const char kStamp[] =
    "VIT_OPS_BUILD_INFO:"
    "{\"tensorflow\": \"" VIT_OPS_TENSORFLOW "\", \"compiler\": \"" VIT_COMPILER
    "\", \"isas\": \"" VIT_OPS_ISAS "\", \"cuda_archs\": \"" VIT_OPS_CUDA_ARCHS
    "\", \"sources\": \"" VIT_OPS_SOURCES "\"}";
constexpr int kStampPrefix = sizeof("VIT_OPS_BUILD_INFO:") - 1;

}  // namespace

// JSON: the TensorFlow version that the library was built for, the compiler, the names of the
// instruction sets, the GPUs that it has kernels for, the hash of the sources.
VIT_EXPORT const char* vit_ops_build_info() { return kStamp + kStampPrefix; }

// Chooses the instruction set of later calls; "" is the best one here. Returns the problem, or
// null.
VIT_EXPORT const char* vit_ops_choose_isa(const char* name) { return vit::choose_isa(name); }

// JSON: the instruction sets that this processor can run, the one in use, and the problem with
// VIT_ISA or null. Valid until the next call in the same thread.
VIT_EXPORT const char* vit_ops_isa_report() {
  thread_local std::string report;
  report = "{\"available\": [";
  for (int i = 0; i < vit::kIsaCount; ++i) {
    const vit::Isa isa = static_cast<vit::Isa>(i);
    if (!vit::isa_available(isa)) continue;
    if (i > 0) report += ", ";
    report += std::string("\"") + vit::isa_name(isa) + "\"";
  }
  report += std::string("], \"chosen\": \"") + vit::isa_name(vit::current_isa()) + "\", ";
  const char* error = vit::isa_error();
  report += error ? std::string("\"error\": \"") + error + "\"}" : "\"error\": null}";
  return report.c_str();
}
