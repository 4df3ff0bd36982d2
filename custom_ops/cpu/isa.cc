#include "custom_ops/cpu/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <syscall.h>
#include <unistd.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace vit {

namespace {

constexpr const char* kNames[kIsaCount] = {"baseline", "avx2", "avx512", "avx512_bf16", "amx"};

int named_isa(const char* name) {
  for (int i = 0; i < kIsaCount; ++i) {
    if (strcmp(name, kNames[i]) == 0) return i;
  }
  return -1;
}

int best_isa() {
  int best = kIsaCount - 1;
  while (best > 0 && !isa_available(static_cast<Isa>(best))) --best;
#if defined(__x86_64__)
  // Intel's processors multiply pairs of bfloat16 at half the rate of floats: see dispatch.h.
  if (best == static_cast<int>(Isa::kAvx512Bf16) && __builtin_cpu_is("intel")) --best;
#endif
  return best;
}

// Sets `isa` to the set of a name; an empty name means the best one. Returns the problem, or null.
const char* find_isa(const char* name, int* isa) {
  *isa = *name ? named_isa(name) : best_isa();
  if (*isa < 0) {
    return "This instruction set is unknown. Use one of baseline, avx2, avx512, avx512_bf16, amx.";
  }
  if (!isa_available(static_cast<Isa>(*isa))) {
    return "This processor or this build does not have the instruction set. Use a lower one of "
           "baseline, avx2, avx512, avx512_bf16, amx.";
  }
  return nullptr;
}

// The problem with VIT_ISA, if there is one: see isa_error.
char error_at_load[256] = "";

// The set in use, read and written as an atomic. Initialised when the library loads. An empty value
// counts as unset, so that `VIT_ISA= command` unsets it for one command.
int chosen = [] {
  const char* name = getenv("VIT_ISA");
  int isa;
  const char* error = find_isa(name ? name : "", &isa);
  if (!error) return isa;
  snprintf(error_at_load, sizeof error_at_load, "VIT_ISA=%.64s: %s", name, error);
  // The text becomes part of JSON and of Python strings.
  for (char* c = error_at_load; *c; ++c) {
    if (*c < ' ' || *c > '~' || *c == '"' || *c == '\\') *c = '?';
  }
  return best_isa();
}();

#if defined(__x86_64__)
// __builtin_cpu_supports does not know F16C in every compiler.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

#if VIT_BUILT_ISAS & 16
// Whether the processor has tiles of bfloat16, and the kernel of Linux lets this process use them:
// it saves their 8 kB of state only for processes that ask (since 5.16).
bool has_amx() {
#if defined(__linux__)
  unsigned a, b, c, d;
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 || (d & kTiles) == 0) {
    return false;
  }
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
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
  const bool pairs = avx512 && __builtin_cpu_supports("avx512bf16");
  if (isa == Isa::kAvx512Bf16) return pairs;
#if VIT_BUILT_ISAS & 16
  return pairs && has_amx();
#endif
#endif
#endif
  return false;
}

Isa current_isa() { return static_cast<Isa>(__atomic_load_n(&chosen, __ATOMIC_RELAXED)); }

const char* isa_error() { return *error_at_load ? error_at_load : nullptr; }

const char* choose_isa(const char* name) {
  int isa;
  const char* error = find_isa(name, &isa);
  if (!error) __atomic_store_n(&chosen, isa, __ATOMIC_RELAXED);
  return error;
}

}  // namespace vit
