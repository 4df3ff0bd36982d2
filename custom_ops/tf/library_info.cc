// Build information of the library. custom_ops/loader.py reads the stamp from the file before it
// loads the library, because one that was built for another TensorFlow may not load at all.
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

// Found in the file by its first word; what follows, up to the zero, is JSON.
const char kStamp[] =
    "VIT_OPS_BUILD_INFO:"
    "{\"tensorflow\": \"" VIT_OPS_TENSORFLOW "\", \"compiler\": \"" VIT_COMPILER
    "\", \"isas\": \"" VIT_OPS_ISAS "\", \"sources\": \"" VIT_OPS_SOURCES "\"}";
constexpr int kStampPrefix = sizeof("VIT_OPS_BUILD_INFO:") - 1;

}  // namespace

// JSON: the TensorFlow it was built for, compiler, names of instruction sets, hash of the sources.
VIT_EXPORT const char* vit_ops_build_info() { return kStamp + kStampPrefix; }

// JSON: instruction sets that this processor can run, the one in use, and what is wrong with
// VIT_ISA, null if nothing. Valid until the next call in the same thread.
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
