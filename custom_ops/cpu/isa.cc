#include "custom_ops/cpu/isa.h"

#include <stdlib.h>
#include <string.h>

namespace vit {

namespace {

constexpr const char* kNames[kIsaCount] = {"baseline", "avx2", "avx512", "avx512_bf16"};

int named_isa(const char* name) {
  for (int i = 0; i < kIsaCount; ++i) {
    if (strcmp(name, kNames[i]) == 0) return i;
  }
  return -1;
}

// An empty value counts as unset, so that `VIT_ISA= command` unsets it for one command.
const char* requested() {
  const char* name = getenv("VIT_ISA");
  return name && *name ? name : nullptr;
}

Isa best_isa() {
  static const Isa best = [] {
    int isa = kIsaCount - 1;
    while (isa > 0 && !isa_available(static_cast<Isa>(isa))) --isa;
    return static_cast<Isa>(isa);
  }();
  return best;
}

}  // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool isa_available(Isa isa) {
  if (isa == Isa::kBaseline) return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  // Every processor with AVX2 has F16C too.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == Isa::kAvx2) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (isa == Isa::kAvx512) return avx512;
  return avx512 && __builtin_cpu_supports("avx512bf16");
#else
  return false;
#endif
}

Isa current_isa() {
  const char* name = requested();
  if (!name) return best_isa();
  const int isa = named_isa(name);
  return isa >= 0 && isa_available(static_cast<Isa>(isa)) ? static_cast<Isa>(isa) : best_isa();
}

const char* isa_error() {
  const char* name = requested();
  if (!name) return nullptr;
  const int isa = named_isa(name);
  if (isa < 0) {
    return "VIT_ISA is unknown. Use one of baseline, avx2, avx512, avx512_bf16, or unset it.";
  }
  if (!isa_available(static_cast<Isa>(isa))) {
    return "VIT_ISA names an instruction set that this processor does not have. Unset it, or use a "
           "lower one of baseline, avx2, avx512, avx512_bf16.";
  }
  return nullptr;
}

}  // namespace vit
