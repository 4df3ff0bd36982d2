#include "custom_ops/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
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

// Which instruction set is in use. Both fields are written and read as atomics.
struct Choice {
  int isa;
  const char* error;
};

Choice choice_of(const char* name) {
  int best = kIsaCount - 1;
  while (best > 0 && !isa_available(static_cast<Isa>(best))) --best;
  // An empty value counts as unset, so that `VIT_ISA= command` unsets it for one command.
  if (!name || !*name) return {best, nullptr};
  const int isa = named_isa(name);
  if (isa < 0) {
    return {best,
            "VIT_ISA is unknown. Use one of baseline, avx2, avx512, avx512_bf16, or unset it."};
  }
  if (!isa_available(static_cast<Isa>(isa))) {
    return {best,
            "VIT_ISA names an instruction set that this processor or this build does not have. "
            "Unset it, or use a lower one of baseline, avx2, avx512, avx512_bf16."};
  }
  return {isa, nullptr};
}

// Initialised when the library loads.
Choice chosen = choice_of(getenv("VIT_ISA"));

#if defined(__x86_64__)
// __builtin_cpu_supports does not know F16C in every compiler.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

}  // namespace

const char* isa_name(Isa isa) { return kNames[static_cast<int>(isa)]; }

bool isa_available(Isa isa) {
  if (!(VIT_BUILT_ISAS >> static_cast<int>(isa) & 1)) return false;
  if (isa == Isa::kBaseline) return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (isa == Isa::kAvx2) return avx2;
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (isa == Isa::kAvx512) return avx512;
#if VIT_BUILT_ISAS & 8
  return avx512 && __builtin_cpu_supports("avx512bf16");
#endif
#endif
  return false;
}

Isa current_isa() { return static_cast<Isa>(__atomic_load_n(&chosen.isa, __ATOMIC_RELAXED)); }

const char* isa_error() { return __atomic_load_n(&chosen.error, __ATOMIC_RELAXED); }

void choose_isa(const char* name) {
  const Choice choice = choice_of(name);
  __atomic_store_n(&chosen.isa, choice.isa, __ATOMIC_RELAXED);
  __atomic_store_n(&chosen.error, choice.error, __ATOMIC_RELAXED);
}

}  // namespace vit
