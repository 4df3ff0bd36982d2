// Instruction sets, and the selection of one.
#ifndef CUSTOM_OPS_CPU_ISA_H_
#define CUSTOM_OPS_CPU_ISA_H_

namespace vit {

// Each is compiled with its own flags. Every set contains the sets before it.
enum class Isa : int { kBaseline = 0, kAvx2 = 1, kAvx512 = 2, kAvx512Bf16 = 3 };
constexpr int kIsaCount = 4;

const char* isa_name(Isa isa);

// Whether this build has code for the instruction set and this processor can run it.
bool isa_available(Isa isa);

// The best available instruction set, or the one that the environment variable VIT_ISA names:
// "baseline", "avx2", "avx512" or "avx512_bf16". VIT_ISA is read in every call, so that a test can
// change it. A name that is unknown or not available here is ignored, and `isa_error` reports it.
Isa current_isa();

// The problem with VIT_ISA as a static string, or null if there is none.
const char* isa_error();

}  // namespace vit

#endif  // CUSTOM_OPS_CPU_ISA_H_
